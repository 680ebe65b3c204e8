"""Figures of notebook 07."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

from minillm.course import plots
from minillm.quantization.int4 import Quantized
from minillm.quantization.statistics import output_error

PANELS = ((-1.0, 1.0), (0.0, 0.02), (0.5, 0.52))
# The weight methods of the last figure, each with a colour and a marker of its own.
METHODS = ("int8", "int4", "nf4", "gptq", "awq")


def held(values: Tensor, low: float, high: float) -> Tensor:
    """Those of the values that lie from low to high."""
    return values[(values >= low) & (values <= high)]


def distinct(values: Tensor) -> Tensor:
    """The values in order, each once: 0.0 and -0.0 are one."""
    return torch.from_numpy(np.unique(values.numpy()))


def float32_values(low: float, high: float) -> int:
    """How many float32 numbers lie from low to high, both at least 0: their bit patterns count."""
    first, last = (int(np.float32(bound).view(np.int32)) for bound in (low, high))
    return last - first + 1


def number_lines(grids: Mapping[str, Tensor]) -> None:
    """The values of each format: all of -1 to 1, and close up near 0 and near a half."""
    names = ["float32", *grids]
    counts: dict[str, list[int]] = {}
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 3.6), sharey=True)
    for column, (ax, (low, high)) in enumerate(zip(axes, PANELS, strict=True)):
        step = (high - low) / 300  # about a pixel; more ticks would only fall on each other
        for row, name in enumerate(names):
            if name == "float32":
                kept, number = torch.arange(low, high, step), float32_values(max(low, 0), high)
            else:
                values = held(grids[name], low, high)
                kept, number = distinct((values / step).round()) * step, len(distinct(values))
            ax.vlines(kept, row - 0.16, row + 0.16, color=plots.COLOURS[row], linewidth=1)
            if column:
                counts.setdefault(name, []).append(number)
                ax.text(low, row - 0.24, f"{number:,}", fontsize=9, va="bottom")
        ax.set(xlim=(low, high), xticks=(low, (low + high) / 2, high))
        ax.grid(False)
        ax.spines["left"].set_visible(False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.6, -0.75)
    for ax, title in zip(axes, ("−1 to 1", "near 0: values", "near ½: values"), strict=True):
        ax.tick_params(axis="y", length=0)
        ax.set_title(title)
    said = [f"{name} has {near:,} and {half:,}" for name, (near, half) in counts.items()]
    plots.show(
        fig,
        alt="The values of each format as ticks on a line. From 0 to 0.02, and from 0.50 to 0.52: "
        + "; ".join(said)
        + ". Floats are finer towards 0, whole numbers have one step everywhere.",
    )


def outliers(first: Sequence[float], others: Sequence[float], typical: Sequence[float]) -> None:
    """The channel of the first token, the largest other value, and the median, by layer."""
    layers = range(len(first))
    rows = (
        ("first token, channel 507", first),
        ("largest value of all other tokens", others),
        ("median", typical),
    )
    fig, ax = plt.subplots()
    for i, (name, values) in enumerate(rows):
        ax.semilogy(layers, values, marker=plots.MARKERS[i], markevery=2, label=name)
    peak = max(layers, key=lambda layer: first[layer])
    ax.annotate(f"{first[peak]:,.0f}", (peak, first[peak]), xytext=(0, 7), ha="center",
                textcoords="offset points")  # fmt: skip
    ax.set(xlabel="input of block (the last one: of the final norm)", ylabel="magnitude")
    ax.set_ylim(min(typical) / 3, max(first) * 30)
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.set_title(f"One number is {first[peak] / typical[peak]:,.0f} times the median")
    ax.legend(loc="upper left", ncols=3, columnspacing=1.2, fontsize=9)
    plots.show(
        fig,
        alt=f"Magnitudes in the residual stream by layer, logarithmic. At block {peak} the first "
        f"token has {first[peak]:,.0f} in channel 507, all other tokens at most "
        f"{others[peak]:,.0f}, the median is {typical[peak]:.2g}. At block 0 the three are "
        f"{first[0]:.2g}, {others[0]:.2g} and {typical[0]:.2g}.",
    )


def group_scales(row: Tensor, whole: Quantized, grouped: Quantized) -> None:
    """A row of weights, and the step that one scale and that group scales give it."""
    top = 2 ** (grouped.bits - 1) - 1
    size, one = grouped.group_size, float(whole.scales[0, 0])
    steps = grouped.scales[0].float()  # (G,)
    edges = torch.arange(len(steps) + 1) * size
    fig, (upper, lower) = plt.subplots(
        2, 1, figsize=(7.2, 4.4), sharex=True, height_ratios=(1.7, 1)
    )
    upper.plot(row, ".", color=plots.BLACK, markersize=3, label="a weight")
    for sign in (1, -1):
        upper.hlines(sign * one * top, 0, len(row), color=plots.VERMILION, linestyle="--",
                     label="reach of one scale" if sign > 0 else None)  # fmt: skip
        upper.stairs(sign * steps * top, edges, baseline=None, color=plots.BLUE, linewidth=1.8,
                     label=f"reach of groups of {size}" if sign > 0 else None)  # fmt: skip
    upper.set(ylabel="weight", ylim=(-1.15 * one * top, 1.55 * one * top))
    upper.legend(loc="upper center", ncols=3, fontsize=9)
    lower.hlines(one, 0, len(row), color=plots.VERMILION, linestyle="--")
    lower.stairs(steps, edges, baseline=None, color=plots.BLUE, linewidth=1.8)
    lower.set(xlabel="column", ylabel="step", ylim=(0, 1.2 * one), xlim=(0, len(row)))
    lower.set_xticks(edges.tolist())
    share = float(steps.mean()) / one
    upper.set_title(f"With groups the step follows their weights: {share:.0%} on average")
    plots.show(
        fig,
        alt=f"{len(row)} weights of one row. A single scale for the row has steps of {one:.2g}; "
        f"groups of {size} have steps from {float(steps.min()):.2g} to {float(steps.max()):.2g}, "
        f"{share:.0%} of it on average.",
    )


def gptq_row(weights: Tensor, hessian: Tensor, rounded: Tensor, compensated: Tensor) -> None:
    """The output's error over a plane of two weights, and two choices on its grid."""
    points = torch.stack([weights, rounded.float(), compensated.float()])
    low, high = points.amin(dim=0).floor() - 1.3, points.amax(dim=0).ceil() + 1.3
    x, y = (torch.linspace(float(a), float(b), 200) for a, b in zip(low, high, strict=True))
    plane = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1) - weights  # (200, 200, 2)
    error = (plane @ hessian * plane).sum(dim=-1)
    fig, ax = plt.subplots(figsize=(7.2, 3.8))
    levels = [float(error.max()) * fraction for fraction in (0.005, 0.02, 0.06, 0.15, 0.3, 0.55)]
    lines = ax.contour(x, y, error, levels=levels, colors=plots.SKY, linewidths=1)
    ax.clabel(lines, fmt="%.2g", fontsize=8)
    ends = zip(low.ceil().tolist(), high.floor().tolist(), strict=True)
    grid = torch.cartesian_prod(*(torch.arange(a, b + 1) for a, b in ends))
    ax.plot(*grid.T, ".", color="#777", markersize=5)
    ax.plot(*weights, "x", color=plots.BLACK, markersize=9, mew=2, label="the weights")
    errors = []
    for i, (name, choice) in enumerate((("nearest", rounded), ("GPTQ", compensated))):
        errors.append(output_error((weights - choice)[None], hessian))
        ax.plot(*choice, plots.MARKERS[i + 1], color=plots.COLOURS[i + 1], markersize=9,
                label=f"{name}: error {errors[i]:.2g}")  # fmt: skip
    ax.set(xlabel="first weight", ylabel="second weight", aspect="equal")
    ax.grid(False)
    ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), title="lines: error of the output",
              alignment="left")  # fmt: skip
    ax.set_title("The nearest point is not the one with the smallest error")
    names = ["(" + ", ".join(f"{float(v):.2g}" for v in point) + ")" for point in points]
    plots.show(
        fig,
        alt=f"Contours of the output's error are long, slanted ellipses around the weights "
        f"{names[0]}. The nearest grid point {names[1]} has an error of {errors[0]:.2g}, GPTQ's "
        f"choice {names[2]} {errors[1]:.2g}.",
    )


