"""Attention heads: what kind of looking a head does, and a page that shows its weights.

A head is named `layer.head`, both from 0: 16.0 is the first head of layer 16.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minillm.course.probes import COPY_TOKENS, copy_ids
from minillm.course.tokens import label
from minillm.course.trace import attention_weights
from minillm.course.widgets import Panel, slider, text_box

if TYPE_CHECKING:
    from minillm.llm import LLM

BOOKMARKS = {
    "16.0 the token before": (16, 0),
    "18.6 after an earlier copy": (18, 6),
    "23.4 fetches the fact": (23, 4),
}
MOST_TOKENS = 24


def previous_token(weights: Tensor) -> Tensor:
    """How much of its attention each head gives to the token just before, on average.

    weights: (L, H, T, S) with T = S, as `attention_weights` returns. Returns (L, H), 0 to 1.
    """
    return weights.diagonal(-1, 2, 3).mean(-1)


def first_token(weights: Tensor, start: int = 4) -> Tensor:
    """How much each head gives to the first token, averaged over the queries from `start` on.

    weights: (L, H, T, S). Returns (L, H), 0 to 1.
    """
    return weights[:, :, start:, 0].mean(-1)


def induction(llm: LLM, seeds: Iterable[int] = range(2)) -> Tensor:
    """How much each head looks, on the second copy of COPY, at what followed the first time.

    The token at place t of the second copy stood COPY_TOKENS earlier too; what followed it there
    is the answer. Returns (L, H), 0 to 1.
    """
    found = []
    for seed in seeds:
        weights = attention_weights(llm, copy_ids(seed))  # (L, H, T, T)
        # Entry i of this diagonal: query i + 39, key i. The second copy's queries start at 40.
        found.append(weights.diagonal(1 - COPY_TOKENS, 2, 3)[..., 1:].mean(-1))
    return torch.stack(found).mean(0)


def best(scores: Tensor, count: int = 4) -> list[tuple[str, float]]:
    """The heads with the highest scores: pairs of a name such as `16.0` and the score.

    scores: (L, H).
    """
    top = scores.flatten().topk(count)
    heads = scores.shape[1]
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [(f"{place // heads}.{place % heads}", value) for place, value in pairs]


def weights_html(labels: Sequence[str], weights: Sequence[Sequence[float]]) -> str:
    """A table: a row for each query, a column for each key, weights in percent from 5 on.

    The background only repeats what the number says.
    """
    style = "text-align:center;padding:.1em .3em;border:1px solid rgba(128,128,128,.4)"
    code = '<code style="background:none;color:inherit">'
    names = [f"{code}{html.escape(name)}</code>" for name in labels]
    head = "".join(f'<th scope="col" style="{style}">{name}</th>' for name in names)
    rows = []
    for t, row in enumerate(weights):
        cells = []
        for s, weight in enumerate(row):
            percent = round(100 * weight)
            shown = "" if s > t or percent < 5 else str(percent)
            # At most half opaque, so that the number stays readable in both themes.
            tint = f"rgba(0,114,178,{percent / 200:.2f})" if shown else "none"
            cells.append(f'<td style="{style};background:{tint}">{shown}</td>')
        rows.append(f'<tr><th scope="row" style="{style}">{names[t]}</th>{"".join(cells)}</tr>')
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:85%">'
        f'<thead><tr><th style="{style}">query ↓ key →</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def head_html(llm: LLM, text: str, layer: int, head: int) -> str:
    """One head's weights over the first tokens of a text, and where the last token looks most."""
    ids = llm.tokenizer.encode(text)[:MOST_TOKENS]
    if not ids:
        return "<p>Type a text.</p>"
    weights = attention_weights(llm, ids)[layer, head]
    labels = [label(llm.tokenizer.token_bytes(token)) for token in ids]
    place = int(weights[-1].argmax())
    code = '<code style="background:none;color:inherit">'
    last, target = (f"{code}{html.escape(labels[i])}</code>" for i in (-1, place))
    summary = (
        f"<p><strong>Layer {layer}, head {head}.</strong> The last token, {last}, gives "
        f"{100 * float(weights[-1, place]):.0f} % of its attention to {target}.</p>"
    )
    return summary + weights_html(labels, weights.tolist())


def head_explorer(llm: LLM, text: str = "The capital of France is") -> Panel[dict[str, Any]]:
    """The weights of any head over a text: sliders for layer and head, buttons for three of them.

    A button moves the sliders too.
    """
    layers, heads = llm.config.num_hidden_layers, llm.config.num_attention_heads
    first = next(reversed(BOOKMARKS.values()))
    text_field = text_box("Text", text)
    layer_field = slider("layer", 0, layers - 1, first[0])
    head_field = slider("head", 0, heads - 1, first[1])

    def setter(name: str) -> Any:
        return lambda state, value: {**state, name: value}

    def bookmark(layer: int, head: int) -> Any:
        def jump(state: dict[str, Any]) -> dict[str, Any]:
            layer_field.value, head_field.value = layer, head
            return {**state, "layer": layer, "head": head}

        return jump

    return Panel(
        {"text": text, "layer": first[0], "head": first[1]},
        lambda state: head_html(llm, **state),
        inputs=[
            (text_field, setter("text")),
            (layer_field, setter("layer")),
            (head_field, setter("head")),
        ],
        actions={name: bookmark(*place) for name, place in BOOKMARKS.items()},
        describe=f"Head explorer, at head {first[0]}.{first[1]}; run the notebook to use it.",
    )
