"""A self-test's questions, as buttons and as text that folds out."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minillm.course.widgets import bundle

LETTERS = "abcdefgh"


@dataclass(frozen=True, slots=True)
class Question:
    """One question with the explanation of every choice.

    Args:
        text: the question.
        choices: pairs of a choice and why it is right or wrong.
        right: the index of the right choice.

    Raises:
        ValueError: fewer than two choices, an explanation left out, or no such right choice.
    """

    text: str
    choices: Sequence[tuple[str, str]]
    right: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.choices) <= len(LETTERS):
            raise ValueError(
                f"{self.text!r}: {len(self.choices)} choices; 2 to {len(LETTERS)} allowed"
            )
        if not all(choice.strip() and why.strip() for choice, why in self.choices):
            raise ValueError(f"{self.text!r}: every choice needs a text and an explanation")
        if not 0 <= self.right < len(self.choices):
            raise ValueError(
                f"{self.text!r}: right={self.right}; 0 to {len(self.choices) - 1} allowed"
            )

    def feedback(self, chosen: int) -> str:
        """The HTML shown once a choice is made."""
        sign = "✓ Right." if chosen == self.right else "✗ Not this one."
        return f"<p role='status'><strong>{sign}</strong> {_html(self.choices[chosen][1])}</p>"


@dataclass(frozen=True, slots=True)
class Quiz:
    """The questions of one notebook; a notebook displays it."""

    number: str
    questions: Sequence[Question]

    def __repr__(self) -> str:
        lines = [f"Self-test {self.number}"]
        for n, question in enumerate(self.questions, 1):
            lines += ["", f"{n}. {question.text}"]
            lines += [f"   {LETTERS[i]}) {text}" for i, (text, _) in enumerate(question.choices)]
        lines += ["", "Answers"]
        for n, question in enumerate(self.questions, 1):
            choice, why = question.choices[question.right]
            lines.append(f"{n}. {LETTERS[question.right]}) {choice}: {why}")
        return "\n".join(lines)

    def static_html(self) -> str:
        """The form for a reader without a kernel: the answers fold out."""
        parts = []
        for n, question in enumerate(self.questions, 1):
            choices = "".join(f"<li>{_html(choice)}</li>" for choice, _ in question.choices)
            answers = "".join(
                f"<li>{'✓ Right' if i == question.right else '✗ Wrong'}. {_html(why)}</li>"
                for i, (_, why) in enumerate(question.choices)
            )
            parts.append(
                f"<p><strong>{n}. {_html(question.text)}</strong></p>"
                f'<ol type="a">{choices}</ol>'
                f'<details><summary>Answer to question {n}</summary><ol type="a">{answers}</ol>'
                "</details>"
            )
        return f'<div style="max-width:46em">{"".join(parts)}</div>'

    def widget(self) -> Any:
        """The live form: radio buttons, with an explanation as soon as one is chosen."""
        import ipywidgets

        boxes = []
        for n, question in enumerate(self.questions, 1):
            options = [(f"{LETTERS[i]}) {text}", i) for i, (text, _) in enumerate(question.choices)]
            radio = ipywidgets.RadioButtons(
                options=options, value=None, layout=ipywidgets.Layout(width="auto")
            )
            answer = ipywidgets.HTML()

            def reply(change: Any, question: Question = question, answer: Any = answer) -> None:
                if change["new"] is not None:
                    answer.value = question.feedback(change["new"])

            radio.observe(reply, names="value")
            title = ipywidgets.HTML(f"<strong>{n}. {_html(question.text)}</strong>")
            boxes.append(ipywidgets.VBox([title, radio, answer]))
        return ipywidgets.VBox(boxes)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return bundle(self.widget(), self.static_html(), repr(self))


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
