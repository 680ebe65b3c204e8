"""The line of links under each notebook's title: where it can be opened.

The repository's address stands once, in pyproject.toml under `[project.urls] Repository`. A fork
changes it there and runs `python -m minillm.course sync`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from minillm.course.tool import notebook as nb
from minillm.course.tool.project import Project

START = "Open in [Binder]("


def launch_line(project: Project, path: Path) -> str:
    """The line for one notebook; empty where the project names no repository on GitHub.

    Raises:
        ValueError: the address is not `https://github.com/owner/name`.
    """
    file = project.root / "pyproject.toml"
    settings = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    address = str(settings.get("project", {}).get("urls", {}).get("Repository", ""))
    if not address:
        return ""
    owner_and_name = address.removeprefix("https://github.com/").removesuffix(".git").strip("/")
    if not address.startswith("https://github.com/") or owner_and_name.count("/") != 1:
        raise ValueError(
            f"[project.urls] Repository is {address!r}; https://github.com/owner/name is needed"
        )
    notebook = f"notebooks/{path.name}"
    binder = f"https://mybinder.org/v2/gh/{owner_and_name}/HEAD?urlpath=lab/tree/{notebook}"
    colab = f"https://colab.research.google.com/github/{owner_and_name}/blob/main/{notebook}"
    setup = f"https://github.com/{owner_and_name}/blob/main/notebooks/README.md#in-colab"
    return (
        f"{START}{binder}) or [Colab]({colab}) ([first steps there]({setup})), or from a checkout "
        "with `make lab`. Terms: [glossary](glossary.md)."
    )


def with_launch_line(notebook: nb.Notebook, line: str) -> bool:
    """Writes the line under the title, in place of an old one. Returns whether it changed."""
    first = notebook["cells"][0]
    title, *rest = str(first["source"]).split("\n\n")
    rest = [paragraph for paragraph in rest if not paragraph.startswith(START)]
    text = "\n\n".join([title, *([line] if line else []), *rest])
    changed = bool(text != first["source"])
    first["source"] = text
    return changed
