"""The learner's path: a package without its functions, and notebooks that give them back.

In a copy of the project the bodies that a notebook teaches are emptied, in the package and in the
notebook. Then the definition cells are filled in one after another, as a learner would, and `build`
writes them into the package. It must be the original again, to the letter.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minillm.course.tool import notebook as nb
from minillm.course.tool.build import build, undo
from minillm.course.tool.project import Project
from minillm.course.tool.source import segment
from tests.checkout import copy_files

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Project(ROOT)
PARTS = [
    pytest.param(path.name, module, id=f"{path.stem}-{Path(module).stem}")
    for path in PROJECT.notebooks
    for module in sorted({cell.module for cell in nb.definitions(nb.read(path))})
]
ATTENTION = "minillm/layers/attention.py"
ATTENTION_NOTEBOOK = "03_attention.ipynb"


def emptied(text: str) -> str:
    """The text with each function's and method's body replaced; docstrings and all else stay."""
    lines = text.splitlines(keepends=True)
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inner = {id(n) for f in functions for n in ast.walk(f) if n is not f}
    for function in sorted(functions, key=lambda f: f.lineno, reverse=True):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if id(function) in inner or not body:  # goes with the function around it, or has only words
            continue
        first, last = body[0], body[-1].end_lineno or 0
        decorators = getattr(first, "decorator_list", [])
        start = min([first.lineno, *(d.lineno for d in decorators)]) - 1
        indent = lines[start][: first.col_offset]
        if not indent.strip():  # `def f(): ...` on one line has nothing to lose
            end = "\n" if lines[last - 1].endswith("\n") else ""
            lines[start:last] = [f"{indent}raise NotImplementedError{end}"]
    return "".join(lines)


@pytest.fixture
def copy(tmp_path: Path) -> Project:
    """The files of this working tree, but for those that git ignores."""
    copy_files(tmp_path)
    return Project(tmp_path)


def python(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the copy, whose package comes before the installed one."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(project.root)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
    )


def empty_cells(path: Path, module: str) -> list[tuple[int, str]]:
    """Empties the notebook's definition cells of a module; returns their indices and texts."""
    notebook = nb.read(path)
    cells = [cell for cell in nb.definitions(notebook) if cell.module == module]
    for cell in cells:
        notebook["cells"][cell.index]["source"] = emptied(cell.text)
    nb.write(path, notebook)
    return [(cell.index, cell.text) for cell in cells]


def fill_in(path: Path, texts: list[tuple[int, str]]) -> None:
    notebook = nb.read(path)
    for index, text in texts:
        notebook["cells"][index]["source"] = text
    nb.write(path, notebook)


@pytest.mark.parametrize(("name", "module"), PARTS)
def test_a_notebook_gives_back_its_part_of_the_package(copy, name, module):
    file, path = copy.root / module, copy.root / "notebooks" / name
    original = file.read_text()
    texts = empty_cells(path, module)
    hollow = original
    for cell in nb.definitions(nb.read(path)):
        if cell.module == module:
            old = segment(hollow, cell.symbol)
            hollow = hollow.replace(old.text, cell.text)
    file.write_text(hollow)

    assert "nothing to build" in build(copy, path)[0]
    fill_in(path, texts)
    lines = build(copy, path)
    assert file.read_text() == original
    if hollow != original:  # a module of constants has no bodies to lose
        assert "Restart the kernel" in lines[-1]
        undo(copy)
        assert file.read_text() == hollow


@pytest.mark.slow
@pytest.mark.skipif(
    not (ROOT / "notebooks" / ATTENTION_NOTEBOOK).exists(), reason="notebook 03 is still to come"
)
def test_attention_from_nothing(copy, smollm2):
    """Every body of the module is gone; afterwards its tests pass and the real model answers."""
    file, path = copy.root / ATTENTION, copy.root / "notebooks" / ATTENTION_NOTEBOOK
    original = file.read_text()
    texts = empty_cells(path, ATTENTION)
    file.write_text(emptied(original))
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/layers/test_attention.py")
    generate = (
        "-m",
        "minillm",
        "generate",
        "--max-new-tokens",
        "8",
        "--",
        "The capital of France",
    )

    broken = python(copy, *tests)
    assert broken.returncode == 1, broken.stdout
    assert "NotImplementedError" in broken.stdout
    assert python(copy, *generate).returncode != 0

    for index, text in texts:  # one cell at a time, building after each
        fill_in(path, [(index, text)])
        done = python(copy, "-m", "minillm.course", "build", f"notebooks/{ATTENTION_NOTEBOOK}")
        assert (done.returncode, done.stderr) == (0, "")
    assert file.read_text() == original
    assert "differs" not in python(copy, "-m", "minillm.course", "check", str(path)).stdout

    passed = python(copy, *tests)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    answer = python(copy, *generate)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    where = python(copy, "-c", "import minillm.layers.attention as a; print(a.__file__)")
    assert where.stdout.strip() == str(file)
