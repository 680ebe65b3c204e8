"""Fetch a model by name into the user's cache, and find it there.

A pull works in a hidden folder beside its target and renames it as the last step, so a model folder
is either whole or absent. A lock lets one process at a time work on a model. `origin.json` in the
folder says where the files came from, how large each one is, and its SHA-256.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from minillm.weights.hub import fetch_gguf, fetch_repository, find_gguf
from minillm.weights.hub_names import choose_gguf
from minillm.weights.progress import copy_and_hash, progress
from minillm.weights.wheel import KNOWN, build_from_wheel

ORIGIN_FILE = "origin.json"
# A new number makes `pull` redo folders that an older version wrote (without a new download, where
# the GGUF file is kept in them).
FORMAT = 1
# Files up to this size are verified by hash at every pull, larger ones where that is asked for: a
# gigabyte takes one to two seconds.
SMALL = 8_000_000

# Letters, digits and . _ - in both parts. The hub forbids "--" and "..", so that the folder name
# owner--name can stand for one repository only.
PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
REPOSITORY = re.compile(rf"(?!.*(?:--|\.\.)){PART}/{PART}")
# A GGUF file of a repository, or the end of its name without .gguf: owner/name:Q4_K_M.
GGUF = re.compile(rf"({REPOSITORY.pattern}):([A-Za-z0-9_][A-Za-z0-9_.+-]{{0,199}})")
ALLOWED = (
    f"{', '.join(KNOWN)}, owner/name for a repository on the Hugging Face hub, and owner/name:FILE "
    "for a GGUF file of one"
)


def home() -> Path:
    """The folder of everything that minillm keeps: $MINILLM_HOME, else the user's cache folder."""
    if folder := os.environ.get("MINILLM_HOME"):
        return Path(folder).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("minillm", appauthor=False)


def resolve(name: str | Path) -> Path:
    """The folder or the GGUF file of a model, without ever using the network.

    Args: `name`, a known name ("smollm2"), the path of a folder or of a .gguf file, or what was
        pulled from the hub: "owner/name", "owner/name:FILE". A known name wins over a folder of
        that name ("./smollm2" is the folder), a path over a repository.
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
        if isinstance(name, Path) or not _can_be_pulled(name):
            raise FileNotFoundError(
                f"{str(name)!r} is neither a folder, nor a .gguf file, nor a known model "
                f"({', '.join(KNOWN)}); `minillm pull NAME` fetches a known model or an "
                "owner/name from the Hugging Face hub"
            )
    place = _find(str(name))
    if place is None or not place.folder.exists():
        raise FileNotFoundError(
            f"the model {str(name)!r} is not on this machine yet: run `minillm pull {name}` "
            f"(known models: {', '.join(KNOWN)})"
        )
    if damage := _damage(place.folder):
        raise ValueError(f"{place.folder}: {damage}; run `minillm pull {name}` to repair it")
    return place.model


def pull(name: str, *, quiet: bool = False, verify: bool = False) -> Path:
    """Fetch a model over the network, unless a whole copy is there; return its folder or file.

    Safe to interrupt, to repeat and to run twice at once: the second one waits for the first.

    Args: `name`, a known name ("smollm2"), a repository "owner/name" on the Hugging Face hub, or
        "owner/name:FILE" for a GGUF file of one, by its name or the end of it ("Q4_K_M").
        `quiet` turns off progress, which goes to stderr. `verify` compares every byte of a copy
        that is there; else large files are compared by their size.
    Raises: ValueError for a name that cannot be one, or content that is not what it must be;
        OSError (ConnectionError, FileNotFoundError, PermissionError) for what could not be had.
    """
    if not _can_be_pulled(name):
        raise ValueError(f"{name!r} cannot be pulled; allowed are {ALLOWED}")
    place = _find(name)
    if place is None:
        repository, tag = name.split(":")
        place = _gguf_place(repository, find_gguf(repository, tag))
    folder, hash_up_to = place.folder, sys.maxsize if verify else SMALL
    if _damage(folder, hash_up_to, quiet) is None:
        return place.model
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder, quiet):
        if _damage(folder, hash_up_to, quiet) is None:  # another process was faster
            return place.model
        _remove_stale(folder)
        part = _beside(folder, "part")
        part.mkdir(exist_ok=True)
        if name in KNOWN:
            origin = build_from_wheel(KNOWN[name], part, rescue=folder, quiet=quiet)
        elif place.model != folder:
            repository, _, _ = name.partition(":")
            origin = fetch_gguf(repository, place.model.name, part, rescue=folder, quiet=quiet)
        else:
            origin = fetch_repository(name, part, rescue=folder, quiet=quiet)
        _install(part, folder, origin, quiet)
    return place.model


class Place(NamedTuple):
    """Where a pulled model is kept, and what opens it: that folder, or a GGUF file in it."""

    folder: Path
    model: Path


def _can_be_pulled(name: str) -> bool:
    return name in KNOWN or bool(REPOSITORY.fullmatch(name) or GGUF.fullmatch(name))


def _folder(name: str) -> Path:
    return home() / "models" / name.replace("/", "--")


def _gguf_place(repository: str, file_name: str) -> Place:
    folder = _folder(f"{repository}/{file_name}")
    return Place(folder, folder / file_name)


def _find(name: str) -> Place | None:
    """The place of a model; None for a GGUF file of which only the hub could tell the name."""
    repository, colon, tag = name.partition(":")
    if not colon:
        return Place(_folder(name), _folder(name))
    beginning = _folder(f"{repository}/").name
    kept = [path.name for path in (home() / "models").glob(f"{beginning}*")]
    found = choose_gguf(repository, [name.removeprefix(beginning) for name in kept], tag)
    return None if found is None else _gguf_place(repository, found)


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


def _install(part: Path, folder: Path, origin: dict[str, Any], quiet: bool) -> None:
    """Describe the finished folder in origin.json, then put it in its place in one step."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path, quiet)}
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


def _damage(folder: Path, hash_up_to: int = -1, quiet: bool = True) -> str | None:
    """What is wrong with a pulled folder by its origin.json; None where nothing is.

    Compares sizes, which takes well under a millisecond, and the content of files of at most
    `hash_up_to` bytes.
    """
    try:
        origin = json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8"))
        if origin["format"] != FORMAT:
            return f"written by another version of minillm (format {origin['format']!r})"
        for name, facts in origin["files"].items():
            path = folder / name
            if path.stat().st_size != facts["bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes instead of {facts['bytes']:,}"
            if facts["bytes"] <= hash_up_to and _sha256(path, quiet) != facts.get("sha256"):
                return f"{name} was changed"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"incomplete ({error})"
    return None


def _sha256(path: Path, quiet: bool) -> str:
    size = path.stat().st_size
    with (
        path.open("rb") as file,
        progress(f"hash {path.name}", size, quiet or size <= SMALL) as bar,
    ):
        return copy_and_hash(file, None, bar)
