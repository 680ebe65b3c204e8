"""One pair of RoPE: its speed, its two arrows and its score; and the widget that moves them.

The query and the key of the pair are both the arrow (1, 0) before they are turned. Then the pair's
part of the score is cos((query - key) · θ_i).
"""

from __future__ import annotations

import math
from base64 import b64encode

from minillm.course import plots
from minillm.course.widgets import Panel, explorer, slider

BASE, HEAD_DIM = 100_000.0, 64  # SmolLM2
REACH = 400  # tokens that the score's curve shows
SIZE, WIDE = 170, 400  # pixels: the circle's square, and the curve beside it


def frequency(pair: int, base: float = BASE, head_dim: int = HEAD_DIM) -> float:
    """θ_i in radians per token: base^(-2i/D)."""
    return float(base ** (-2 * pair / head_dim))


def wavelength(pair: int, base: float = BASE, head_dim: int = HEAD_DIM) -> float:
    """Tokens for one full turn."""
    return 2 * math.pi / frequency(pair, base, head_dim)


def arrow(pair: int, position: int) -> tuple[float, float]:
    """Where (1, 0) points at a position."""
    angle = frequency(pair) * position
    return math.cos(angle), math.sin(angle)


def score(pair: int, distance: int) -> float:
    """The dot product of the two arrows, which `distance` alone decides."""
    return math.cos(frequency(pair) * distance)


def pair_view(pair: int, query: int, key: int) -> str:
    """Both arrows, the score against distance with this distance marked, and the same in words."""
    distance = query - key
    words = (
        f"Pair {pair}: one full turn every {wavelength(pair):,.1f} tokens. "
        f"Query at {query}: {_degrees(pair, query)}; key at {key}: {_degrees(pair, key)}. "
        f"Distance {distance}: score {score(pair, distance):+.3f}."
    )
    # As a data URI: a viewer that does not trust stored HTML drops the picture as a whole, while of
    # an inline <svg> it would keep the labels, one after the other.
    source = b64encode(pair_svg(pair, query, key).encode()).decode()
    alt = "Two arrows in a circle, and the score against distance; the numbers follow."
    picture = f'<img src="data:image/svg+xml;base64,{source}" width="{SIZE + WIDE}" alt="{alt}">'
    return f"<div>{picture}<div>{words}</div></div>"


def pair_svg(pair: int, query: int, key: int) -> str:
    """The picture alone: the arrows in their circle, and the curve with this distance marked."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE + WIDE} {SIZE}" '
        f'width="{SIZE + WIDE}" height="{SIZE}" font-family="sans-serif">'
        f'<rect width="{SIZE + WIDE}" height="{SIZE}" fill="{plots.PAPER}"/>'
        f"{_circle(pair, query, key, SIZE)}{_curve(pair, abs(query - key), SIZE, WIDE)}</svg>"
    )


def pair_explorer() -> Panel[dict[str, int]]:
    """Sliders for the pair and both positions, over `pair_view`."""
    return explorer(
        pair_view,
        describe="One pair of RoPE: pair 8, query at 40, key at 28; run the notebook to move them.",
        pair=slider("pair i", 0, HEAD_DIM // 2 - 1, 8),
        query=slider("query at", 0, REACH, 40),
        key=slider("key at", 0, REACH, 28),
    )


def _degrees(pair: int, position: int) -> str:
    return f"{math.degrees(frequency(pair) * position) % 360:.0f}°"


def _circle(pair: int, query: int, key: int, size: int) -> str:
    middle, radius = size / 2, size * 0.36
    ring = (
        f'<circle cx="{middle}" cy="{middle}" r="{radius:.0f}" fill="none" stroke="{plots.GRID}"/>'
    )
    arrows = ""
    # Colour, dashes and a letter tell them apart; on a screen y grows downwards.
    for name, position, colour, dashes in (
        ("key", key, plots.VERMILION, "6 3"),
        ("query", query, plots.BLUE, "none"),
    ):
        x, y = arrow(pair, position)
        end = middle + radius * x, middle - radius * y
        label = middle + 1.25 * radius * x, middle - 1.25 * radius * y + 4
        arrows += (
            f'<line x1="{middle}" y1="{middle}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
            f'stroke="{colour}" stroke-width="3" stroke-dasharray="{dashes}"/>'
            f'<circle cx="{end[0]:.1f}" cy="{end[1]:.1f}" r="4" fill="{colour}"/>'
            f'<text x="{label[0]:.1f}" y="{label[1]:.1f}" font-size="12" text-anchor="middle" '
            f'fill="{plots.INK}">{name[0]}</text>'
        )
    return ring + arrows


def _curve(pair: int, distance: int, size: int, wide: int) -> str:
    left, middle, height, width = size + 30, size / 2 - 6, size * 0.34, wide - 50

    def at(d: float) -> str:
        y = middle - height * math.cos(frequency(pair) * d)
        return f"{left + width * d / REACH:.1f},{y:.1f}"

    # Sixteen points to a wave keep it round; a slow pair needs no more than one every four tokens.
    step = min(4.0, wavelength(pair) / 16)
    line = " ".join(at(d * step) for d in range(int(REACH / step) + 1))
    x, y = at(distance).split(",")
    axis = f'stroke="{plots.GRID}"'
    text = f'font-size="11" fill="{plots.INK}"'
    return (
        f'<line x1="{left}" y1="{middle}" x2="{left + width}" y2="{middle}" {axis}/>'
        f'<text x="{left - 6}" y="{middle - height + 4:.0f}" {text} text-anchor="end">+1</text>'
        f'<text x="{left - 6}" y="{middle + height + 4:.0f}" {text} text-anchor="end">−1</text>'
        f'<text x="{left}" y="{size - 8}" {text}>score against distance, 0 to {REACH} tokens</text>'
        f'<polyline points="{line}" fill="none" stroke="{plots.INK}" stroke-width="1"/>'
        f'<circle cx="{x}" cy="{y}" r="5" fill="{plots.VERMILION}" stroke="{plots.INK}"/>'
    )
