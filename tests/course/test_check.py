"""`sync` and `check`, each of its rules broken once."""

from pathlib import Path

import pytest

from minillm.course.__main__ import main
from minillm.course.tool import notebook as nb
from minillm.course.tool.check import check
from minillm.course.tool.sync import sync


@pytest.fixture
def problems(project, path):
    """What check finds, apart from what every notebook that was never run or is short has."""
    sync(project, path)

    usual = ("has not been run", "; 60 to", "; 1,800 to", "; at least 4", "code was edited after")

    def find() -> str:
        found = check(project, [path]).problems
        return "\n".join(line for line in found if not any(words in line for words in usual))

    return find


def test_sync_writes_the_packages_text(project, path):
    lines = sync(project, path)
    assert len(lines) == 4
    assert lines[0].endswith("cell 4: minillm/layers/pairs.py · LIMIT updated")
    texts = {cell.symbol: cell.text for cell in nb.definitions(nb.read(path))}
    assert texts["LIMIT"] == "# More than this nobody reads.\nLIMIT = 3"
    assert texts["count_pairs"].startswith("@cache\ndef count_pairs")
    assert sync(project, path) == []


def test_a_synced_notebook_has_no_problems(problems):
    assert problems() == ""


@pytest.mark.parametrize(
    ("cell", "old", "new", "problem"),
    [
        (10, "a + b", "b + a", "cell 10: differs from minillm/layers/pairs.py · count_pairs: the "),
        (9, "pairs.py", "pears.py", "cell 10: the Markdown above must end with the line"),
        (9, "Text.\n\n`", "`Text ", "cell 10: the Markdown above must end with the line"),
        (11, "import count_pairs", "import top", "cell 10: the next code cell must say `from min"),
        (11, "same_as_cell(", "print(", "must call `same_as_cell(count_pairs)`"),
        (5, "same_as_cell(", "print(", "must call `same_as_cell(LIMIT)`"),
        (2, "from functools import cache", "", "cell 10: uses 'cache', which no earlier cell defi"),
        (1, "# Pairs", "### Pairs", "heading 'Pairs' skips a level"),
        (1, "# Pairs", "Pairs", "needs exactly one heading of level 1"),
        (16, "Summary", "End", "has no heading 'Summary'"),
        (1, "# Pairs", "# P\n\n![](a.png)", "cell 1: a picture without alternative text"),
        (1, "# Pairs", "# P\n\n<img src='a.png'>", "cell 1: a picture without alternative text"),
        (
            1,
            "# Pairs",
            "# P\n\nhttps://example.com/a",
            "cell 1: a link to example.com, which is not",
        ),
        (1, "# Pairs", "# P\n\n[a](b.ipynb)", "cell 1: a link to b.ipynb, and there is no such fi"),
        (1, "# Pairs", "# P\n\n[a](#Sum)", "cell 1: a link to #Sum, and there is no such heading"),
        (15, "top(", "check('01.nothing', top)\ntop(", "cell 15: no exercise '01.nothing' in mini"),
        (15, "top(", "%time top(", "cell 15: magic '%time top(\"abab\")' is not allowed"),
    ],
)
def test_one_broken_rule(problems, edit, cell, old, new, problem):
    def change(cells):
        source = cells[cell - 1]["source"]
        assert old in source
        cells[cell - 1]["source"] = source.replace(old, new)

    edit(change)
    assert problem in problems()


def test_a_source_that_is_none(problems, edit):
    edit(lambda cells: cells[3]["metadata"].update(minillm={"source": "attention"}))
    assert "source 'attention' must be 'minillm/folder/module.py::symbol'" in problems()


def test_a_symbol_that_the_package_lacks(problems, edit):
    source = {"source": "minillm/layers/pairs.py::bottom"}
    edit(lambda cells: cells[12]["metadata"].update(minillm=source))
    found = problems()
    assert "no top-level definition of 'bottom'" in found
    assert "minillm/layers/pairs.py: no notebook builds top" in found


@pytest.mark.parametrize(
    ("lines", "problem"), [(58, ""), (59, ": 61 lines of code; at most 60 al")]
)
def test_a_long_definition(project, path, problems, lines, problem):
    module = project.module("minillm/layers/pairs.py")
    body = "    LIMIT\n" * lines + "    # why\n\n"
    module.write_text(module.read_text().replace("    # Ties go by the alphabet.\n", body))
    sync(project, path)
    found = problems()
    assert problem in found if problem else found == ""


def test_a_symbol_that_no_notebook_builds(project, problems):
    module = project.module("minillm/layers/pairs.py")
    module.write_text(module.read_text().replace('"top"]', '"top", "untouched"]'))
    assert problems() == "minillm/layers/pairs.py: no notebook builds untouched"


def test_two_notebooks_that_build_the_same(project, path, problems):
    second = path.with_name("02_again.ipynb")
    second.write_bytes(path.read_bytes())
    assert (
        "minillm/layers/pairs.py: top is built 2 times: notebooks/01_pairs.ipynb cell 13, "
        "notebooks/02_again.ipynb cell 13"
    ) in problems()


def test_a_symbol_used_before_a_notebook_builds_it(project, problems, edit):
    (project.root / "minillm/layers/later.py").write_text('__all__ = ["LIMIT"]\nLIMIT = 4\n')

    def change(cells):
        cells[1]["source"] += "\nfrom minillm.layers.later import LIMIT"
        del cells[2:5]

    edit(change)
    assert "uses 'LIMIT' of minillm/layers/later.py, which is not built before" in problems()


