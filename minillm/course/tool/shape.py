"""A notebook's shape: how long it is, in cells, words, lines of code, figures and exercises."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.launch import START
from minillm.course.tool.source import code_lines

# Lines of code are those of all code cells: definition cells and folded solutions count as well,
# docstrings, comments and blank lines do not, nor does the `same_as_cell(…)` that has to follow
# each definition.
LIMITS = {
    "cells": (60, 110),
    "words": (1800, 3200),
    "lines of code": (0, 400),
    "figures": (0, 8),
    "exercises": (4, 99),
}
DEFINITION_LIMIT = 60
HEADINGS = ("Summary", "Exercises", "References")
MAGICS = {"%matplotlib inline"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The counts of one notebook, by the names in `LIMITS`."""

    counts: dict[str, int]

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.counts.items())

    def problems(self) -> Iterator[str]:
        """What lies outside the limits."""
        for name, (low, high) in LIMITS.items():
            if not low <= self.counts[name] <= high:
                limits = f"{low:,} to {high:,}" if low else f"at most {high:,}"
                if high == 99:
                    limits = f"at least {low}"
                yield f"{self.counts[name]:,} {name}; {limits} allowed"


def shape(notebook: nb.Notebook) -> Shape:
    """Counts one notebook's cells, words and so on."""
    code = [python(cell["source"]) for _, cell in nb.code_cells(notebook)]
    markdown = [c["source"] for c in notebook["cells"] if c["cell_type"] == "markdown"]
    figures = sum(
        "image/png" in output.get("data", {})
        for _, cell in nb.code_cells(notebook)
        for output in cell["outputs"]
    )
    return Shape(
        {
            "cells": len(notebook["cells"]),
            "words": sum(map(words, markdown)),
            "lines of code": sum(
                code_lines(re.sub(r"^same_as_cell\(.*\)$", "", text, flags=re.MULTILINE))
                for text in code
                if text is not None
            ),
            "figures": figures,
            "exercises": len({name for text in code for name in checked(text or "")}),
        }
    )


def words(markdown: str) -> int:
    """The words a reader reads: no code blocks, no HTML tags, no link targets, no launch links."""
    text = re.sub(rf"^{re.escape(START)}.*$", " ", markdown, flags=re.MULTILINE)
    text = re.sub(r"```.*?(```|\Z)", " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|<[^>]+>|https?://\S+", " ", text)
    return sum(any(character.isalnum() for character in word) for word in text.split())


def checked(text: str) -> list[str]:
    """The names of the exercises that a cell checks."""
    return [
        str(node.args[0].value)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "check"
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def python(source: str) -> str | None:
    """A cell's Python with allowed magics taken out; `None` when it still does not parse."""
    text = "\n".join("" if line.strip() in MAGICS else line for line in source.split("\n"))
    try:
        ast.parse(text)
    except SyntaxError:
        return None
    return text


def exercise_names(checks: Path) -> set[str]:
    """The keys of `EXERCISES` in a `checks/nbNN.py`, read without importing it."""
    if not checks.is_file():
        return set()
    for node in ast.walk(ast.parse(checks.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "EXERCISES" for t in targets):
                keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
                return {key for key in keys if isinstance(key, str)}
    return set()
