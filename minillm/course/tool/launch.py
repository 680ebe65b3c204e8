"""Where the course can be opened: the links under each notebook's title, and the steps in Colab.

The repository's address stands once, in pyproject.toml under `[project.urls] Repository`. A fork
changes it there and runs `python -m minillm.course sync`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.project import Project, write_atomic

START = "Open in [Binder]("


def repository(project: Project) -> str:
    """`owner/name` on GitHub; empty where the project names no repository.

    Raises:
        ValueError: the address is not `https://github.com/owner/name`.
    """
    file = project.root / "pyproject.toml"
    settings = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    address = str(settings.get("project", {}).get("urls", {}).get("Repository", ""))
    if address and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise ValueError(
            f"[project.urls] Repository is {address!r}; https://github.com/owner/name is needed"
        )
    return address.removeprefix("https://github.com/").removesuffix(".git")


def launch_line(project: Project, path: Path) -> str:
    """The line for one notebook; empty where the project names no repository."""
    name, notebook = repository(project), f"notebooks/{path.name}"
    binder = f"https://mybinder.org/v2/gh/{name}/HEAD?urlpath=lab/tree/{notebook}"
    colab = f"https://colab.research.google.com/github/{name}/blob/main/{notebook}"
    steps = f"https://github.com/{name}/blob/main/notebooks/README.md#in-colab"
    line = (
        f"{START}{binder}) or [Colab]({colab}) ([first steps there]({steps})), or from a checkout "
        "with `make lab`. Terms: [glossary](glossary.md)."
    )
    return line if name else ""


def path_page(project: Project, *, write: bool = False) -> str:
    """Whether notebooks/README.md clones another repository than the project's.

    write: put it right. Returns what is wrong, or was; empty where all is well.
    """
    page, name = project.root / "notebooks" / "README.md", repository(project)
    if not page.is_file() or not name:
        return ""
    text = page.read_text(encoding="utf-8")
    new = re.sub(r"(git clone \S.*https://github\.com/)[\w.-]+/[\w.-]+", rf"\g<1>{name}", text)
    if new == text:
        return ""
    if write:
        write_atomic(page, new)
    return "notebooks/README.md: its `git clone` line names another repository"


def with_launch_line(notebook: nb.Notebook, line: str) -> bool:
    """Writes the line under the title, in place of an old one. Returns whether it changed."""
    first = notebook["cells"][0]
    title, *rest = str(first["source"]).split("\n\n")
    rest = [paragraph for paragraph in rest if not paragraph.startswith(START)]
    text = "\n\n".join([title, *([line] if line else []), *rest])
    changed = bool(text != first["source"])
    first["source"] = text
    return changed
