"""The next-token explorer: a text, the model's choices for its next token, and the reader's pick.

Everything that happens is in the pure functions `type_prompt`, `append`, `undo` and `view`;
`next_token_explorer` only ties them to a text field and buttons.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from torch import Tensor

from minillm.course.widgets import Panel, text_box
from minillm.tokenizer import AnyTokenizer


class Model(Protocol):
    """What the explorer needs of an `LLM`."""

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Text to ids and back."""

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Scores (T, V)."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt as ids, and the tokens that were appended to it."""

    prompt: tuple[int, ...]
    added: tuple[int, ...] = ()


def choices(model: Model, ids: Sequence[int], count: int) -> list[tuple[int, float]]:
    """The `count` most likely next tokens and their probabilities, best first."""
    best = model.logits(ids)[-1].softmax(-1).topk(count)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def type_prompt(model: Model, text: Text, prompt: str) -> Text:
    """A new prompt; what was appended to the old one is dropped."""
    return Text(tuple(model.tokenizer.encode(prompt)))


def append(model: Model, text: Text, rank: int) -> Text:
    """The text with its `rank`-th most likely next token appended, counted from 1."""
    if not text.prompt:
        return text
    token, _ = choices(model, text.prompt + text.added, rank)[-1]
    return replace(text, added=(*text.added, token))


def undo(text: Text) -> Text:
    """The text without the token that was appended last."""
    return replace(text, added=text.added[:-1])


def view(model: Model, text: Text, count: int = 8) -> str:
    """The text, what was appended underlined, and the likeliest next tokens as an HTML table."""
    if not text.prompt:
        return "<p>Type a prompt: the model needs at least one token.</p>"
    decode = model.tokenizer.decode
    before, whole = decode(text.prompt), decode(text.prompt + text.added)
    # A character can be spread over prompt and addition; then the whole counts as addition.
    start = len(before) if whole.startswith(before) else 0
    shown = (
        f"{html.escape(whole[:start])}<u><strong>{html.escape(whole[start:])}</strong></u>"
        f"<span aria-hidden='true'>▏</span>"
    )
    rows = "".join(
        _row(rank, model.tokenizer.pieces([token])[0], probability)
        for rank, (token, probability) in enumerate(
            choices(model, text.prompt + text.added, count), 1
        )
    )
    head = "".join(
        f'<th scope="col" style="text-align:left;padding:.1em 1em .1em 0">{title}</th>'
        for title in ("rank", "next token", "probability", "")
    )
    return (
        '<div style="max-width:46em;padding:.4em .8em;background:rgba(128,128,128,.12)">'
        f'<p style="white-space:pre-wrap;font-family:monospace">{shown}</p>'
        f'<table style="border:0;background:none"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(rank: int, piece: str, probability: float) -> str:
    # Quoted, because the space of ` Paris` belongs to the token.
    shown = html.escape(piece.replace("\n", "\\n").replace("\t", "\\t"))
    cells = (
        str(rank),
        f'<code style="background:none;color:inherit;white-space:pre">&quot;{shown}&quot;</code>',
        f"{probability:.3f}",
        f'<div style="width:{12 * round(probability, 2):.2f}em;height:.8em;'
        'background:#0072B2" aria-hidden="true"></div>',
    )
    style = "text-align:left;padding:.1em 1em .1em 0"
    return f"<tr>{''.join(f'<td style={style!r}>{cell}</td>' for cell in cells)}</tr>"


def next_token_explorer(model: Model, prompt: str, ranks: Sequence[int] = (1, 2, 5)) -> Panel[Text]:
    """A panel to write a text token by token: type a prompt, append a choice, undo.

    Args:
        model: an `LLM`.
        prompt: the first prompt.
        ranks: which choices have a button.
    """
    names = {1: "Append the 1st choice", 2: "Append the 2nd choice", 3: "Append the 3rd choice"}
    return Panel(
        type_prompt(model, Text(()), prompt),
        partial(view, model),
        inputs=[(text_box("Prompt", prompt), partial(type_prompt, model))],
        actions={
            **{
                names.get(rank, f"Append the {rank}th choice"): partial(append, model, rank=rank)
                for rank in ranks
            },
            "Undo": undo,
        },
        describe=f"Next-token explorer for {prompt!r}; run the notebook to use it.",
    )
