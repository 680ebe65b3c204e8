"""What nbval lets through, the guards do not: shown on small notebooks."""

import json
from pathlib import Path

import nbformat
import pytest

from minillm.course.tool import check
from minillm.course.tool import notebook as nb
from minillm.course.tool.project import Project
from minillm.course.tool.run import run


def make(folder: Path, *sources: str, name: str = "98_tiny.ipynb") -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = folder / name
    nbformat.write(notebook, path)
    return path


def guard(path: Path) -> str:
    return "\n".join(check.problems(Project(path.parent), path, check.GUARDS))


def edit(path: Path, change) -> Path:
    notebook = nb.read(path)
    change(notebook["cells"])
    nb.write(path, notebook)
    return path


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> Path:
    path = make(tmp_path_factory.mktemp("executed"), "x = 2", "print(object())\nx + 1", "x * 'a'")
    run(path)
    return path


@pytest.fixture
def path(executed, tmp_path) -> Path:
    copy = tmp_path / executed.name
    copy.write_bytes(executed.read_bytes())
    return copy


def test_an_executed_notebook_passes_both(path, nbval):
    assert guard(path) == ""
    outcome = nbval(path)
    assert outcome.passed, outcome.text
    assert 0 < outcome.cpu_seconds < 10 * outcome.seconds
    # The kernel alone, not pytest: a bare Python with IPython takes some tens of megabytes.
    assert 20e6 < outcome.peak_bytes < 500e6


def test_a_cell_that_differs_from_the_package_is_noticed_under_nbval_too(tmp_path, nbval):
    path = make(
        tmp_path,
        "from minillm.course import same_as_cell",
        "def guess():\n    return 4",
        "from minillm.course.guesses import guess\n\nsame_as_cell(guess)",
    )
    run(path)
    assert "Your cell's `guess` differs" in nb.read(path)["cells"][2]["outputs"][0]["text"]
    outcome = nbval(path)
    assert outcome.passed, outcome.text


def test_a_changed_output_fails_nbval(path, nbval):
    def change(cells):
        cells[2]["outputs"][0]["data"]["text/plain"] = "'ab'"

    outcome = nbval(edit(path, change))
    assert not outcome.passed
    assert "'ab'" in outcome.text


def test_a_stripped_notebook_passes_nbval_but_not_the_guard(path, nbval):
    def strip(cells):
        for cell in cells:
            cell["execution_count"], cell["outputs"] = None, []

    edit(path, strip)
    assert nbval(path).passed  # that is why there is a guard
    found = guard(path)
    assert found == "has not been run: run `python -m minillm.course run`"


def test_one_cell_that_was_not_run(path):
    assert guard(edit(path, lambda cells: cells[1].update(execution_count=None))) == (
        "cell 2: has not been run"
    )


def test_cells_out_of_order(path):
    def swap(cells):
        cells[0]["execution_count"], cells[1]["execution_count"] = 2, 1

    assert "cell 1: run out of order: execution count 2, expected 1" in guard(edit(path, swap))


def test_code_edited_after_the_run(path):
    assert "code was edited after" in guard(edit(path, lambda cells: cells[0].update(source="x=3")))


@pytest.mark.parametrize(
    ("source", "output", "problem"),
    [
        (
            "1",
            {"output_type": "stream", "name": "stderr", "text": "careful\n"},
            "cell 1: wrote to stderr: careful",
        ),
        (
            "1",
            {"output_type": "error", "ename": "KeyError", "evalue": "3", "traceback": []},
            "cell 1: its output is an error: KeyError: 3",
        ),
        (
            "1",
            {
                "output_type": "display_data",
                "metadata": {"image/png": {"alt": "a line"}},
                "data": {"image/png": "AA==", "text/plain": "<Figure size 640x480 with 1 Axes>"},
            },
            "cell 1: a figure shown as `<Figure size …>`",
        ),
        (
            "1",
            {"output_type": "display_data", "metadata": {}, "data": {"image/png": "AA=="}},
            "cell 1: a figure without alternative text",
        ),
        (
            "1",
            {"output_type": "display_data", "metadata": {}, "data": {"image/svg+xml": "<svg/>"}},
            "cell 1: a figure as image/svg+xml",
        ),
        (
            "1",
            {"output_type": "stream", "name": "stdout", "text": "in /home/anna/minillm\n"},
            "cell 1: an absolute path in the output: /home/anna",
        ),
        ("%timeit 1", None, "cell 1: magic '%timeit 1' is not allowed"),
        ("%%nosuchmagic\n1 / 0", None, "cell 1: magic '%%nosuchmagic' is not allowed"),
        ("!ls", None, "cell 1: magic '!ls' is not allowed"),
        ("print?", None, "cell 1: magic 'print?' is not allowed"),
        ("def f(:", None, "cell 1: does not parse"),
        ("# NBVAL_SKIP\n1 / 0", None, "cell 1: comment NBVAL_SKIP is not allowed"),
        ("%matplotlib inline\n1", None, ""),
        ("7 % 3", None, ""),
        ("'''\n%text in a string'''", None, ""),
    ],
)
def test_outputs_and_magics(tmp_path, source, output, problem):
    path = make(tmp_path, source)

    def store(cells):
        cells[0].update(execution_count=1, outputs=[output] if output else [])

    edit(path, store)
    notebook = nb.read(path)
    notebook["metadata"]["minillm"] = {"code": nb.code_hash(notebook)}
    nb.write(path, notebook)
    found = guard(path)
    assert found.startswith(problem) if problem else found == ""


@pytest.mark.parametrize("tag", ["nbval-skip", "raises-exception"])
def test_tags_that_hide_a_cell(path, tag):
    edit(path, lambda cells: cells[0].update(metadata={"tags": [tag]}))
    assert f"cell 1: tag {tag!r} is not allowed" in guard(path)


def test_ignoring_an_output_is_allowed(path):
    edit(path, lambda cells: cells[0].update(metadata={"tags": ["nbval-ignore-output"]}))
    assert guard(path) == ""


def test_addresses_are_stored_without_their_value(path):
    text = json.dumps(nb.read(path)["cells"][1]["outputs"])
    assert "<object object at 0x0>" in text
