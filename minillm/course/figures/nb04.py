"""Figures of notebook 04."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, StrMethodFormatter
from numpy.typing import NDArray
from torch import Tensor

from minillm.course import plots
from minillm.course.sampler import about, filtered, kept


def work(lengths: Sequence[int], counts: Sequence[Mapping[str, float]]) -> None:
    """FLOPs of a pass against prompt length. counts: by part, at each length."""
    parts = {
        "all weights but the head": [each["projections"] + each["MLP"] for each in counts],
        "tokens with tokens": [each["tokens with tokens"] for each in counts],
        "head, one position": [each["head"] for each in counts],
    }
    weights, own, _ = parts.values()
    crossing = round(lengths[0] * weights[0] / own[0])
    fig, ax = plt.subplots()
    for i, (name, each_length) in enumerate(parts.items()):
        ax.plot(lengths, np.array(each_length) / 1e9, marker=plots.MARKERS[i], label=name)
    ax.axvline(crossing, color=plots.INK, linewidth=1, linestyle=":")
    ax.annotate(
        f"{crossing:,} tokens",
        (crossing, 0.05),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
    )
    ax.set(xscale="log", yscale="log", xlabel="tokens in the prompt", ylabel="GFLOP per pass")
    ax.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ax.minorticks_off()
    ax.set_title("The weights' work grows with T, attention's own with T²")
    ax.legend()
    plots.show(
        fig,
        alt=f"GFLOP per pass against prompt length, {lengths[0]} to {lengths[-1]:,} tokens. The "
        "work of the weights grows in step with the prompt, attention's own with its square; they "
        f"meet at {crossing:,} tokens.",
    )


def lens_ranks(
    by_answer: Mapping[str, Sequence[int]], cut: Sequence[int], answer: str, layer: int
) -> None:
    """Rank of the right answer after each layer, counted from 1, on a log axis.

    by_answer: answer to ranks counted from 0. cut: the ranks of `answer` with head 23.4's edge cut.
    layer: the hidden state before the head's layer.
    """
    fig, ax = plt.subplots(figsize=(7.2, 4.2))
    states = range(len(cut))
    for i, (name, found) in enumerate(by_answer.items()):
        ax.plot(
            states,
            np.array(found) + 1,
            color=plots.COLOURS[i],
            marker=plots.MARKERS[i],
            markevery=5,
            label=name.strip(),
        )
    ax.plot(
        states,
        np.array(cut) + 1,
        color=plots.BLACK,
        linestyle=":",
        label=f"{answer.strip()}, edge cut",
    )
    ax.axvspan(layer, layer + 1, color=plots.GRID, zorder=0)
    ax.annotate(f"layer {layer}", (layer - 0.3, 300), ha="right", va="center")
    ax.set(yscale="log", xlabel="hidden state h[l]: after l layers", ylabel="rank of the answer")
    ax.set_yticks([1, 10, 100, 1_000, 10_000], ["1st", "10th", "100th", "1,000th", "10,000th"])
    ax.invert_yaxis()
    ax.minorticks_off()
    ax.set_title("The answer rises from layer 23 on, and leads only at the end")
    ax.legend(loc="upper left")

    def places(found: Sequence[int]) -> str:
        return f"{about(found[layer] + 1)}, {about(found[layer + 2] + 1)} and {found[-1] + 1}"

    each = "; ".join(f"{name.strip()} {places(found)}" for name, found in by_answer.items())
    plots.show(
        fig,
        alt=f"Rank of the right answer after each layer, log axis. At h[{layer}], h[{layer + 2}] "
        f"and the end: {each}. With layer {layer}'s edge cut, {answer.strip()}: {places(cut)}.",
    )


def lens_losses(losses: Sequence[float], uniform: float) -> None:
    """Mean loss of the lens by layer; the first value is left out, since it is off the scale."""
    fig, ax = plt.subplots()
    states = range(1, len(losses))
    ax.plot(states, losses[1:], marker=plots.MARKERS[0])
    ax.axhline(uniform, color=plots.VERMILION, linestyle="--")
    ax.annotate(
        f"a blind guess: {uniform:.1f}",
        (1, uniform),
        xytext=(0, -14),
        textcoords="offset points",
        color=plots.VERMILION,
    )
    ax.annotate(
        f"{losses[-1]:.1f}",
        (states[-1], losses[-1]),
        xytext=(-8, -3),
        textcoords="offset points",
        ha="right",
    )
    ax.set(xlabel="hidden state h[l]: after l layers", ylabel="loss, nats per token", ylim=(0, 23))
    first = next(i for i, value in enumerate(losses) if value < uniform)
    ax.set_title(f"Up to h[{first - 1}] the lens is worse than a blind guess")
    plots.show(
        fig,
        alt=f"Loss of the lens by layer: {losses[1]:.0f} nats at h[1], {max(losses[1:]):.0f} at "
        f"most, below a blind guess ({uniform:.1f}) from h[{first}] on, {losses[-1]:.1f} at the "
        "end.",
    )


def sampling(logits: Tensor, temperatures: Sequence[float], top_p: float, min_p: float) -> None:
    """Probability by rank at several temperatures, and where two filters cut. logits: (V,)."""
    fig, ax = plt.subplots(figsize=(7.2, 4.2))
    for i, temperature in enumerate(temperatures):
        shares = filtered(logits, temperature).softmax(-1).sort(descending=True).values.numpy()
        ranks = np.arange(1, len(shares) + 1)
        colour = plots.COLOURS[i]
        ax.plot(ranks, shares, color=colour, linestyle=plots.LINES[i], label=f"T = {temperature}")
        cuts = (
            (kept(filtered(logits, temperature, top_p=top_p)), "o", (-5, -15)),
            (kept(filtered(logits, temperature, min_p=min_p)), "X", (5, 5)),
        )
        for count, marker, shift in cuts:
            ax.plot(count, shares[count - 1], marker, color=colour, markersize=8)
            ax.annotate(
                about(count),
                (count, shares[count - 1]),
                xytext=shift,
                textcoords="offset points",
                color=colour,
                bbox=plots.BEHIND,
                ha="right" if marker == "o" else "left",
            )
    ax.plot([], [], "o", color=plots.INK, markersize=8, label=f"top-p {top_p} stops here")
    ax.plot([], [], "X", color=plots.INK, markersize=8, label=f"min-p {min_p} stops here")
    ax.set(xscale="log", yscale="log", ylim=(1e-7, 1.5), xlim=(0.9, None))
    ax.set(xlabel="rank of the token", ylabel="probability")
    ax.set_title("Heat flattens the curve; top-p then lets the tail in, min-p does not")
    ax.legend(loc="lower left")
    stops = "; ".join(
        f"T = {temperature}: {about(kept(filtered(logits, temperature, top_p=top_p)))} and "
        f"{about(kept(filtered(logits, temperature, min_p=min_p)))}"
        for temperature in temperatures
    )
    plots.show(
        fig,
        alt="Probability against rank, both logarithmic; heat flattens the curve. Tokens kept by "
        f"top-p {top_p} and by min-p {min_p}, at {stops}.",
    )


def time_and_roofline(
    lengths: Sequence[int],
    seconds: Sequence[float],
    flops: Sequence[float],
    weight_bytes: float,
    bandwidth: float,
    peak: float,
) -> None:
    """Left: time of a pass against prompt length, with both bounds. Right: the same as a roofline.

    flops: of each pass. bandwidth: bytes per second. peak: FLOPs per second.
    """
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.9))
    counts, took = np.array(flops), np.array(seconds)
    _time(left, lengths, 1e3 * took, 1e3 * weight_bytes / bandwidth, 1e3 * counts / peak)
    intensity = counts / weight_bytes  # FLOPs per byte
    line = np.geomspace(intensity[0] / 1.5, intensity[-1] * 1.5, 100)
    right.plot(line, np.minimum(line * bandwidth, peak) / 1e9, color=plots.INK, linestyle="--")
    right.plot(intensity, counts / took / 1e9, color=plots.BLUE, marker="o", linestyle="none")
    ridge = peak / bandwidth
    right.axvline(ridge, color=plots.VERMILION, linewidth=1, linestyle=":")
    right.annotate("ridge", (ridge, counts[0] / took[0] / 1e9), color=plots.VERMILION, ha="right")
    right.set(xscale="log", yscale="log", xlabel="FLOPs per byte of weights", ylabel="GFLOP/s")
    right.set_title("Roofline")
    for ax in (left, right):
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    fig.legend(
        [left.lines[0], left.lines[1], left.lines[2]],
        ["measured", "reading all weights once", "arithmetic at the measured peak"],
        loc="outside lower center",
        ncols=3,
    )
    plots.show(
        fig,
        alt=f"Left: time of a pass from {1e3 * seconds[0]:.0f} ms at {lengths[0]} token to "
        f"{1e3 * seconds[-1]:.0f} ms at {lengths[-1]}, with both bounds below it. Right: the same "
        f"passes under the roofline, whose ridge is at {ridge:.1f} FLOPs per byte.",
    )


def _time(
    ax: Axes,
    lengths: Sequence[int],
    measured: NDArray[np.float64],
    reading: float,
    sums: NDArray[np.float64],
) -> None:
    ax.plot(lengths, measured, color=plots.BLUE, marker="o")
    ax.plot(lengths, [reading] * len(lengths), color=plots.GREEN, linestyle="-.")
    ax.plot(lengths, sums, color=plots.VERMILION, linestyle="--")
    ax.set(xscale="log", yscale="log", xlabel="tokens in the prompt", ylabel="ms per pass")
    ticks = list(lengths)[::2]
    ax.set_xticks(ticks, [f"{n}" for n in ticks])
    ax.minorticks_off()
    ax.set_title("Time of one pass")
