"""Windows drawn as HTML: which keys a query sees, where a ring keeps them, what a cache costs.

Everything is a pure function; `mask_explorer` and `growth_explorer` tie two of them to sliders.
Colour only helps: every kind of key has a sign of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from minillm.config import ModelConfig
from minillm.course.widgets import Panel, choice, explorer, slider
from minillm.kv_cache.sliding import held_positions
from minillm.layers.attention import attention_mask

_CELL = "min-width:1.9em;text-align:center;padding:0;line-height:1.35;border:0"
_KINDS = {
    "window": ("●", "background:rgba(0,114,178,.28)"),
    "sink": ("◆", "background:rgba(213,94,0,.28)"),
    "forgotten": ("·", "opacity:.55"),
    "later": ("", ""),
}
EVERY = {"none": None, "every 6th": 6, "every 2nd": 2}


def kind_of(query: int, key: int, window: int, sinks: int = 0) -> str:
    """What a key is for a query: in the window, a sink outside it, forgotten, or still to come."""
    if key > query:
        return "later"
    if query - key < window:
        return "window"
    return "sink" if key < sinks else "forgotten"


def mask_html(tokens: int, window: int, sinks: int = 0) -> str:
    """The mask as a table: a row per query, a column per key, with the keys seen counted."""
    positions = torch.arange(tokens)[None]
    seen = attention_mask(positions, positions, window, sinks)[0, 0].sum(dim=1).tolist()
    head = "".join(f'<th scope="col" style="{_CELL}">{key}</th>' for key in range(tokens))
    rows = []
    for query in range(tokens):
        cells = []
        for key in range(tokens):
            sign, style = _KINDS[kind_of(query, key, window, sinks)]
            cells.append(f'<td style="{_CELL};{style}">{sign}</td>')
        rows.append(
            f'<tr><th scope="row" style="{_CELL}">{query}</th>{"".join(cells)}'
            f'<td style="{_CELL};padding-left:1em">{seen[query]}</td></tr>'
        )
    held = held_positions(torch.tensor([tokens]), window, sinks)[0].tolist()
    places = " ".join("–" if position < 0 else str(position) for position in held)
    cells_total = tokens * (tokens + 1) // 2
    return (
        f"<p><strong>Window {window}, sinks {sinks}.</strong> Rows are queries, columns keys, on "
        "the right the number of keys seen.<br>● in the window, ◆ a sink outside it, · forgotten."
        f'</p><table style="border-collapse:collapse"><tr><th style="{_CELL}"></th>{head}'
        f'<th style="{_CELL};padding-left:1em">seen</th></tr>{"".join(rows)}</table>'
        f"<p>Seen: {sum(seen)} of the {cells_total} pairs of the causal mask. After {tokens} "
        f"tokens the cache holds, place by place: <strong>{places}</strong> "
        "(– is an empty place).</p>"
    )


def mask_explorer(tokens: int = 14) -> Panel[dict[str, Any]]:
    """The mask and the ring, with sliders for the window and the sinks."""
    return explorer(
        lambda window, sinks: mask_html(tokens, window, sinks),
        describe="A mask that follows the sliders: window 5, sinks 1.",
        window=slider("window", 1, tokens, 5),
        sinks=slider("sinks", 0, 4, 1),
    )


def cache_bytes(config: ModelConfig, tokens: int, bytes_per_value: int = 2) -> int:
    """Bytes of one sequence's KV cache: 2 · K · D · bytes · the places of all layers together.

    A layer with a window W and s sinks needs min(tokens, W + s) places, another one `tokens`.
    """
    places = sum(
        tokens if layer.sliding_window is None else min(tokens, layer.sliding_window + layer.sinks)
        for layer in config.layers
    )
    return 2 * config.num_key_value_heads * config.head_dim * bytes_per_value * places


def growth_html(config: ModelConfig, tokens: int, window: int, every: str = "none") -> str:
    """The cache of a text at 16 bits: all heads, shared heads, windows, as a table with bars."""
    with_window = config.with_window(window, sinks=4, global_every=EVERY[every])
    rows = (
        (
            f"every token, {config.num_attention_heads} heads (MHA)",
            cache_bytes(config, tokens) * config.num_attention_heads // config.num_key_value_heads,
        ),
        (
            f"every token, {config.num_key_value_heads} shared heads (GQA)",
            cache_bytes(config, tokens),
        ),
        (f"window {window}, 4 sinks, global layers: {every}", cache_bytes(with_window, tokens)),
    )
    most = rows[0][1]
    cell = '<td style="text-align:left;padding:.1em 1em .1em 0">'
    lines = []
    for name, size in rows:
        bar = (
            f'<div style="height:.8em;width:{20 * size / most:.2f}em;min-width:1px;'
            'background:#0072B2" aria-hidden="true"></div>'
        )
        lines.append(
            f"<tr>{cell}{name}</td>{cell}{size / 1e6:,.1f} MB</td>"
            f"{cell}{size / most:.1%}</td>{cell}{bar}</td></tr>"
        )
    heads = ("cache", "bytes", "of MHA", "")
    head = "".join(f'<th scope="col" style="text-align:left">{name}</th>' for name in heads)
    return (
        f"<p><strong>{tokens:,} tokens</strong>, 16 bits per value, one sequence.</p>"
        f"<table><tr>{head}</tr>{''.join(lines)}</table>"
    )


def growth_explorer(config: ModelConfig) -> Panel[dict[str, Any]]:
    """Bytes of the cache, with sliders for the length of the text and the window."""
    return explorer(
        lambda tokens, window, every: growth_html(config, tokens, window, every),
        describe="Bytes of a cache that follow the sliders: 10,000 tokens, window 256.",
        tokens=slider("tokens", 250, 40_000, 10_000, 250),
        window=slider("window", 32, 4_096, 256, 32),
        every=choice("global layers", list(EVERY)),
    )
