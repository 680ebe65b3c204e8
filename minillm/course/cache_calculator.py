"""The cache calculator: how many bytes a KV cache takes, for models whose shapes are published.

Everything is arithmetic on five numbers per model; `calculator` ties it to a few inputs.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from minillm.course.widgets import Panel, choice, explorer, slider

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Shape:
    """What the memory of a model depends on.

    layers, heads, kv_heads, head_dim: L, H, K and D. parameters: how many weights. context: the
    longest text, in tokens, that it was trained for. source: where these numbers are published.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    context: int
    source: str


MODELS = {
    "SmolLM2 135M": Shape(30, 9, 3, 64, 134_515_008, 8_192, "arXiv 2502.02737, config.json"),
    "Qwen3 0.6B": Shape(28, 16, 8, 128, 596_049_920, 32_768, "arXiv 2505.09388, table 1"),
    "Llama 2 7B": Shape(32, 32, 32, 128, 6_738_415_616, 4_096, "arXiv 2307.09288, config.json"),
    "Llama 3 8B": Shape(32, 32, 8, 128, 8_030_261_248, 8_192, "arXiv 2407.21783, table 3"),
    "Llama 13B": Shape(40, 40, 40, 128, 13_015_864_320, 2_048, "arXiv 2302.13971, table 2"),
    "Llama 2 70B": Shape(80, 64, 8, 128, 68_976_648_192, 4_096, "arXiv 2307.09288, config.json"),
    "GPT-3 175B": Shape(96, 96, 96, 128, 175_000_000_000, 2_048, "arXiv 2005.14165, table 2.1"),
}
BITS = {"32 bits": 32, "16 bits": 16, "8 bits": 8, "4 bits": 4}
MEMORY = {"16 GiB": 16, "24 GiB": 24, "80 GiB": 80}


def cache_bytes(shape: Shape, tokens: int, batch: int = 1, bits: int = 16) -> int:
    """2 · L · K · D values per token and row: keys and values, in every layer.

    >>> cache_bytes(MODELS["Llama 13B"], 1)
    819200
    """
    values = 2 * shape.layers * shape.kv_heads * shape.head_dim
    return values * tokens * batch * bits // 8


def weight_bytes(shape: Shape, bits: int = 16) -> int:
    """Bytes of all weights; a batch shares them."""
    return shape.parameters * bits // 8


def largest_batch(shape: Shape, tokens: int, memory: int, bits: int = 16) -> int:
    """How many rows of so many tokens fit beside the weights into `memory` bytes; 0 if none."""
    left = memory - weight_bytes(shape, bits)
    return max(left // cache_bytes(shape, tokens, 1, bits), 0)


def equal_context(shape: Shape, batch: int = 1, bits: int = 16) -> float:
    """The tokens per row at which the caches of a batch hold as many bytes as the weights."""
    return weight_bytes(shape, bits) / cache_bytes(shape, 1, batch, bits)


def size(count: float) -> str:
    """A number of bytes for people, in powers of 1,024.

    >>> size(819200), size(3355443200)
    ('800 KiB', '3.12 GiB')
    """
    units = ["GiB", "MiB", "KiB", "bytes"]
    while count >= 1000 and len(units) > 1:
        count /= 1024
        units.pop()
    return f"{count:.3g} {units[-1]}" if count < 1000 else f"{count:,.0f} {units[-1]}"


def _bar(name: str, count: int, memory: int, colour: str) -> str:
    # At most the whole width, also where it does not fit; the text beside it says how much it is.
    width = min(100 * count / memory, 100)
    return (
        f'<div style="display:flex;gap:.6em;align-items:center"><span style="width:5em">{name}'
        f'</span><div style="width:16em;border:1px solid rgba(128,128,128,.8)" aria-hidden="true">'
        f'<div style="width:{width:.1f}%;height:.8em;background:{colour}"></div></div>'
        f"<span>{size(count)}</span></div>"
    )


def view(model: str, tokens: int, batch: int, bits: str, memory: str) -> str:
    """What a model's weights and cache take, and how many texts of that length fit."""
    shape, width, room = MODELS[model], BITS[bits], MEMORY[memory] * GIB
    cache, weights = cache_bytes(shape, tokens, batch, width), weight_bytes(shape, width)
    most = largest_batch(shape, tokens, room, width)
    fits = "fits" if cache + weights <= room else "does not fit"
    grouped = shape.kv_heads < shape.heads
    heads = (
        f"{shape.kv_heads} heads for {shape.heads} queries" if grouped else f"{shape.heads} heads"
    )
    trained = "" if tokens <= shape.context else f" It was trained for {shape.context:,} tokens."
    return (
        f'<div style="max-width:46em;padding:.2em .8em"><p><strong>{html.escape(model)}</strong>: '
        f"{shape.layers} layers, in each {heads}; a key or a value has {shape.head_dim} numbers. "
        f"One token: <strong>{size(cache_bytes(shape, 1, 1, width))}</strong>.</p>"
        f"{_bar('cache', cache, room, '#D55E00')}{_bar('weights', weights, room, '#0072B2')}"
        f"<p>{batch} × {tokens:,} tokens: with the weights {size(cache + weights)}, which {fits} "
        f"in {html.escape(memory)}. Largest batch at this length: <strong>{most}</strong>. "
        f"The cache weighs as much as the weights at {equal_context(shape, batch, width):,.0f} "
        f"tokens{' per row' if batch > 1 else ''}.{trained} "
        f"<small>Shape: {shape.source}.</small></p></div>"
    )


def calculator(model: str = "Llama 13B") -> Panel[dict[str, Any]]:
    """The widget: model, length, batch, bits and memory in; bytes out."""
    return explorer(
        view,
        model=choice("Model", list(MODELS), model),
        tokens=slider("Tokens", 256, 32_768, 4_096, 256),
        batch=slider("Batch", 1, 64, 1),
        bits=choice("Numbers of", list(BITS), "16 bits"),
        memory=choice("Memory", list(MEMORY), "24 GiB"),
        describe=f"Cache calculator for {model}; run the notebook to use it.",
    )
