"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def timed(function: Callable[..., Any], *arguments: Any, repeat: int = 1) -> tuple[Any, float]:
    """Calls the function; returns its result and the seconds that the call took.

    repeat: call it so many times and take the shortest, which other work on the machine disturbs
        least.
    """
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        result = function(*arguments)
        best = min(best, time.perf_counter() - start)
    return result, best
