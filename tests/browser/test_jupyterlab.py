"""Every notebook in a real JupyterLab: Run All, its widgets by keyboard, both themes.

`make test-browser` runs these; a plain run leaves them out. Pictures of every notebook in both
themes go into the folder $MINILLM_SHOTS.
"""

from pathlib import Path

import pytest

from minillm.course.tool.project import Project
from tests.browser import audit, drive
from tests.browser.page import Page

NOTEBOOKS = [
    pytest.param(path.name, id=path.stem) for path in Project(Path(__file__).parents[2]).notebooks
]

# Pytest keeps the tests of one notebook together, so that each is opened and run once. Pictures are
# taken before anything is moved.
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.parametrize("page", NOTEBOOKS, indirect=True),
]


def test_run_all_ends_without_an_error(page: Page):
    assert audit.outputs(page, page.saved()) == []


def test_headings_stand_in_order(page: Page):
    assert audit.headings(page) == []


def test_pictures_are_described(page: Page):
    assert audit.pictures(page) == []


def test_controls_have_names(page: Page):
    assert audit.labels(page) == []


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_text_is_readable(page: Page, theme: str, shots: Path, record_property):
    page.theme(theme)
    pictures = page.pictures(shots, f"{Path(page.notebook).stem}_{theme.lower()}")
    record_property("pictures", str(pictures[0].parent))
    assert audit.contrast(page) == []


def test_widgets_work_by_keyboard(page: Page):
    found = drive.controls(page)
    assert found, "every notebook has at least its self-test"
    dead = [c for c in found if c.kind != "button" and not drive.moved(page, c)]
    assert [f"{c.kind} in cell {c.cell}" for c in dead] == []
    # A button may have nothing to do yet, such as one that takes a step back.
    for output in {c.output for c in found if c.kind == "button"}:
        buttons = [c for c in found if c.kind == "button" and c.output == output]
        assert any(drive.moved(page, c) for c in buttons), f"buttons in cell {buttons[0].cell}"
