"""What the sampling filters keep of a distribution, as numbers and as HTML.

`kept`, `about` and `sampling_html` are pure; `sampling_explorer` ties them to sliders.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from minillm.course.tokens import label
from minillm.course.widgets import Panel, explorer, slider
from minillm.sampling import apply_min_p, apply_temperature, apply_top_k, apply_top_p

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.tokenizer import AnyTokenizer


def filtered(
    logits: Tensor, temperature: float = 1, top_k: int = 0, top_p: float = 1, min_p: float = 0
) -> Tensor:
    """The logits (V,) from which a token is drawn, in the order of `minillm.sampling.sample`.

    Temperature 0 keeps the most likely token alone.
    """
    if temperature == 0:
        return apply_top_k(logits, 1)
    logits = apply_temperature(logits, temperature)
    return apply_min_p(apply_top_p(apply_top_k(logits, top_k), top_p), min_p)


def kept(logits: Tensor) -> int:
    """How many entries of filtered logits (V,) can still be drawn."""
    return int((logits > -math.inf).sum())


def about(count: int) -> str:
    """A count with two digits that matter: a longer one differs from processor to processor.

    >>> about(12_179), about(50)
    ('12,000', '50')
    """
    return f"{int(float(f'{count:.2g}')):,}"


def sampling_html(
    tokenizer: AnyTokenizer,
    logits: Tensor,
    temperature: float = 1,
    top_k: int = 0,
    top_p: float = 1,
    min_p: float = 0,
    count: int = 12,
) -> str:
    """The likeliest tokens before and after the filters, as a table with bars.

    logits: (V,), the scores of one position. A token that can no longer be drawn is struck out.
    """
    before = logits.softmax(-1)
    chosen = filtered(logits, temperature, top_k, top_p, min_p)
    after = chosen.softmax(-1)
    many = kept(chosen)
    rows = "".join(
        _row(label(tokenizer.token_bytes(token)), float(before[token]), float(after[token]))
        for token in before.topk(count).indices.tolist()
    )
    titles = ("token", "as the model gives it", "as it is drawn", "")
    head = "".join(f'<th scope="col" style="{_CELL}">{title}</th>' for title in titles)
    rest = float(after.sum() - after[before.topk(count).indices].sum())
    return (
        '<div style="max-width:46em;padding:.2em .8em;background:rgba(128,128,128,.12)">'
        f"<p><strong>{about(many)}</strong> of {len(logits):,} tokens can be drawn; "
        f"those below the table share {abs(rest):.2f}.</p>"
        f'<table style="border:0;background:none"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


_CELL = "text-align:left;padding:.1em 1em .1em 0"


def _row(text: str, before: float, after: float) -> str:
    text = html.escape(text)
    text = text if after else f"<s>{text}</s>"
    bars = "".join(
        f'<div style="height:.4em;width:{14 * round(value, 2):.2f}em;background:{colour}" '
        'aria-hidden="true"></div>'
        for value, colour in ((before, "#8a8a8a"), (after, "#0072B2"))
    )
    cells: Sequence[str] = (
        f'<code style="background:none;color:inherit">{text}</code>',
        f"{before:.3f}",
        f"{after:.3f}" if after else "never",
        bars,
    )
    return f"<tr>{''.join(f'<td style={_CELL!r}>{cell}</td>' for cell in cells)}</tr>"


def sampling_explorer(llm: LLM, prompt: str) -> Panel[dict[str, Any]]:
    """Sliders for temperature, top-k, top-p and min-p over what follows a prompt.

    The model runs once; moving a slider only filters its scores.
    """
    logits = llm.logits(llm.tokenizer.encode(prompt))[-1]

    def view(**settings: float) -> str:
        return sampling_html(llm.tokenizer, logits, **settings)  # type: ignore[arg-type]

    return explorer(
        view,
        temperature=slider("temperature", 0.0, 2.0, 1.0, 0.1),
        top_k=slider("top-k (0: off)", 0, 100, 0),
        top_p=slider("top-p (1: off)", 0.0, 1.0, 0.9, 0.05),
        min_p=slider("min-p (0: off)", 0.0, 0.5, 0.0, 0.01),
        describe=f"Sampling sliders for {prompt!r}; run the notebook to use it.",
    )
