"""A row of weights on a grid of few bits: what rounding does to it; and the widget that moves it.

`row_view` is a pure function from the weights and the settings to HTML; `row_explorer` ties it to
sliders.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from torch import Tensor

from minillm.course import plots
from minillm.course.widgets import Panel, choice, explorer, slider, tick
from minillm.quantization.int4 import Quantized, quantize_groups

WHOLE = "whole row"
SIZES = (16, 32, 64, 192)
WIDE, HIGH, MARGIN = 620, 104, 12  # pixels of the picture
SHOWN = 8  # weights that the table lists


def bits_per_weight(bits: int, group_size: int) -> float:
    """Bits of a code, and each weight's share of a float16 scale and of an 8-bit zero point.

    A symmetric grid could do without the zero point; layers and files store one all the same.
    """
    return bits + 24 / group_size


def rounded(row: Tensor, bits: int, group_size: int, symmetric: bool) -> Quantized:
    """The row, (C,), as a matrix of one row on its grid. group_size: -1 is the whole row.

    Raises ValueError for a group size that does not divide C, and weights that are not finite.
    """
    return quantize_groups(row.detach()[None], group_size, bits=bits, symmetric=symmetric)


def row_view(row: Tensor, bits: int, group_size: int, symmetric: bool) -> str:
    """What rounding does to a row: bits per weight, errors, a picture, and its first weights."""
    stored = rounded(row, bits, group_size, symmetric)
    values, codes = stored.dequantize()[0], stored.codes[0]
    weights = row.detach().float()
    error = values - weights
    relative = float(error.square().sum() / weights.square().sum().clamp(min=1e-30))
    size = stored.group_size
    grid = "symmetric" if symmetric else "asymmetric"
    each = bits_per_weight(bits, size)
    facts = (
        ("bits per weight", f"{each:.3f}"),
        ("relative squared error", f"{relative:.2g}"),
        ("largest error", f"{float(error.abs().max()):.2g}"),
        ("codes in use", f"{len(codes.unique())} of {2**bits}"),  # type: ignore[no-untyped-call]
    )
    told = "; ".join(f"{name} <strong>{value}</strong>" for name, value in facts)
    alt = f"The first {size} weights, each joined to the nearest of their grid's values."
    source = b64encode(group_svg(row, stored).encode()).decode()
    # As a data URI, like the pictures of the other widgets: see `rope_angles.pair_view`.
    picture = (
        f'<img src="data:image/svg+xml;base64,{source}" width="{WIDE}" style="max-width:100%" '
        f'alt="{alt}">'
    )
    return (
        f"<p><strong>{len(row)} weights, {bits} bits, {len(row) // size} × {size}, {grid}.</strong>"
        f"<br>{told}.</p>{picture}{_table(row, stored, values, error)}"
    )


def _table(row: Tensor, stored: Quantized, values: Tensor, error: Tensor) -> str:
    """The first weights with their codes and what comes back."""
    cell = "text-align:right;padding:.05em .5em;white-space:nowrap"
    rows = (
        ("weight", [f"{weight:.3f}" for weight in row[:SHOWN].tolist()]),
        ("code", [str(code) for code in stored.codes[0, :SHOWN].tolist()]),
        ("comes back as", [f"{value:.3f}" for value in values[:SHOWN].tolist()]),
        ("error", [f"{each:+.3f}" for each in error[:SHOWN].tolist()]),
    )
    lines = "".join(
        f'<tr><th scope="row" style="text-align:left;white-space:nowrap">{name}</th>'
        + "".join(f'<td style="{cell}">{text}</td>' for text in texts)
        + "</tr>"
        for name, texts in rows
    )
    zero, scale = int(stored.zeros[0, 0]), float(stored.scales[0, 0])
    return (
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse">{lines}</table>'
        f"</div><p>First group: value = (code − {zero}) · {scale:.4f}.</p>"
    )


def group_svg(row: Tensor, stored: Quantized) -> str:
    """The picture alone: weights of the first group above, its grid below, a line for each."""
    size = stored.group_size
    weights, back = row[:size].tolist(), stored.dequantize()[0, :size].tolist()
    scale, zero = float(stored.scales[0, 0]), int(stored.zeros[0, 0])
    grid = [(code - zero) * scale for code in range(2**stored.bits)]
    # One axis for all settings, so that grids can be compared.
    reach = 1.15 * float(row.abs().max()) or 1.0

    def at(value: float) -> float:
        return WIDE / 2 + value / reach * (WIDE / 2 - MARGIN)

    top, bottom = 30, HIGH - 34
    lines = "".join(
        f'<line x1="{at(w):.1f}" y1="{top}" x2="{at(b):.1f}" y2="{bottom}"/>'
        for w, b in zip(weights, back, strict=True)
    )
    dots = "".join(f'<circle cx="{at(w):.1f}" cy="{top}" r="2.2"/>' for w in weights)
    ticks = "".join(
        f'<line x1="{at(v):.1f}" y1="{bottom}" x2="{at(v):.1f}" y2="{bottom + 9}"/>'
        for v in grid
        if abs(v) <= reach
    )
    text = f'font-size="12" fill="{plots.INK}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" '
        f'height="{HIGH}" font-family="sans-serif">'
        f'<rect width="{WIDE}" height="{HIGH}" fill="{plots.PAPER}"/>'
        f'<text x="{MARGIN}" y="18" {text}>the weights of the first group</text>'
        f'<g stroke="{plots.INK}" stroke-width="0.7" opacity="0.6">{lines}</g>'
        f'<g fill="{plots.BLUE}">{dots}</g>'
        f'<g stroke="{plots.VERMILION}" stroke-width="2">{ticks}</g>'
        f'<text x="{MARGIN}" y="{HIGH - 8}" {text}>the values of their grid</text>'
        f'<text x="{WIDE / 2}" y="{HIGH - 8}" {text} text-anchor="middle">0</text>'
        f'<text x="{WIDE - MARGIN}" y="{HIGH - 8}" {text} text-anchor="end">'
        f"{reach / 1.15:.3g} at most</text></svg>"
    )


def row_explorer(row: Tensor) -> Panel[dict[str, Any]]:
    """The widget: bits, group size and symmetry over a row of weights, (C,)."""
    row = row.detach().float().cpu()
    sizes = {str(size): size for size in SIZES if len(row) % size == 0} | {WHOLE: -1}
    first = "64" if "64" in sizes else WHOLE
    return explorer(
        lambda bits, group, symmetric: row_view(row, bits, sizes[group], symmetric),
        describe=f"A row of {len(row)} weights in 4 bits; run the notebook to change them.",
        bits=slider("bits", 2, 8, 4),
        group=choice("weights per scale", list(sizes), first),
        symmetric=tick("symmetric"),
    )
