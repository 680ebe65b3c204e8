"""A self-test's questions, as buttons and as text that folds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minillm.course.inline import inline_html
from minillm.course.widgets import bundle, text_lines

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

    def html(self, number: int) -> str:
        """The question with its choices."""
        # Letters as text: viewers that sanitize HTML drop the type of a list.
        choices = "<br>".join(
            f"{LETTERS[i]}) {inline_html(choice)}" for i, (choice, _) in enumerate(self.choices)
        )
        return f"<p><strong>{number}. {inline_html(self.text)}</strong></p><p>{choices}</p>"

    def feedback(self, chosen: int) -> str:
        """The HTML shown once a choice is made."""
        sign = "✓ Right." if chosen == self.right else "✗ Not this one."
        return (
            f"<p role='status'><strong>{sign}</strong> {inline_html(self.choices[chosen][1])}</p>"
        )


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
            answers = "<br>".join(
                f"{LETTERS[i]}) {'✓ Right.' if i == question.right else '✗ No.'} {inline_html(why)}"
                for i, (_, why) in enumerate(question.choices)
            )
            parts.append(
                f"{question.html(n)}<details><summary>Answer to question {n}</summary>"
                f"<p>{answers}</p></details>"
            )
        return f'<div style="max-width:46em">{"".join(parts)}</div>'

    def widget(self) -> Any:
        """The live form: radio buttons, with an explanation as soon as one is chosen."""
        import ipywidgets

        boxes = []
        for n, question in enumerate(self.questions, 1):
            # The choices stand above as HTML: the buttons' own labels would not wrap.
            radio = ipywidgets.RadioButtons(
                options=[(LETTERS[i], i) for i in range(len(question.choices))],
                value=None,
                description="Answer",
                orientation="horizontal",
            )
            answer = ipywidgets.HTML()

            def reply(change: Any, question: Question = question, answer: Any = answer) -> None:
                if change["new"] is not None:
                    answer.value = text_lines(question.feedback(change["new"]))

            radio.observe(reply, names="value")
            title = ipywidgets.HTML(text_lines(question.html(n)))
            boxes.append(ipywidgets.VBox([title, radio, answer]))
        return ipywidgets.VBox(boxes, layout=ipywidgets.Layout(max_width="46em"))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return bundle(self.widget(), self.static_html(), repr(self))
