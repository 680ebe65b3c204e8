"""What an exercise looks like before anybody has written in it."""

from __future__ import annotations

import dis
from typing import Any


def has_ellipsis(value: Any) -> bool:
    """Whether a value is `...`, or has one somewhere in its containers."""
    if isinstance(value, dict):
        return any(map(has_ellipsis, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_ellipsis, value))
    return value is ...


def does_nothing(answer: Any) -> bool:
    """Whether a function's body is only a docstring, `pass` or `...`."""
    code = getattr(answer, "__code__", None)
    if code is None:
        return False
    idle = {"RESUME", "NOP", "POP_TOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    return {instruction.opname for instruction in dis.get_instructions(code)} <= idle
