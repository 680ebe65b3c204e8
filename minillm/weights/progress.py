"""Bars on stderr, and a copy that computes a hash on the way."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

# Bytes of a model of which the loading takes seconds. A smaller one needs no bar.
LARGE = 2_000_000_000


@contextmanager
def progress(what: str, total: int | None, quiet: bool) -> "Iterator[tqdm[Any]]":
    """A bar on stderr that counts bytes."""
    from tqdm import tqdm

    bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, disable=quiet, leave=False)
    with bar:
        yield bar


@contextmanager
def load_progress(total: int) -> Iterator[Callable[[int], object]]:
    """A bar on stderr for loading `total` bytes, where that takes long and somebody looks.

    Yields what is to be called with the number of bytes that each step brought.
    """
    if total < LARGE or not sys.stderr.isatty():
        yield lambda count: None
        return
    with progress("load", total, quiet=False) as bar:
        yield bar.update


def copy_and_hash(
    source: IO[bytes], target: IO[bytes] | None, bar: Any, most: int | None = None
) -> str:
    """SHA-256 of the rest of `source`, which is copied to `target` where there is one.

    Reads little more than `most` bytes, whatever a hostile archive expands to.
    """
    digest, count = hashlib.sha256(), 0
    while block := source.read(1 << 20):
        digest.update(block)
        if target is not None:
            target.write(block)
        bar.update(len(block))
        count += len(block)
        if most is not None and count > most:
            break
    return digest.hexdigest()
