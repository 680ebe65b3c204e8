"""`build`, its refusals, and `--undo`."""

import subprocess

import pytest

from minillm.course.__main__ import main
from minillm.course.tool.build import build, undo
from minillm.course.tool.check import check
from minillm.course.tool.sync import sync


@pytest.fixture(autouse=True)
def synced(project, path):
    sync(project, path)


@pytest.fixture
def module(project):
    return project.module("minillm/layers/pairs.py")


def write(edit, cell: int, text: str) -> None:
    edit(lambda cells: cells[cell - 1].update(source=text))


MINE = '@cache\ndef count_pairs(text):\n    """Mine."""\n    return Counter()  # none'


def test_only_the_symbols_lines_change(project, path, module, edit):
    before = module.read_text()
    write(edit, 10, MINE)
    write(edit, 4, "LIMIT = 5")
    lines = build(project, path)
    after = module.read_text()
    assert after.replace(MINE, "").replace("LIMIT = 5", "") == before.replace(
        before[before.index("@cache") : before.index("\n\n\ndef top")], ""
    ).replace("# More than this nobody reads.\nLIMIT = 3", "")
    assert lines[0] == "minillm/layers/pairs.py · LIMIT: +1 −2 lines"
    assert lines[1].startswith("minillm/layers/pairs.py · count_pairs: +3 −3 lines")
    assert "Restart the kernel" in lines[2]
    assert not [line for line in check(project, [path]).problems if "differs" in line]


def test_undo_restores_the_text_once_per_build(project, path, module, edit):
    before = module.read_text()
    write(edit, 4, "LIMIT = 5")
    build(project, path)
    between = module.read_text()
    write(edit, 4, "LIMIT = 6")
    build(project, path)
    assert undo(project) == ["minillm/layers/pairs.py: restored"]
    assert module.read_text() == between
    undo(project)
    assert module.read_text() == before
    with pytest.raises(ValueError, match="no build to take back"):
        undo(project)


def test_undo_keeps_what_was_edited_since(project, path, module, edit):
    write(edit, 4, "LIMIT = 5")
    build(project, path)
    module.write_text(module.read_text() + "# more\n")
    with pytest.raises(ValueError, match="was edited since the build: nothing was restored"):
        undo(project)
    assert "# more" in module.read_text()


def test_git_ignores_what_undo_needs(project, path, edit):
    subprocess.run(["git", "init", "-q"], cwd=project.root, check=True)
    write(edit, 4, "LIMIT = 5")
    build(project, path)
    command = ["git", "status", "--porcelain", "--untracked-files=all"]
    status = subprocess.run(command, cwd=project.root, check=True, capture_output=True, text=True)
    assert ".minillm-build" not in status.stdout


def test_nothing_to_build(project, path, module):
    before = module.stat().st_mtime_ns
    assert build(project, path) == [
        "notebooks/01_pairs.ipynb: nothing to build, its cells and the package agree"
    ]
    assert module.stat().st_mtime_ns == before
    assert not (project.root / ".minillm-build").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def top(:", "cell 13: does not parse: line 1: invalid syntax"),
        ("", "cell 13: must define 'top' and nothing else"),
        ("def bottom(): ...", r"names: bottom\)"),
        ("def top(): ...\n\nprint(top())", r"found 2 statements, names: top\)"),
        ("def top(): ...\n\ndef more(): ...", r"names: top, more\)"),
        ("import top", "must define 'top'"),
    ],
)
def test_cells_that_cannot_be_built(project, path, module, edit, text, message):
    before = module.read_text()
    write(edit, 4, "LIMIT = 5")  # a good cell before the bad one is not written either
    write(edit, 13, text)
    with pytest.raises(ValueError, match=message):
        build(project, path)
    assert module.read_text() == before


def test_names_that_the_package_lacks(project, path, module, edit):
    module.write_text(module.read_text().replace("def top", "def summit"))
    with pytest.raises(LookupError, match="cell 13: no top-level definition of 'top'"):
        build(project, path)
    edit(lambda cells: cells[12]["metadata"]["minillm"].update(source="minillm/none.py::top"))
    with pytest.raises(LookupError, match=r"no module 'minillm/none.py' in the package"):
        build(project, path)


def test_a_module_outside_the_package_is_out_of_reach(project, path, edit):
    (project.root / "outside.py").write_text("def top(): ...\n")
    source = "minillm/../outside.py::top"
    edit(lambda cells: cells[12]["metadata"]["minillm"].update(source=source))
    with pytest.raises(ValueError, match=r"must be 'minillm/folder/module\.py::symbol'"):
        build(project, path)


def test_comments_after_the_definition_stay_in_the_notebook(project, path, module, edit):
    write(edit, 13, "def top(text):\n    return []\n    # tried sorting first\n")
    build(project, path)
    build(project, path)
    assert module.read_text().count("return []") == 1
    assert "tried sorting" not in module.read_text()


def test_the_command(tool, project, edit, module):
    before = module.read_text()
    write(edit, 4, "LIMIT = 5")
    done = tool("build", "notebooks/01_pairs.ipynb")
    assert (done.returncode, done.stderr) == (0, "")
    assert "LIMIT: +1 −2 lines" in done.stdout
    assert "LIMIT = 5" in module.read_text()
    assert tool("build", "--undo").stdout == "minillm/layers/pairs.py: restored\n"
    assert module.read_text() == before
    done = tool("build")
    assert done.returncode == 1
    assert done.stderr.startswith("minillm.course: error: build needs a notebook")
    assert "Traceback" not in done.stderr


def test_an_installed_copy_is_refused(tool, project, edit):
    write(edit, 4, "LIMIT = 5")
    (project.root / "pyproject.toml").unlink()
    done = tool("build", "notebooks/01_pairs.ipynb")
    assert done.returncode == 1
    assert "installed as a copy" in done.stderr
    assert "pip install -e ." in done.stderr
    assert "LIMIT = 3" in (project.root / "minillm/layers/pairs.py").read_text()


def test_usage_errors_exit_with_2(project):
    with pytest.raises(SystemExit) as error:
        main(["--root", str(project.root), "polish"])
    assert error.value.code == 2