def test_annotations_under_the_future_import_are_no_uses(project, path, problems, edit):
    module = project.module("minillm/layers/pairs.py")
    module.write_text(module.read_text().replace("def top(text: str)", "def top(text: Text)"))
    sync(project, path)
    assert "uses 'Text', which no earlier cell defines" in problems()

    def change(cells):
        cells[1]["source"] = "from __future__ import annotations\n" + cells[1]["source"]

    edit(change)
    assert problems() == ""


def test_pending_modules(project, path, problems):
    pyproject = project.root / "pyproject.toml"
    text = pyproject.read_text()

    def pending(*modules: str) -> None:
        pyproject.write_text(text.replace("pending = []", f"pending = {list(modules)}"))

    pending("minillm/layers/pairs.py")
    assert "pending minillm/layers/pairs.py: notebooks build all of it" in problems()
    pending("minillm/layers/none.py")
    assert "pending minillm/layers/none.py: no such module" in problems()
    (project.root / "minillm/model.py").write_text('__all__ = ["Model"]\n\n\nclass Model: ...\n')
    pending()
    assert "minillm/model.py: no notebook builds Model" in problems()
    pending("minillm/model.py")
    assert problems() == ""


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("layers/a.py", "from minillm.model import M", "layers must not import minillm.model"),
        (
            "layers/a.py",
            "def f():\n    import minillm.llm",
            "line 2: layers must not import minillm.l",
        ),
        ("layers/a.py", "from ..kv_cache import base", "layers must not import minillm.kv_cache"),
        ("layers/a.py", "from minillm import LLM", "layers must not import minillm.llm"),
        ("layers/a.py", "from minillm import kernels", "layers must not import minillm.kernels"),
        ("config.py", "from minillm.layers import norm", "config must not import minillm.layers"),
        ("cli.py", "from minillm.course import check", "cli must not import minillm.course"),
        ("llm.py", "from minillm import cli", "llm must not import minillm.cli"),
        ("extra.py", "", "minillm/extra.py: 'extra' stands on no level"),
        ("layers/a.py", "if TYPE_CHECKING:\n    from minillm.model import M", ""),
        ("layers/a.py", "from minillm.config import C\nfrom .pairs import top", ""),
        ("cli.py", "from minillm import LLM, __version__", ""),
        ("kv_cache/q.py", "from minillm.quantization import int8", ""),
    ],
)
def test_arrows(project, problems, module, text, problem):
    file = project.root / "minillm" / module
    file.parent.mkdir(exist_ok=True)
    file.write_text(text + "\n")
    found = problems()
    assert problem in found if problem else found == ""


def test_the_cores_length(project):
    (project.root / "minillm/config.py").write_text('"""Doc."""\n\n# why\n' + "x = 1\n" * 2001)
    report = check(project, [])
    assert report.statistics[0].startswith("core: 2,0")
    assert any("lines of code; 2,000 allowed" in line for line in report.problems)


def test_exercises_need_a_stub_and_a_folded_solution(project, problems, edit):
    folder = project.root / "minillm/course/checks"
    folder.mkdir(parents=True)
    (folder / "nb01.py").write_text('EXERCISES = {"01.top": None, "01.unused": None}\n')

    def stub(cells):
        cells[13]["source"] = 'check("01.top", top)'

    edit(stub)
    assert "exercise '01.top' has no solution that is checked" in problems()
    assert "exercise '01.unused' of minillm/course/checks/nb01.py is not set" in problems()

    def solution(cells):
        cells.insert(14, {**cells[13], "id": "s", "metadata": {"tags": ["solution"]}})

    edit(solution)
    assert "cell 15: a solution has the tag 'solution' and jupyter.source_hidden" in problems()
    edit(lambda cells: cells[14]["metadata"].update(jupyter={"source_hidden": True}))
    assert "01.top" not in problems()


def test_shape_is_printed_and_limited(project, path):
    sync(project, path)
    report = check(project, [path])
    assert report.statistics[1] == (
        "notebooks/01_pairs.ipynb: 16 cells, 16 words, 16 lines of code, 0 figures, 0 exercises"
    )
    assert "notebooks/01_pairs.ipynb: 16 cells; 60 to 110 allowed" in report.problems
    assert "notebooks/01_pairs.ipynb: 0 exercises; at least 4 allowed" in report.problems


def test_the_command_prints_problems_and_fails(project, path, capsys):
    assert main(["--root", str(project.root), "check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("core: ")
    assert "notebooks/01_pairs.ipynb: has not been run: run `python -m minillm.course run`" in lines


def test_a_file_that_is_no_notebook(project, path, capsys):
    path.write_text("{")
    assert main(["--root", str(project.root), "check"]) == 1
    assert "not a notebook" in capsys.readouterr().out


def test_a_path_that_does_not_exist(project, capsys):
    assert main(["--root", str(project.root), "sync", "nowhere.ipynb"]) == 1
    assert "no notebook 'nowhere.ipynb'" in capsys.readouterr().err


def test_check_and_its_import_need_no_torch():
    import subprocess
    import sys

    code = (
        "import sys\nfrom minillm.course.__main__ import main\nmain(['check'])\n"
        "heavy = {'torch', 'matplotlib', 'IPython', 'ipywidgets', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