def awq_search(exponents: Sequence[float], errors: Sequence[float]) -> None:
    """The output's error against AWQ's exponent, relative to no scaling."""
    relative = [error / errors[list(exponents).index(0)] for error in errors]
    best = min(range(len(relative)), key=relative.__getitem__)
    fig, ax = plt.subplots()
    ax.plot(exponents, relative, marker=plots.MARKERS[0])
    lowest = exponents[best], relative[best]
    ax.plot(*lowest, plots.MARKERS[3], color=plots.VERMILION, markersize=10)
    ax.annotate(f"α = {lowest[0]:.2f}: {lowest[1]:.2f}", lowest, xytext=(0, -16),
                ha="center", textcoords="offset points")  # fmt: skip
    ax.axhline(1, color=plots.BLACK, linewidth=1, linestyle=":")
    ax.set(xlabel="exponent α: channels are scaled by (mean |x|) to the power α",
           ylabel="output error, relative")  # fmt: skip
    spread = max(relative) - min(relative)
    ax.set_ylim(min(relative) - 0.2 * spread, max(relative) + 0.08 * spread)
    ax.set_title("Too little scaling, and too much")
    plots.show(
        fig,
        alt=f"The layer's output error against the exponent: 1 without scaling, "
        f"{relative[best]:.2f} at {exponents[best]:.2f}, {relative[-1]:.2f} at {exponents[-1]:g}.",
    )


