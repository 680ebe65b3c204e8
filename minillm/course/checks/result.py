"""What a check says, as text and as HTML that reads well in light and dark themes."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Literal

Status = Literal["passed", "wrong", "not attempted"]
# Okabe-Ito colours; the sign and the word say the same without colour.
_SIGNS: dict[Status, tuple[str, str]] = {
    "passed": ("✓", "#009E73"),
    "wrong": ("✗", "#D55E00"),
    "not attempted": ("○", "#56B4E9"),
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The outcome of one check.

    Args:
        exercise: its name.
        status: `"passed"`, `"wrong"` or `"not attempted"`.
        message: one sentence for the learner; for a wrong answer the likely cause.
        details: labelled values, such as `("expected", "[9, 9]")`.
    """

    exercise: str
    status: Status
    message: str = ""
    details: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the answer is right."""
        return self.status == "passed"

    def __repr__(self) -> str:
        sign, _ = _SIGNS[self.status]
        lines = [f"{sign} {self.exercise}: {self.status}"]
        if self.message:
            lines[0] += f". {self.message}"
        lines += [f"    {label:<9} {value}" for label, value in self.details]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        sign, colour = _SIGNS[self.status]
        rows = "".join(
            f'<tr style="background:transparent"><th scope="row" style="text-align:left;'
            f'font-weight:normal;opacity:.75;padding:.1em 1em .1em 0">'
            f'{html.escape(label)}</th><td style="text-align:left;padding:.1em 0">'
            '<code style="background:none;color:inherit;white-space:pre-wrap">'
            f"{html.escape(value)}</code></td></tr>"
            for label, value in self.details
        )
        table = (
            f'<table style="border:0;margin:.3em 0 0;background:none">{rows}</table>'
            if rows
            else ""
        )
        return (
            f'<div role="status" style="border-left:.35em solid {colour};padding:.3em .8em;'
            f'background:rgba(128,128,128,.12);max-width:46em"><strong>{sign} '
            f"{html.escape(self.exercise)}: {self.status}</strong>"
            f"{'. ' if self.message else ''}{html.escape(self.message)}{table}</div>"
        )
