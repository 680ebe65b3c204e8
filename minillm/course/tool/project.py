"""Where things are: the repository, its package, its notebooks, its settings."""

from __future__ import annotations

import os
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = "minillm-course"


@dataclass(frozen=True, slots=True)
class Project:
    """A checkout of the course: `root` holds `minillm/`, `notebooks/` and `pyproject.toml`."""

    root: Path

    @classmethod
    def of_package(cls) -> Project:
        """The checkout that the running `minillm` belongs to.

        Raises:
            ValueError: the package is an installed copy, so that edits to it would be lost.
        """
        package = Path(__file__).resolve().parents[2]
        pyproject = package.parent / "pyproject.toml"
        if pyproject.is_file():
            name = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
            if name.get("name") == DISTRIBUTION:
                return cls(package.parent)
        raise ValueError(
            f"minillm is installed as a copy in {package.parent}, not from a checkout: "
            "run `make setup`, or `pip install -e .` in the repository's root"
        )

    @property
    def notebooks(self) -> list[Path]:
        """The notebooks in order of their numbers."""
        return sorted((self.root / "notebooks").glob("[0-9][0-9]_*.ipynb"))

    @property
    def modules(self) -> list[Path]:
        """Every module of the package."""
        return sorted((self.root / "minillm").rglob("*.py"))

    @property
    def pending(self) -> list[str]:
        """`[tool.minillm.course] pending`: modules whose notebook is still to come."""
        path = self.root / "pyproject.toml"
        settings = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        course = settings.get("tool", {}).get("minillm", {}).get("course", {})
        return [str(module) for module in course.get("pending", [])]

    def name(self, path: Path) -> str:
        """The path as problems and messages print it: relative to the root, with slashes."""
        try:
            return path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            return path.as_posix()

    def module(self, path: str) -> Path:
        """The file of `minillm/layers/attention.py`.

        Raises:
            LookupError: no such file inside the package.
        """
        file = (self.root / path).resolve()
        if not file.is_file() or not file.is_relative_to((self.root / "minillm").resolve()):
            raise LookupError(f"no module {path!r} in the package")
        return file


def write_atomic(path: Path, text: str) -> None:
    """Writes the file in one step: a reader sees the old text or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
