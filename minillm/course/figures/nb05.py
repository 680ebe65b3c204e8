"""Figures of notebook 05."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from minillm.course import plots
from minillm.course.cache_calculator import GIB, MODELS, cache_bytes, weight_bytes
from minillm.course.measurements.nb05 import crossing


def positions_run(prompt: int, answer: int) -> None:
    """Which token positions each pass runs, without a cache and with one."""
    total = prompt + answer - 1
    passes = np.arange(answer)
    length = prompt + passes  # tokens of the text at each pass
    column = np.arange(total)
    whole = (column < length[:, None]).astype(float)  # (passes, tokens)
    newest = whole * (column >= np.where(passes == 0, 0, length - 1)[:, None])
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.2), sharey=True)
    panels = (("Without a cache", whole, plots.VERMILION), ("With a cache", newest, plots.BLUE))
    for ax, (title, run, colour) in zip(axes, panels, strict=True):
        for row, col in zip(*np.nonzero(whole), strict=True):
            done = bool(run[row, col])
            ax.add_patch(
                plt.Rectangle(
                    (col - 0.43, row - 0.43),
                    0.86,
                    0.86,
                    facecolor=colour if done else "none",
                    edgecolor=colour if done else plots.GRID,
                )
            )
        ax.set_title(f"{title}: {int(run.sum())} positions run")
        ax.set(xlim=(-0.6, total - 0.4), ylim=(answer - 0.4, -0.6), xlabel="position in the text")
        ax.set(xticks=column, yticks=passes)
        ax.set_aspect("equal")
        ax.grid(False)
    axes[0].set_ylabel("pass")
    plots.show(
        fig,
        alt=f"A prompt of {prompt} tokens and {answer} passes, one per new token. Without a cache "
        f"each pass runs all positions, a growing triangle of {int(whole.sum())}. With a cache the "
        f"first pass runs {prompt} positions and each later one only the newest: "
        f"{int(newest.sum())}. The rest, drawn as empty boxes, is read from the cache.",
    )


def loops(lengths: Sequence[int], without: Sequence[float], cached: Sequence[float]) -> None:
    """Milliseconds of one step against the length of the text, for both loops."""
    ratios = [a / b for a, b in zip(without, cached, strict=True)]
    five = crossing(lengths, ratios, 5)
    fig, ax = plt.subplots()
    for i, (name, times) in enumerate((("without a cache", without), ("with a cache", cached))):
        ax.plot(lengths, times, marker=plots.MARKERS[i], label=name)
    for n, ratio, high in zip(lengths, ratios, without, strict=True):
        ax.annotate(
            f"{ratio:.1f} ×",
            (n, high),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            bbox=plots.BEHIND,
        )
    where = f"five times at {five:.0f} tokens" if five else "less than five times so far"
    if five is not None:
        ax.axvline(five, color=plots.INK, linewidth=0.9, linestyle=":")
    ax.set(xlabel="tokens in the text", ylabel="milliseconds per step", xticks=lengths)
    ax.set(ylim=(0, 1.18 * max(without)), xlim=(0, 1.06 * lengths[-1]))
    ax.set_title(f"One step: {ratios[-1]:.1f} × at {lengths[-1]} tokens; {where}")
    ax.legend(loc="upper left")
    plots.show(
        fig,
        alt="Milliseconds per step without and with a cache: "
        + "; ".join(
            f"{a:.0f} and {b:.0f} at {n} tokens"
            for n, a, b in zip(lengths, without, cached, strict=True)
        )
        + f". The ratio: {where}.",
    )


def caches(contexts: Sequence[int], concatenated: Sequence[float], fixed: Sequence[float]) -> None:
    """Milliseconds of one decode step against the tokens in the cache, for both caches."""
    fig, ax = plt.subplots()
    rows = (("concatenated", concatenated), ("written in place", fixed))
    for i, (name, times) in enumerate(rows):
        ax.plot(contexts, times, marker=plots.MARKERS[i], label=name)
        ax.annotate(
            f"{times[-1]:.0f} ms",
            (contexts[-1], times[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set(xlabel="tokens in the cache", ylabel="milliseconds per step", ylim=(0, None))
    ax.set(xticks=contexts[1:], xlim=(0, 1.1 * contexts[-1]))
    growth = [times[-1] / times[0] for _, times in rows]
    ax.set_title(
        f"From {contexts[0]} to {contexts[-1]:,} tokens: {growth[0]:.1f} × the time when copied, "
        f"{growth[1]:.1f} × in place"
    )
    ax.legend(loc="upper left")
    plots.show(
        fig,
        alt="Milliseconds per decode step with the concatenating and with the preallocated cache: "
        + "; ".join(
            f"{a:.0f} and {b:.0f} at {n:,} tokens"
            for n, a, b in zip(contexts, concatenated, fixed, strict=True)
        )
        + ".",
    )


def operations(lengths: Sequence[int], counts: Mapping[str, Sequence[float]]) -> None:
    """Multiplications of a whole answer against its length, with the slope at the end."""
    fig, ax = plt.subplots(figsize=(7.2, 4.0))
    slopes = {}
    for i, (name, values) in enumerate(counts.items()):
        slopes[name] = float(np.log(values[-1] / values[-2]) / np.log(lengths[-1] / lengths[-2]))
        label = f"{name}: slope {slopes[name]:.2f}"
        ax.loglog(lengths, values, marker=plots.MARKERS[i], label=label)
    ax.set(xlabel="tokens written", ylabel="multiplications, all steps together")
    ax.set_xticks(lengths, [str(n) for n in lengths])
    ax.minorticks_off()
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.set_title("Without a cache: quadratic and cubic. With it: linear and quadratic")
    plots.show(
        fig,
        alt="Multiplications of a whole answer against its length, both axes logarithmic. "
        + "; ".join(f"{name} has slope {slope:.2f}" for name, slope in slopes.items())
        + f" between the last two points, {lengths[-2]} and {lengths[-1]} tokens.",
    )


def roofline(points: Mapping[str, tuple[float, float]], bandwidth: float, peak: float) -> None:
    """Achieved FLOP/s against FLOPs per byte. points: name to (FLOPs per byte, FLOP/s)."""
    ridge = peak / bandwidth
    fig, ax = plt.subplots(figsize=(7.2, 4.0))
    most = max(8 * ridge, *(2 * x for x, _ in points.values()))
    x = np.geomspace(0.25, most, 200)
    ax.loglog(x, np.minimum(x * bandwidth, peak) / 1e9, color=plots.INK, label="the roof")
    ax.axvline(ridge, color=plots.INK, linewidth=0.9, linestyle=":")
    ax.annotate(
        f"ridge: {ridge:.1f} FLOPs per byte",
        (ridge, 1.35 * peak / 1e9),
        ha="center",
        va="bottom",
        backgroundcolor=plots.PAPER,
    )
    for i, (name, (intensity, speed)) in enumerate(points.items()):
        ax.plot(intensity, speed / 1e9, plots.MARKERS[i], color=plots.COLOURS[i], markersize=8)
        ax.annotate(
            name,
            (intensity, speed / 1e9),
            xytext=(0, -9),
            textcoords="offset points",
            va="top",
            ha="center",
            bbox=plots.BEHIND,
        )
    least = min(speed for _, speed in points.values())
    ax.set(xlabel="FLOPs per byte read", ylabel="GFLOP per second", xlim=(0.2, most * 1.5))
    ax.set_ylim(0.4 * least / 1e9, 3 * peak / 1e9)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_title("A larger batch moves decode to the right, towards the ridge")
    plots.show(
        fig,
        alt=f"A roofline: the slope is {bandwidth / 1e9:.0f} GB/s, the flat part "
        f"{peak / 1e9:.0f} GFLOP/s, the ridge at {ridge:.1f} FLOPs per byte. "
        + "; ".join(
            f"{name}: {intensity:.1f} FLOPs per byte, {speed / 1e9:.1f} GFLOP/s"
            for name, (intensity, speed) in points.items()
        )
        + ".",
    )


def growth(names: Sequence[str], memory: int = 24) -> None:
    """Cache of one text against its length at 16 bits, and what 24 GiB leave beside the weights."""
    lengths = [2**i for i in range(8, 18)]
    fig, ax = plt.subplots(figsize=(7.2, 4.2))
    told = []
    for i, name in enumerate(names):
        shape = MODELS[name]
        sizes = [cache_bytes(shape, n) / GIB for n in lengths]
        ax.loglog(lengths, sizes, marker=plots.MARKERS[i], label=name)
        ax.annotate(
            f"{name}, {sizes[-1]:.3g}",
            (lengths[-1], sizes[-1]),
            xytext=(8, 4 - 8 * (i % 2 == 0)),
            textcoords="offset points",
            va="center",
        )
        told.append(f"{name} {cache_bytes(shape, 4096) / GIB:.3f}")
    left = memory - weight_bytes(MODELS["Llama 2 7B"]) / GIB
    ax.axhline(left, color=plots.INK, linewidth=1, linestyle="--")
    ax.annotate(
        f"{left:.1f} GiB",
        (lengths[0], left),
        xytext=(4, 4),
        textcoords="offset points",
    )
    ax.set_xticks(lengths[::3], [f"{n:,}" for n in lengths[::3]])
    ax.minorticks_off()
    ax.set(xlabel="tokens of one text", ylabel="cache in GiB, 16 bits", xlim=(lengths[0], 2.2e6))
    ax.set_title("The cache grows with the text, and the shape decides how fast")
    plots.show(
        fig,
        alt="Cache of one text in GiB against its length, straight lines on logarithmic axes. At "
        f"4,096 tokens: {'; '.join(told)}. A dashed line marks {left:.1f} GiB, what {memory} GiB "
        "leave beside the weights of Llama 2 7B.",
    )
