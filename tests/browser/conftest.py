"""The browser, the server, and each notebook open in it, all cells run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import server as lab
from tests.browser.page import Page


def pytest_runtest_setup(item: pytest.Item) -> None:
    if reason := lab.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the server and the browser keep."""
    return tmp_path_factory.mktemp("jupyter")


@pytest.fixture(scope="session")
def server(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    root = lab.copy_of_the_course(tmp_path_factory.mktemp("course"))
    with lab.running_server(root, own) as running:
        yield running


@pytest.fixture(scope="session")
def driver(own: Path) -> Iterator[object]:
    with lab.running_chromium(own) as chromium:
        yield chromium


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures go: $MINILLM_SHOTS, else a temporary folder of pytest's."""
    if folder := os.environ.get("MINILLM_SHOTS"):
        path = Path(folder).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
        return path
    return tmp_path_factory.mktemp("shots")


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest, driver, server: lab.Server, smollm2) -> Iterator[Page]:
    """The notebook that the test names as parameter, open, with all its cells run."""
    opened = Page(driver, server, request.param)
    opened.run_all()
    yield opened
    driver.get("about:blank")
    server.end_kernels()
