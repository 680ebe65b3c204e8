"""`run` and `clean`, and the learner's whole way from an edited cell to the package."""

import json

import nbformat
import pytest

from minillm.course.__main__ import main
from minillm.course.tool import notebook as nb
from minillm.course.tool.run import needs_run, run
from minillm.course.tool.sync import sync


def outputs(path, index: int) -> str:
    cell = nb.read(path)["cells"][index - 1]
    return "".join(output.get("text", "") for output in cell["outputs"])


def test_the_learners_way(tool, project, path, edit):
    sync(project, path)
    assert tool("run").returncode == 0
    notebook = nb.read(path)
    assert [cell["execution_count"] for _, cell in nb.code_cells(notebook)] == list(range(1, 11))
    assert [outputs(path, index) for index in (5, 8, 11, 14)] == [""] * 4
    assert notebook["cells"][14]["outputs"][0]["data"]["text/plain"] == "['ab', 'ba']"

    # An edited cell: the import after it says that the package's version is used, and what to do.
    edit(lambda cells: cells[12].update(source="def top(text):\n    return ['mine']"))
    done = tool("run")
    assert (done.returncode, done.stderr) == (0, "")
    assert outputs(path, 14) == (
        "Your cell's `top` differs from the package's, which is used from here on.\n"
        "To build yours into the package: save the notebook, run\n"
        "    python -m minillm.course build notebooks/01_pairs.ipynb\n"
        "in the repository's root, and restart the kernel.\n"
    )
    assert nb.read(path)["cells"][14]["outputs"][0]["data"]["text/plain"] == "['ab', 'ba']"

    # Built, in a new kernel: no word, and the learner's version runs.
    assert tool("build", "notebooks/01_pairs.ipynb").returncode == 0
    assert tool("run", "--all").returncode == 0
    assert outputs(path, 14) == ""
    assert nb.read(path)["cells"][14]["outputs"][0]["data"]["text/plain"] == "['mine']"


def simple(folder, *sources: str):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    path = folder / "01_simple.ipynb"
    nbformat.write(notebook, path)
    return path


def test_only_changed_notebooks_run(tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    path = simple(tmp_path / "notebooks", "import os", "print(len(os.getcwd()) > 3)")
    assert needs_run(nb.read(path))
    assert main(["--root", str(tmp_path), "run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("notebooks/01_simple.ipynb: ")
    assert "peak memory" in printed
    first = path.read_bytes()
    assert main(["--root", str(tmp_path), "run"]) == 0
    assert capsys.readouterr().out == "notebooks/01_simple.ipynb: unchanged\n"
    assert main(["--root", str(tmp_path), "run", "--all"]) == 0
    assert path.read_bytes() == first  # the same bytes from run to run


def test_stored_notebooks_hold_nothing_volatile(tmp_path):
    path = simple(tmp_path, "for i in range(3):\n    print(i, flush=True)", "object()", "")
    measured = run(path)
    assert measured.seconds > 0
    assert measured.peak_bytes > 20e6
    notebook = json.loads(path.read_text())
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["cells"][0]["outputs"] == [
        {"name": "stdout", "output_type": "stream", "text": ["0\n", "1\n", "2\n"]}
    ]
    assert notebook["cells"][1]["outputs"][0]["data"]["text/plain"] == ["<object at 0x0>"]
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    assert notebook["cells"][2]["execution_count"] is None


def test_a_failing_cell_keeps_the_file(tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    path = simple(tmp_path / "notebooks", "1 / 0")
    before = path.read_bytes()
    assert main(["--root", str(tmp_path), "run"]) == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError" in error
    assert "\x1b" not in error
    assert path.read_bytes() == before


def test_clean_leaves_outputs_and_is_stable(tmp_path):
    notebook = {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": 4,
                "metadata": {
                    "ExecuteTime": {"end_time": "2025"},
                    "collapsed": True,
                    "jupyter": {"outputs_hidden": True, "source_hidden": True},
                    "tags": ["solution"],
                },
                "outputs": [
                    {"output_type": "stream", "name": "stdout", "text": "a\nb\n"},
                    {
                        "output_type": "display_data",
                        "metadata": {},
                        "data": {
                            nb.WIDGET: {"model_id": "1", "version_major": 2},
                            "text/html": "<b>3</b>",
                        },
                    },
                ],
                "source": "print('a')\nprint('b')",
            },
            {"cell_type": "markdown", "metadata": {"editable": True}, "source": ["# A\n", "é"]},
        ],
        "metadata": {"language_info": {"name": "python", "version": "3.11.2"}, "widgets": {}},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook))
    assert nb.write(path, nb.clean(nb.read(path)))
    text = path.read_text()
    assert not nb.write(path, nb.clean(nb.read(path)))
    cell, prose = json.loads(text)["cells"]
    assert cell["metadata"] == {"jupyter": {"source_hidden": True}, "tags": ["solution"]}
    assert cell["execution_count"] == 4
    assert cell["outputs"][0]["text"] == ["a\n", "b\n"]
    assert cell["outputs"][1]["data"] == {"text/html": ["<b>3</b>"]}
    assert prose["source"] == ["# A\n", "é"]
    assert "é" in text
    assert text.startswith('{\n "cells": [\n  {\n   "cell_type"')
    assert text.endswith("}\n")
    assert "version" not in json.loads(text)["metadata"]["language_info"]
    nbformat.validate(json.loads(text))


def test_repeated_and_missing_ids_become_unique():
    cells = [{"cell_type": "markdown", "source": "a", "metadata": {}, "id": "x"} for _ in range(3)]
    cells[2].pop("id")
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    ids = [cell["id"] for cell in nb.clean(notebook)["cells"]]
    assert ids[0] == "x"
    assert len(set(ids)) == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"nbformat": 3, "cells": []}', "\ud800"])
def test_files_that_are_no_notebooks(tmp_path, text):
    path = tmp_path / "a.ipynb"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match="notebook"):
        nb.read(path)
