"""Reads and edits Python text by symbol, without importing it."""

from __future__ import annotations

import ast
import builtins
import io
import symtable
import tokenize
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """The lines of one top-level symbol, comments directly above it and decorators included.

    Args:
        start: index of the first line, from 0.
        stop: index after the last line.
        text: the lines joined, without a newline at the end.
    """

    start: int
    stop: int
    text: str


def defined_names(node: ast.stmt) -> list[str]:
    """The names that one top-level `def`, `class` or assignment statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id] if node.value is not None else []
    return []


def segment(text: str, name: str) -> Segment:
    """Finds the one top-level definition of `name` in a module's or a cell's text.

    Raises:
        SyntaxError: the text does not parse.
        LookupError: `name` is not defined at the top level, or more than once.
    """
    body = ast.parse(text).body
    found = [node for node in body if name in defined_names(node)]
    if not found:
        raise LookupError(f"no top-level definition of {name!r}")
    if len(found) > 1:
        numbers = ", ".join(str(node.lineno) for node in found)
        raise LookupError(f"{name!r} is defined {len(found)} times (lines {numbers})")
    node = found[0]
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1
    stop = node.end_lineno or node.lineno
    lines = text.splitlines()
    for other in body:
        if other is not node and start < (other.end_lineno or 0) and other.lineno <= stop:
            raise LookupError(f"another statement shares a line with {name!r}")
    while start > 0 and lines[start - 1].startswith("#"):
        start -= 1
    return Segment(start, stop, "\n".join(lines[start:stop]))


def replace(text: str, name: str, new: str) -> str:
    """The module text with the segment of `name` replaced by `new`; all other lines stay."""
    old = segment(text, name)
    lines = text.splitlines(keepends=True)
    end = "\n" if lines[old.stop - 1].endswith("\n") else ""
    return "".join(lines[: old.start]) + new.rstrip("\n") + end + "".join(lines[old.stop :])


def public_names(text: str) -> list[str]:
    """The names in the module's `__all__`, which must be a literal list or tuple; none without."""
    for node in ast.parse(text).body:
        if "__all__" in defined_names(node):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def code_lines(text: str) -> int:
    """Counts the lines that hold code: no blank lines, no comments, no docstrings."""
    numbers: set[int] = set()
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            numbers.update(range(token.start[0], token.end[0] + 1))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            numbers.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(numbers)


def free_names(text: str) -> set[str]:
    """The names that a cell uses and neither defines itself nor finds among the builtins."""
    table = symtable.symtable(text, "cell", "exec")
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    used = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    pending = list(table.get_children())
    while pending:
        child = pending.pop()
        # In a function named `top`, symtable takes local names for global ones as well.
        used |= {
            s.get_name()
            for s in child.get_symbols()
            if s.is_global() and not s.is_local() and s.is_referenced()
        }
        pending += child.get_children()
    return used - bound - set(dir(builtins)) - {"__name__", "__file__", "__doc__"}


def without_annotations(text: str) -> str:
    """The text with annotations removed, for cells under `from __future__ import annotations`."""

    class Strip(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            node.annotation = None
            return node

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

        def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
            node.returns = None
            return self.generic_visit(node)

        def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
            node.annotation = ast.Constant("")
            return self.generic_visit(node)

    return ast.unparse(Strip().visit(ast.parse(text)))


def bound_names(text: str) -> set[str]:
    """The names that running a cell defines at the top level, imports included."""
    table = symtable.symtable(text, "cell", "exec")
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def imported_from(text: str) -> dict[str, str]:
    """Maps each name that `from module import name` binds, at any depth, to its module."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
        for alias in node.names
    }
