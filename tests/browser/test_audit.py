"""The audits and the keyboard driver on small notebooks: they find what they are there to find."""

import json
from pathlib import Path

import nbformat
import pytest

from minillm.course.tool import notebook as nb
from tests.browser import audit, drive
from tests.browser.page import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

EVERY_CONTROL = """
from minillm.course import widgets
from minillm.course.quizzes import Quiz
from minillm.course.quizzes.question import Question

widgets.Panel(
    {"seen": ""},
    lambda state: f"<p>{state['seen']}</p>",
    inputs=[
        (field, lambda state, value: {"seen": f"value {value}"})
        for field in (
            widgets.text_box("Line", "one"),
            widgets.text_box("Lines", "many", rows=2),
            widgets.slider("Whole", 1, 3, 3),
            widgets.slider("Part", 0.0, 1.0, 0.5, 0.1),
            widgets.choice("Choice", ["a", "b"]),
            widgets.tick("Tick"),
        )
    ],
    actions={"Press": lambda state: {"seen": "pressed"}},
)
"""
QUIZ = 'Quiz("00", (Question("Is it?", right=0, choices=(("yes", "It is."), ("no", "It is."))),))'

FAULTY = [
    nbformat.v4.new_markdown_cell("# One\n\n### Three"),
    nbformat.v4.new_code_cell("import sys\n\nprint('careful', file=sys.stderr)"),
    nbformat.v4.new_code_cell(
        "from IPython.display import HTML, Image\n\n"
        'HTML(\'<input id="nameless"><p style="color: #777; background: #888">faint</p>\')'
    ),
    nbformat.v4.new_code_cell(
        "import base64\n\nImage(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAA"
        "DUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='))"
    ),
    nbformat.v4.new_code_cell(
        "import ipywidgets\n\n"
        "ipywidgets.VBox([ipywidgets.IntSlider(), ipywidgets.HTML('never changes')])"
    ),
    nbformat.v4.new_code_cell("1 / 0"),
    nbformat.v4.new_code_cell("'not reached'"),
]


@pytest.fixture(scope="module")
def opened(driver, server):
    """Writes a notebook, opens it and runs it."""

    def run(name: str, cells: list) -> Page:
        path: Path = server.root / "notebooks" / name
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": nb.KERNEL})
        path.write_text(json.dumps(notebook))
        page = Page(driver, server, name)
        page.run_all(seconds=60.0)
        return page

    yield run
    driver.get("about:blank")
    server.end_kernels()


def test_every_kind_of_control_is_found_and_moved(opened):
    cells = [nbformat.v4.new_code_cell(source) for source in (EVERY_CONTROL, QUIZ)]
    page = opened("97_controls.ipynb", cells)
    found = drive.controls(page)
    assert sorted({control.kind for control in found}) == sorted({*drive.KINDS} - {"number"})
    assert [c.kind for c in found].count("slider") == 2
    assert [f"{c.kind} in cell {c.cell}" for c in found if not drive.moved(page, c)] == []
    assert audit.labels(page) == []
    assert audit.outputs(page, page.saved()) == []


@pytest.fixture(scope="module")
def faulty(opened) -> Page:
    return opened("98_faulty.ipynb", FAULTY)


def test_errors_warnings_and_unrun_cells_are_found(faulty):
    found = "\n".join(audit.outputs(faulty, faulty.saved()))
    assert "cell 2: stderr: careful" in found
    assert "cell 6: ZeroDivisionError: division by zero" in found
    assert "cell 7: run as None" in found


def test_faults_of_accessibility_are_found(faulty):
    assert audit.headings(faulty) == ["heading 'Three¶' of level 3 follows one of level 1"]
    assert audit.pictures(faulty) == ["cell 4: a picture without alt text or words below it"]
    assert any("nameless" in line for line in audit.labels(faulty))
    assert any("faint" in line for line in audit.contrast(faulty))


def test_a_dead_control_is_found(faulty, monkeypatch):
    monkeypatch.setattr(drive, "CHANGE_SECONDS", 1.0)
    (slider,) = (c for c in drive.controls(faulty) if c.kind == "slider")
    assert not drive.moved(faulty, slider)
