"""Shows tokens and what the model would write after them, as HTML.

Colour only helps: every token has a border and its id, a space is drawn as ␣, and a part of a
character is given by its bytes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from minillm.course.widgets import Panel, explorer, text_box, tick

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.tokenizer import AnyTokenizer

# Three translucent backgrounds in turn, so that neighbours differ in light and dark themes.
_TINTS = ("rgba(0,114,178,.20)", "rgba(213,94,0,.20)", "rgba(0,158,115,.20)")
_MARKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def label(data: bytes) -> str:
    """What is written for one token: its text with visible spaces, or its bytes if it has no text.

    >>> label(b" the"), label(b"\\xf0\\x9f")
    ('␣the', '⟨F0 9F⟩')
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"⟨{data.hex(' ').upper()}⟩"
    return "".join(mark if (mark := c.translate(_MARKS)).isprintable() else "·" for c in text)


def merged_texts(merges: Iterable[tuple[int, int]]) -> list[str]:
    """The texts of the tokens that a list of merges makes, when token 256 + i comes of merge i."""
    texts = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        texts.append(texts[left] + texts[right])
    return [text.decode(errors="replace") for text in texts[256:]]


def tokens_html(tokenizer: AnyTokenizer, ids: Sequence[int]) -> str:
    """The tokens of a text side by side, each with its id below it, and how many there are."""
    boxes = []
    for place, token_id in enumerate(ids):
        text = html.escape(label(tokenizer.token_bytes(token_id)))
        style = (
            f"display:inline-block;margin:.1em .1em;padding:.1em .3em;background:"
            f"{_TINTS[place % len(_TINTS)]};border:1px solid rgba(128,128,128,.8);"
            "border-radius:.25em;text-align:center;line-height:1.3"
        )
        boxes.append(
            f'<span style="{style}"><code style="background:none;color:inherit">{text}</code><br>'
            f'<small style="opacity:.75">{token_id}</small></span>'
        )
    many = "1 token" if len(ids) == 1 else f"{len(ids)} tokens"
    return f"<p><strong>{many}</strong></p><p>{' '.join(boxes)}</p>"


def next_html(llm: LLM, ids: Sequence[int], count: int = 5) -> str:
    """The likeliest next tokens after the ids with their probabilities, as a table with bars."""
    top = llm.logits(ids)[-1].softmax(-1).topk(count)
    cell = '<td style="text-align:left;padding:.1em 1em .1em 0">'
    rows = []
    for token_id, value in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        text = html.escape(label(llm.tokenizer.token_bytes(token_id)))
        # Bars of the rounded value, so that the stored form is the same on every machine.
        bar = (
            f'<div style="height:.8em;width:{12 * round(value, 2):.2f}em;background:#0072B2" '
            'aria-hidden="true"></div>'
        )
        rows.append(
            f'<tr>{cell}<code style="background:none;color:inherit">{text}</code></td>'
            f"{cell}{token_id}</td>{cell}{value:.2f}</td>{cell}{bar}</td></tr>"
        )
    head = "".join(
        f'<th scope="col" style="text-align:left;padding:.1em 1em .1em 0">{name}</th>'
        for name in ("next token", "id", "probability", "")
    )
    return f'<table style="border:0;background:none"><tr>{head}</tr>{"".join(rows)}</table>'


def tokens_and_next(llm: LLM, text: str, trailing: bool = False) -> str:
    """The tokens of a text, with one more space at its end if wanted, and the likely next ones."""
    ids = llm.tokenizer.encode(text + " " * trailing)
    if not ids:
        return "<p>Type a text to see its tokens.</p>"
    ids = ids[-256:]  # a long text would make every key press slow
    parts = tokens_html(llm.tokenizer, ids) + next_html(llm, ids)
    return f'<div style="max-width:46em;padding:.2em .8em">{parts}</div>'


def token_explorer(llm: LLM, text: str) -> Panel[dict[str, Any]]:
    """A panel that shows any text as tokens, with a tick box for a space at its end."""
    return explorer(
        partial(tokens_and_next, llm),
        text=text_box("Text", text, rows=2),
        trailing=tick("a space at the end"),
        describe=f"Token explorer for {text!r}; run the notebook to use it.",
    )
