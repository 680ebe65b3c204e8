"""Compares two values and names the first place where they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from numbers import Number
from typing import Any

WIDTH = 160
NUMBERS = 16


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two values differ: an index such as `[2]["key"]`, or `""`."""

    index: str
    expected: str
    found: str


def brief(value: Any) -> str:
    """The value's text on one line, shortened in the middle; of a large array the shape."""
    if _is_array(value) and math.prod(value.shape) > NUMBERS:
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    text = " ".join(repr(value).split())
    half = WIDTH // 2 - 2
    return text if len(text) <= WIDTH else f"{text[:half]} … {text[-half:]}"


def compare(
    expected: Any, found: Any, tolerance: float = 1e-6, index: str = ""
) -> Difference | None:
    """The first difference, or `None` where both say the same.

    Numbers agree when they differ by at most `tolerance` times the larger one (or times the
    largest magnitude in an array); whole numbers must be equal unless the tolerance is above
    1e-6. A list agrees with a tuple of the same items, and NaN with NaN.
    """
    if _is_array(expected):
        return _compare_arrays(expected, found, tolerance, index)
    if isinstance(expected, str | bytes | bool) or expected is None:
        found = _item(found)
        same = type(expected) is type(found) and expected == found
        return None if same else _difference(index, expected, found)
    if isinstance(expected, Number):
        return _compare_numbers(expected, _item(found), tolerance, index)
    if isinstance(expected, Mapping):
        return _compare_mappings(expected, found, tolerance, index)
    if isinstance(expected, Set):
        same = isinstance(found, Set) and expected == found
        return None if same else _difference(index, expected, found)
    if isinstance(expected, Sequence):
        return _compare_sequences(expected, found, tolerance, index)
    try:
        same = bool(expected == found)
    except Exception:
        same = False
    return None if same else _difference(index, expected, found)


def changed(before: Any, after: Any) -> bool:
    """Whether a call changed an argument, as far as its plain containers and arrays show."""
    if isinstance(before, Mapping):
        return list(before) != list(after) or any(changed(before[k], after[k]) for k in before)
    if isinstance(before, list | tuple):
        return len(before) != len(after) or any(map(changed, before, after))
    if isinstance(before, bytearray | Set):
        return bool(before != after)
    return _is_array(before) and compare(before, after, 0.0) is not None


def _is_array(value: object) -> bool:
    # NumPy arrays and tensors alike, without importing either.
    return hasattr(value, "shape") and hasattr(value, "tolist")


def _item(value: Any) -> Any:
    """The Python value of a NumPy scalar or an array without dimensions."""
    return value.item() if _is_array(value) and tuple(value.shape) == () else value


def _difference(index: str, expected: object, found: object) -> Difference:
    shown = brief(found)
    if type(expected) is not type(found) and not {type(expected), type(found)} <= {int, float}:
        shown += f" ({type(found).__name__})"
    return Difference(index, brief(expected), shown)


def _compare_numbers(expected: Any, found: Any, tolerance: float, index: str) -> Difference | None:
    if not isinstance(found, int | float | complex) or isinstance(found, bool):
        return _difference(index, expected, found)
    if expected == found or (expected != expected and found != found):
        return None
    whole = isinstance(expected, int) and isinstance(found, int) and tolerance <= 1e-6
    finite = isinstance(expected, int) or math.isfinite(abs(expected))
    near = finite and abs(expected - found) <= tolerance * max(abs(expected), abs(found))
    near = near and not whole
    return None if near else _difference(index, expected, found)


def _compare_sequences(
    expected: Sequence[Any], found: Any, tolerance: float, index: str
) -> Difference | None:
    if _is_array(found):
        found = found.tolist()
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        return _difference(index, expected, found)
    for i, (a, b) in enumerate(zip(expected, found, strict=False)):
        if difference := compare(a, b, tolerance, f"{index}[{i}]"):
            return difference
    if len(expected) == len(found):
        return None
    i = min(len(expected), len(found))
    ends = [brief(each[i]) if i < len(each) else "(the end)" for each in (expected, found)]
    return Difference(f"{index}[{i}]", ends[0], ends[1])


def _compare_mappings(
    expected: Mapping[Any, Any], found: Any, tolerance: float, index: str
) -> Difference | None:
    if not isinstance(found, Mapping):
        return _difference(index, expected, found)
    for key, value in expected.items():
        if key not in found:
            return Difference(f"{index}[{key!r}]", brief(value), "(no such key)")
        if difference := compare(value, found[key], tolerance, f"{index}[{key!r}]"):
            return difference
    extra = [key for key in found if key not in expected]
    if extra:
        return Difference(f"{index}[{extra[0]!r}]", "(no such key)", brief(found[extra[0]]))
    return None


def _compare_arrays(expected: Any, found: Any, tolerance: float, index: str) -> Difference | None:
    if not _is_array(found):
        return compare(expected.tolist(), found, tolerance, index)
    shapes = tuple(expected.shape), tuple(found.shape)
    if shapes[0] != shapes[1]:
        return Difference(f"{index}.shape", str(shapes[0]), str(shapes[1]))
    kinds = ["bool" in str(each.dtype) for each in (expected, found)]
    if kinds[0] != kinds[1]:
        return Difference(f"{index}.dtype", str(expected.dtype), str(found.dtype))
    flat = [_flat(each.tolist()) for each in (expected, found)]
    scale = max((abs(v) for v in flat[0] if math.isfinite(abs(v))), default=0.0)
    for i, (a, b) in enumerate(zip(*flat, strict=True)):
        near = a == b or (a != a and b != b) or abs(a - b) <= tolerance * scale
        if not near or math.isnan(abs(a)) != math.isnan(abs(b)):
            where = ", ".join(map(str, _unravel(i, shapes[0])))
            return Difference(f"{index}[{where}]", brief(a), brief(b))
    return None


def _flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, list) else [value]


def _unravel(position: int, shape: tuple[int, ...]) -> list[int]:
    sizes = [math.prod(shape[axis:]) for axis in range(len(shape) + 1)]
    return [position % outer // inner for outer, inner in pairwise(sizes)]