def channel_spread(x: Tensor) -> float:
    """The largest channel's mean magnitude over the median channel's. x: (T, D)."""
    means = x.abs().mean(dim=0)
    return float(means.max() / means.median())


def key_statistics(keys: Tensor, values: Tensor) -> None:
    """Magnitudes of one head's keys and values, tokens by channels."""
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.6), sharey=True)
    spreads = []
    for ax, (name, x) in zip(axes, (("keys", keys), ("values", values)), strict=True):
        spreads.append(channel_spread(x))
        # One token with huge values would leave the rest dark.
        most = float(x.abs().flatten().float().quantile(0.995))
        image = ax.imshow(
            x.abs().numpy(), aspect="auto", vmin=0, vmax=most, interpolation="nearest"
        )
        ax.set(xlabel="channel", xticks=range(0, x.shape[1], 16))
        ax.set_title(f"{name}: largest channel {spreads[-1]:.1f} × median")
        ax.grid(False)
        fig.colorbar(image, ax=ax, extend="max", shrink=0.9)
    axes[0].set_ylabel("token")
    plots.show(
        fig,
        alt=f"Magnitudes of one head's keys and values over {len(keys)} tokens, as heat maps. The "
        f"keys have vertical stripes: the largest channel's mean is {spreads[0]:.1f} times the "
        f"median channel's. In the values it is {spreads[1]:.1f} times.",
    )


def method_of(row: Mapping[str, Any]) -> str:
    """The first part of a row's name, such as "int4" of "int4-64-symmetric"."""
    return str(row["name"]).partition("-")[0]


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Places for labels, in the same order, none closer than `gap`, moved as little as is easy."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for before, after in pairwise(order):
        moved[after] = max(moved[after], moved[before] + gap)
    # All were pushed upwards; half of it back leaves them around their points.
    back = (sum(moved) - sum(places)) / max(len(places), 1)
    return [place - back for place in moved]


def quality(rows: Sequence[Mapping[str, Any]]) -> None:
    """KL divergence from full precision against bits per weight, for the weight methods.

    rows: those of `stored("07.quality")`; full precision and the caches are left out.
    """
    kept = [row for row in rows if method_of(row) in METHODS]
    low = [row for row in kept if row["bits"] < 6]
    high = [row for row in kept if row not in low]
    fig, ax = plt.subplots(figsize=(7.2, 4.6))
    for points, side, label_x in ((low, "left", 4.75), (high, "right", 7.7)):
        heights = apart([math.log10(row["kl"]) for row in points], 0.13)
        for row, height in zip(points, heights, strict=True):
            i, point = METHODS.index(method_of(row)), (row["bits"], row["kl"])
            ax.semilogy(*point, plots.MARKERS[i], color=plots.COLOURS[i], markersize=8)
            line = {"arrowstyle": "-", "color": "#888", "linewidth": 0.7, "shrinkB": 5}
            ax.annotate(row["title"], point, xytext=(label_x, 10**height), va="center", ha=side,
                        fontsize=9, arrowprops=line)  # fmt: skip
    ax.set(xlabel="bits per weight, scales and zero points included", ylabel="KL, nats per token")
    ax.set_xlim(3.8, 8.3)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_title("At four bits, how they are chosen decides")
    said = [f"{row['title']}, {row['bits']:.2f} bits, {row['kl']:.2g}" for row in kept]
    plots.show(
        fig,
        alt=f"KL divergence from full precision against bits per weight: {'; '.join(said)}.",
    )
