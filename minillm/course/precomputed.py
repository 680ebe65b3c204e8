"""Heavy demonstrations: measured once in full, stored in `data/precomputed/`, recomputed in part.

A notebook's `minillm/course/measurements/nbNN.py` holds a dict `MEASUREMENTS`, with names such as
"03.head_map" as keys and `Measurement`s as values. `python tools/precompute.py 03.head_map` writes
`data/precomputed/03.head_map.json`, and a notebook reads it with `stored("03.head_map")`. A test
recomputes a sample of each and compares.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.llm import LLM

FOLDER = Path(__file__).resolve().parents[2] / "data" / "precomputed"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement that takes too long to run live in full.

    Args:
        full: from the real model to values that JSON can hold; minutes are fine.
        sample: from the model and the stored values to a few triples (what, stored, computed
            anew), in seconds; the same functions as `full` at a few of its points.
        tolerance: how far the two may be apart, absolutely.
    """

    full: Callable[[LLM], Any]
    sample: Callable[[LLM, Any], Iterable[tuple[str, float, float]]]
    tolerance: float = 0.01


def measurements() -> Mapping[str, Measurement]:
    """All measurements, by name."""
    from minillm.course import measurements as package

    found: dict[str, Measurement] = {}
    for module in pkgutil.iter_modules(package.__path__):
        found |= importlib.import_module(f"{package.__name__}.{module.name}").MEASUREMENTS
    return found


def stored(name: str) -> Any:
    """The values of one measurement, as they were stored.

    Raises:
        FileNotFoundError: there is no such file; it names the command that makes one.
    """
    return _file(name)["values"]


def origin(name: str) -> str:
    """Where and when a measurement was made: processor, threads, date.

    Raises:
        FileNotFoundError: as of `stored`.
    """
    file = _file(name)
    host = file["machine"]
    return f"{host['cpu']}, {host['threads']} threads, {file['date']}"


def _file(name: str) -> Any:
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: `python tools/precompute.py {name}` makes it")
    return json.loads(path.read_text(encoding="utf-8"))
