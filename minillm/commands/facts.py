"""How the commands print named values: one a line for people, or JSON for programs."""

import json
from collections.abc import Mapping


def show(facts: Mapping[str, object], *, as_json: bool) -> None:
    """Print names and values. A mapping as a value holds bytes by type, a list several remarks."""
    if as_json:
        print(json.dumps(facts, allow_nan=False))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {_readable(value)}")


def _readable(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_bytes(number)}" for key, number in value.items())
    if isinstance(value, list):
        return "; ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} B"
