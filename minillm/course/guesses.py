"""A reader's guess before a measurement, shown beside the result at the end."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

# The guesses of this kernel: made at the top of a notebook, recalled at its end. After a restart
# between the two, a guess counts as not made.
_guesses: dict[str, float] = {}


def guess(name: str, value: Any = ...) -> None:
    """Notes the reader's guess, such as `guess("05.speedup", 4)`; `...` means none yet.

    Raises:
        ValueError: the value is neither a number nor `...`.
    """
    _guesses.pop(name, None)
    if value is ... or value is None:
        print(f"{name}: no guess yet. Write a number in place of the dots and run the cell again.")
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"a guess is a number such as 4 or 0.5, not {value!r}")
    _guesses[name] = float(value)
    print(f"{name}: your guess of {value:g} is noted.")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A guess beside what was measured."""

    name: str
    guessed: float | None
    measured: float
    unit: str = ""

    def __repr__(self) -> str:
        measured = f"{self.name}: measured {self.measured:.3g}{self.unit}"
        if self.guessed is None:
            return f"{measured}. You made no guess this time; the next notebook asks again."
        return f"{measured}, your guess was {self.guessed:.3g}{self.unit}. {self._verdict()}"

    def _verdict(self) -> str:
        assert self.guessed is not None
        if self.guessed == self.measured:
            return "Exactly right."
        if self.guessed * self.measured <= 0:
            return "What made the difference? The cells above have the answer."
        ratio = max(self.guessed / self.measured, self.measured / self.guessed)
        side = "low" if abs(self.guessed) < abs(self.measured) else "high"
        if ratio < 1.25:
            return "Close: within a quarter."
        if ratio < 10:
            return f"A factor of {ratio:.2g} too {side}: the right order of magnitude."
        return f"A factor of {ratio:.2g} too {side}: a surprise worth remembering."

    def _repr_html_(self) -> str:
        return (
            '<div style="border-left:.35em solid #0072B2;padding:.3em .8em;max-width:46em;'
            f'background:rgba(128,128,128,.12)">{html.escape(repr(self))}</div>'
        )


def compare_guess(name: str, measured: float, unit: str = "") -> Comparison:
    """Shows the reader's guess beside the measured value, also where no guess was made.

    Args:
        name: as given to `guess`.
        measured: what the notebook measured.
        unit: printed after both numbers, such as `" ms"` or `" ×"`.
    """
    return Comparison(name, _guesses.get(name), float(measured), unit)
