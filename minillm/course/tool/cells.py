"""Rules about definition cells: their text, what stands around them, and what they use."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.rules import Context, Problem
from minillm.course.tool.shape import DEFINITION_LIMIT, python
from minillm.course.tool.source import (
    bound_names,
    code_lines,
    free_names,
    imported_from,
    without_annotations,
)
from minillm.course.tool.sync import package_text


def definitions(context: Context) -> Iterator[Problem]:
    """All rules about the notebook's definition cells."""
    try:
        cells = list(nb.definitions(context.notebook))
    except ValueError as error:
        yield None, str(error)
        return
    for cell in cells:
        yield from ((cell.index, problem) for problem in _text(context, cell))
        yield from ((cell.index, problem) for problem in _surroundings(context, cell))
        if python(cell.text) is not None:
            yield from ((cell.index, problem) for problem in _names(context, cell))


def _text(context: Context, cell: nb.Definition) -> Iterator[str]:
    try:
        text = package_text(context.project, cell)
    except (LookupError, SyntaxError) as error:
        yield f"{cell.title}: {error.args[0]}"
        return
    if text != cell.text:
        lines = difflib.ndiff(text.splitlines(), cell.text.splitlines())
        first = next((line for line in lines if line[:2] in ("- ", "+ ")), "  (line ends)")
        side = "the package has" if first[0] == "-" else "the cell has"
        yield f"differs from {cell.title}: {side} {first[2:].strip()!r}; run sync or build"
    if (count := code_lines(text)) > DEFINITION_LIMIT:
        yield f"{cell.title}: {count} lines of code; at most {DEFINITION_LIMIT} allowed"


def _surroundings(context: Context, cell: nb.Definition) -> Iterator[str]:
    """The line above that names the place, and the import after."""
    cells = context.notebook["cells"]
    above = cells[cell.index - 1] if cell.index else {"cell_type": "", "source": ""}
    last = above["source"].rstrip().rpartition("\n")[2].strip().replace("`", "")
    if above["cell_type"] != "markdown" or last != cell.title:
        yield f"the Markdown above must end with the line `{cell.title}`"
    after = next((c for i, c in context.code if i > cell.index), None)
    text = python(after["source"]) if after else None
    if text is None or imported_from(text).get(cell.symbol) != cell.import_name:
        yield f"the next code cell must say `from {cell.import_name} import {cell.symbol}`"
    elif not _calls_same_as_cell(text, cell):
        yield f"the next code cell must call `same_as_cell({cell.symbol})`"


def _calls_same_as_cell(text: str, cell: nb.Definition) -> bool:
    wanted = {cell.symbol, repr(cell.source)}
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "same_as_cell"
        and any(ast.unparse(argument) in wanted for argument in node.args)
        for node in ast.walk(ast.parse(text))
    )


def _names(context: Context, cell: nb.Definition) -> Iterator[str]:
    """Free names are defined earlier, and what the package teaches was built earlier."""
    earlier = [python(c["source"]) or "" for i, c in context.code if i < cell.index]
    text = cell.text
    if any("from __future__ import annotations" in other for other in earlier):
        text = without_annotations(text)
    free = free_names(text)
    known: set[str] = set().union(*map(bound_names, earlier))
    for name in sorted(free - known):
        yield f"uses {name!r}, which no earlier cell defines"
    modules: dict[str, str] = {}
    for other in earlier:
        modules |= imported_from(other)
    for name in sorted(free & modules.keys()):
        source = _teaching_source(context, modules[name], name)
        if source is not None and not _built_before(context, source, cell):
            module = source.partition("::")[0]
            yield f"uses {name!r} of {module}, which is not built before this cell"


def _teaching_source(context: Context, module: str, name: str) -> str | None:
    """The source of a teaching symbol, also where a package above its module re-exports it."""
    prefix = module.replace(".", "/")
    for path, names in context.taught.items():
        if name in names and Path(path).with_suffix("").as_posix().startswith(prefix):
            return f"{path}::{name}"
    return None


def _built_before(context: Context, source: str, cell: nb.Definition) -> bool:
    here = (context.project.name(context.path), cell.index)
    places = context.built.get(source, [])
    own = [(here[0], c.index) for c in nb.definitions(context.notebook) if c.source == source]
    return any(place < here for place in [*places, *own])
