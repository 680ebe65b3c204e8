"""The tensors of damaged files, read by the letter of the format and by nothing of minillm.

`WrongError` says what breaks the format: whoever loads such a file has not looked.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4}


class WrongError(Exception):
    """A file that breaks its format, or a model that is not what its file says."""


class Stored(NamedTuple):
    """A tensor in a file: type, shape (rows first) and bytes."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


def difference(before: dict[str, Stored], after: dict[str, Stored]) -> str:
    """What distinguishes two tables of tensors."""
    if before.keys() != after.keys():
        return "other tensors"
    if any(before[name].shape != after[name].shape for name in before):
        return "tensors of other shapes"
    if any(before[name].kind != after[name].kind for name in before):
        return "tensors of other types"
    return "the same tensors" if before == after else "the same tensors with other values"


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON in which no key stands twice."""
    if len(dict(pairs)) < len(pairs):
        raise WrongError(f"a key stands twice among {[key for key, _ in pairs][:5]}")
    return dict(pairs)


def folder_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a Hugging Face folder, found by its index where it has one."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return file_tensors(folder / "model.safetensors")
    placed = json.loads(index.read_bytes(), object_pairs_hook=unique)["weight_map"]
    found: dict[str, Stored] = {}
    for shard in sorted(set(placed.values())):
        for name, tensor in file_tensors(folder / shard).items():
            if placed.get(name) != shard:
                raise WrongError(f"{name} is in {shard}, the index says {placed.get(name)}")
            found[name] = tensor
    if lacking := placed.keys() - found.keys():
        raise WrongError(f"the index promises {sorted(lacking)[:3]}, which no shard holds")
    return found


def file_tensors(path: Path) -> dict[str, Stored]:
    """Every tensor of a safetensors file, whose ranges must cover its data, each byte once."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start], object_pairs_hook=unique)
    header.pop("__metadata__", None)
    found = {}
    expected = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = [*shape, begin, end]
        if not all(type(number) is int and number >= 0 for number in whole):
            raise WrongError(f"{name} has the shape {shape} at {begin} to {end}")
        if kind not in SIZES or end - begin != math.prod(shape) * SIZES[kind]:
            raise WrongError(f"{name} is {kind} {shape} in {end - begin} bytes")
        if begin != expected or start + end > len(content):
            raise WrongError(f"{name} begins at {begin}, the one before ends at {expected}")
        expected = end
        found[name] = Stored(kind, tuple(shape), content[start + begin : start + end])
    if start + expected != len(content):
        raise WrongError(f"{len(content) - start - expected} bytes belong to no tensor")
    return found
