"""Values that a file can hold and no field expects, and how the damage is read and written."""

import json
import os
import random
from pathlib import Path
from typing import Any

HOSTILE: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    0.5,
    -0.0,
    2**31 - 1,
    2**31,
    2**63,
    10**30,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "8",
    "llama",
    "\x00",
    "\ud800",
    "🌶" * 100,
    [],
    [1],
    [None],
    [[[]]],
    ["a", "b"],
    {},
    {"a": 1},
    10**400,
    "x" * 100_000,
    list(range(5_000)),
    json.loads("[" * 400 + "1" + "]" * 400),
    {"rope_type": "yarn", "factor": 2},
]


def near(old: object) -> list[Any]:
    """Values beside a number: what a typing error or another version of a program would write."""
    if isinstance(old, bool):
        return [not old, int(old), str(old).lower()]
    if not isinstance(old, int | float):
        return []
    small = min(old, 10**9)
    return [old + 1, old - 1, old * 2, -old, float(small), [old], small / 2, str(small)]


def flip(path: Path, data: bytearray, places: list[int], rng: random.Random) -> str:
    """Flip one bit at each of the places, and write the file."""
    for place in places:
        if place < len(data):
            data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    return f"{len(places)} bits of {path.name} flipped"


def read(path: Path) -> bytes:
    """What is in a file; nothing, and room for one, where something else stands."""
    try:
        return path.read_bytes()
    except OSError:
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            os.rmdir(path)
        return b""


def read_json(path: Path) -> Any:
    """The document in a JSON file; None where it is none any more."""
    try:
        return json.loads(read(path))
    except (ValueError, RecursionError):
        return None


def write_json(path: Path, document: Any, rng: random.Random) -> None:
    """Write a document, in one of two spellings of what is not ASCII."""
    read(path)  # makes room where a folder or a broken link stands
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def show(value: object) -> str:
    """A value in a few words."""
    text = ascii(value)
    return text if len(text) <= 90 else f"{text[:90]}… ({len(text)} characters)"
