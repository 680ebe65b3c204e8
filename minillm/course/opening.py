"""Models beside other models: opened without what their opening leaves in memory."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minillm.llm import LLM
from minillm.quantization.memory import trim

MADV_DONTNEED = 4  # Linux's number for it
# A map's first line in /proc/self/smaps: addresses, rights, offset, device, inode, path.
MAP = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ +(.*)")


def open_or_say(what: str, **options: Any) -> LLM | None:
    """SmolLM2; None, with a printed line, where `LLM.from_pretrained` refuses these options.

    what: how the line begins. The pages of the GGUF file, of which an engine makes a copy of its
    own, count as memory of this process no longer.
    """
    trim()  # or what was freed before would count on top of the model
    try:
        llm = LLM.from_pretrained("smollm2", **options)
    except ValueError as reason:
        print(f"{what}: {reason}")
        return None
    if llm.source is not None and llm.source.gguf is not None:
        let_go(llm.source.gguf)
    return llm


def let_go(path: Path) -> None:
    """Take a file's pages out of this process; whoever reads one again gets it from the file.

    For a file that was read once, to make something else of it. A map that was written to is left
    alone: its pages are no longer the file's. Does nothing where the system is not Linux.
    """
    for start, stop in _unchanged_maps(path):
        pages = ctypes.c_void_p(start), ctypes.c_size_t(stop - start)
        ctypes.CDLL(None).madvise(*pages, MADV_DONTNEED)


def _unchanged_maps(path: Path) -> Iterator[tuple[int, int]]:
    """Begin and end of each map of the file in which no page was written to."""
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    wanted, place = str(path.resolve()), None
    for line in lines:
        if found := MAP.fullmatch(line):
            start, stop, mapped = found.groups()
            place = (int(start, 16), int(stop, 16)) if mapped == wanted else None
        elif place and line.split() == ["Anonymous:", "0", "kB"]:
            yield place
