"""Memory that the C library keeps after it was freed."""

import ctypes
import sys
from collections.abc import Callable
from functools import cache


@cache
def _trim_function() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def trim() -> None:
    """Give pages that were freed back to the system.

    Quantizing takes a few temporary tensors per layer and leaves a small one. glibc puts the small
    one where a temporary tensor was, so that the next does not fit there: without this, what was
    freed stays in the process, up to as much as the weights took in floating point.
    """
    if function := _trim_function():
        function(0)
