"""The files of this checkout, for tests that work on a copy of it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def listed(*options: str) -> list[Path]:
    """What `git ls-files` names and is there, relative to the root; skips where there is no git."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", *options]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in names.split("\0") if name and (ROOT / name).is_file()]


def copy_files(target: Path) -> None:
    """Copy the files of this working tree, but for those that git ignores."""
    for name in listed("-co", "--exclude-standard"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
