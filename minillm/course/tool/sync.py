"""`sync`: writes the package's text into the definition cells."""

from __future__ import annotations

from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.launch import launch_line, with_launch_line
from minillm.course.tool.project import Project
from minillm.course.tool.source import segment


def package_text(project: Project, cell: nb.Definition) -> str:
    """The package's text of the symbol that the cell stands for.

    Raises:
        LookupError: no such module or symbol.
    """
    return segment(project.module(cell.module).read_text(encoding="utf-8"), cell.symbol).text


def sync(project: Project, path: Path) -> list[str]:
    """Brings the definition cells of one notebook in step with the package, and its links.

    Returns:
        One line per cell that changed.
    """
    notebook = nb.read(path)
    lines = []
    if with_launch_line(notebook, launch_line(project, path)):
        lines.append(f"{project.name(path)}: cell 1: launch links updated")
    for cell in nb.definitions(notebook):
        text = package_text(project, cell)
        if text != cell.text:
            notebook["cells"][cell.index]["source"] = text
            lines.append(f"{project.name(path)}: cell {cell.index + 1}: {cell.title} updated")
    if lines:
        nb.write(path, nb.clean(notebook))
    return lines
