"""A small checkout of its own: a package with one teaching module, and one notebook."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from minillm.course.tool import notebook as nb
from minillm.course.tool.project import Project

PACKAGE = Path(__file__).parents[2] / "minillm"

MODULE = '''"""A module that a notebook builds."""

from collections import Counter
from functools import cache

__all__ = ["LIMIT", "count_pairs", "top"]

# More than this nobody reads.
LIMIT = 3


def _ordered(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda name: (-counts[name], name))


@cache
def count_pairs(text: str) -> Counter[str]:
    """Counts neighbours."""
    return Counter(a + b for a, b in zip(text, text[1:], strict=False))


def top(text: str) -> list[str]:
    """The most frequent pairs."""
    # Ties go by the alphabet.
    return _ordered(count_pairs(text))[:LIMIT]


def untouched() -> None:
    """Stands after the rest."""
'''

PYPROJECT = '[project]\nname = "minillm-course"\n[tool.minillm.course]\npending = []\n'


def markdown(text: str):
    return nbformat.v4.new_markdown_cell(text)


def code(text: str, **metadata):
    return nbformat.v4.new_code_cell(text, metadata=metadata)


def definition(symbol: str, module: str = "minillm/layers/pairs.py", call: str = ""):
    dotted = module.removesuffix(".py").replace("/", ".")
    return [
        markdown(f"Text.\n\n`{module} · {symbol}`"),
        code("", minillm={"source": f"{module}::{symbol}"}),
        code(f"from {dotted} import {symbol}\n\nsame_as_cell({call or symbol})"),
    ]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    layers = tmp_path / "minillm" / "layers"
    layers.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "minillm" / "__init__.py").write_text("")
    (layers / "__init__.py").write_text("")
    (layers / "pairs.py").write_text(MODULE)
    (tmp_path / "notebooks").mkdir()
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        markdown("# Pairs"),
        code(
            "from collections import Counter\nfrom functools import cache\n\n"
            "from minillm.course import same_as_cell"
        ),
        *definition("LIMIT", call='"minillm/layers/pairs.py::LIMIT"'),
        *definition("_ordered"),
        *definition("count_pairs"),
        *definition("top"),
        code('top("abab")'),
        markdown("## Summary\n\n## Exercises\n\n## References"),
    ]
    nbformat.write(notebook, tmp_path / "notebooks" / "01_pairs.ipynb")
    return Project(tmp_path)


@pytest.fixture
def path(project: Project) -> Path:
    return project.notebooks[0]


@pytest.fixture
def edit(path: Path) -> Callable[[Callable[[list[nb.Cell]], object]], None]:
    def change(function: Callable[[list[nb.Cell]], object]) -> None:
        notebook = nb.read(path)
        function(notebook["cells"])
        nb.write(path, nb.clean(notebook))

    return change


@pytest.fixture
def tool(project: Project) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `python -m minillm.course` of a checkout with its own copy of the course's tools."""
    shutil.copytree(PACKAGE / "course", project.root / "minillm" / "course")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(project.root)}
        command = [sys.executable, "-m", "minillm.course", *arguments]
        return subprocess.run(
            command, cwd=project.root, env=environment, capture_output=True, text=True, check=False
        )

    return call


@pytest.fixture
def words_of(monkeypatch) -> Callable[[Callable[[], None]], str]:
    """Draws one figure without showing it; returns its alternative text."""
    import matplotlib.pyplot as plt

    from minillm.course import plots

    def draw_one(draw: Callable[[], None]) -> str:
        shown = []
        monkeypatch.setattr(plots, "show", lambda fig, alt: shown.append((fig, alt)))
        draw()
        [(figure, alt)] = shown
        plt.close(figure)
        assert len(alt) > 50
        return alt

    return draw_one
