"""`build`: writes a learner's edited definition cells into the package, and takes that back."""

from __future__ import annotations

import ast
import difflib
import json
from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.project import Project, write_atomic
from minillm.course.tool.source import defined_names, replace, segment

FOLDER = ".minillm-build"


def build(project: Project, path: Path) -> list[str]:
    """Replaces each symbol whose cell differs from the package; all other text stays.

    Nothing is written unless every cell can be. The former texts are kept for `undo`.

    Returns:
        One line per symbol that changed, and what to do next.

    Raises:
        ValueError: a cell does not parse, defines something else as well, or not its symbol.
        LookupError: the package has no such module or symbol.
    """
    before: dict[Path, str] = {}
    after: dict[Path, str] = {}
    lines = []
    for cell in nb.definitions(nb.read(path)):
        where = f"{project.name(path)}: cell {cell.index + 1}"
        new = _learners_text(cell, where)
        try:
            file = project.module(cell.module)
            text = after.get(file) or file.read_text(encoding="utf-8")
            old = segment(text, cell.symbol).text
        except LookupError as error:
            raise LookupError(f"{where}: {error.args[0]}") from error
        if new != old:
            before.setdefault(file, text)
            after[file] = replace(text, cell.symbol, new)
            ast.parse(after[file])
            lines.append(f"{cell.title}: {_summary(old, new)}")
    if not lines:
        return [f"{project.name(path)}: nothing to build, its cells and the package agree"]
    _keep(project, {file: (before[file], after[file]) for file in after})
    for file, text in after.items():
        write_atomic(file, text)
    return [
        *lines,
        "Restart the kernel to use it. `python -m minillm.course build --undo` takes it back.",
    ]


def undo(project: Project) -> list[str]:
    """Restores the texts from before the last build.

    Raises:
        ValueError: there is no build to take back, or a file was edited since.
    """
    stack = _read_stack(project)
    if not stack:
        raise ValueError("no build to take back")
    files = stack[-1]
    for name, (_, after) in files.items():
        file = project.root / name
        if not file.is_file() or file.read_text(encoding="utf-8") != after:
            raise ValueError(f"{name} was edited since the build: nothing was restored")
    for name, (before, _) in files.items():
        write_atomic(project.root / name, before)
    _write_stack(project, stack[:-1])
    return [f"{name}: restored" for name in files]


def _learners_text(cell: nb.Definition, where: str) -> str:
    try:
        body = ast.parse(cell.text).body
    except SyntaxError as error:
        raise ValueError(f"{where}: does not parse: line {error.lineno}: {error.msg}") from error
    names = [name for node in body for name in defined_names(node)]
    if len(body) != 1 or names != [cell.symbol]:
        found = ", ".join(names) or "none"
        raise ValueError(
            f"{where}: must define {cell.symbol!r} and nothing else "
            f"(found {len(body)} statements, names: {found}); experiment in a cell of its own"
        )
    return segment(cell.text, cell.symbol).text


def _summary(old: str, new: str) -> str:
    marks = [line[:2] for line in difflib.ndiff(old.splitlines(), new.splitlines())]
    return f"+{marks.count('+ ')} −{marks.count('- ')} lines"


# The stack of builds: for each a map of file name to (text before, text after).
Stack = list[dict[str, tuple[str, str]]]


def _keep(project: Project, files: dict[Path, tuple[str, str]]) -> None:
    stack = _read_stack(project)
    stack.append({project.name(file): texts for file, texts in files.items()})
    _write_stack(project, stack)


def _read_stack(project: Project) -> Stack:
    path = project.root / FOLDER / "undo.json"
    if not path.is_file():
        return []
    stored = json.loads(path.read_text(encoding="utf-8"))
    return [{name: (texts[0], texts[1]) for name, texts in files.items()} for files in stored]


def _write_stack(project: Project, stack: Stack) -> None:
    folder = project.root / FOLDER
    folder.mkdir(exist_ok=True)
    write_atomic(folder / ".gitignore", "*\n")
    write_atomic(folder / "undo.json", json.dumps(stack, ensure_ascii=False, indent=1) + "\n")
