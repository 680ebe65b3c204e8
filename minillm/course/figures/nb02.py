"""Figures of notebook 02."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from minillm.course import plots
from minillm.course.rope_angles import arrow, frequency


def cosines(raw: Tensor, centred: Tensor, marked: Mapping[str, tuple[float, float]]) -> None:
    """Cosines of random pairs of words, before and after the mean row is taken away.

    raw, centred: the cosines of the same pairs. marked: a pair's name to its two cosines.
    """
    fig, axes = plt.subplots(2, 1, figsize=(7.2, 4.6), sharex=True)
    panels = (("raw", raw), ("mean row taken away", centred))
    for i, (ax, (title, values)) in enumerate(zip(axes, panels, strict=True)):
        bins = np.linspace(-0.5, 1, 76)
        counts, _, _ = ax.hist(
            values.numpy(), bins=bins, color=plots.COLOURS[i], hatch=plots.HATCHES[i], alpha=0.75
        )
        top = counts.max()
        mean = round(float(values.mean()), 2) + 0.0  # never "-0.00"
        ax.set(title=f"{title}: random pairs {mean:.2f} ± {values.std():.2f}", yticks=[])
        ax.set_ylim(0, top * 1.3)
        # Each label a step lower than the one to its left, so that none covers another's line.
        for rank, (name, both) in enumerate(sorted(marked.items(), key=lambda item: item[1][i])):
            height = top * (1.25 - 0.24 * rank)
            ax.plot([both[i], both[i]], [0, height], "-", color=plots.INK, linewidth=1)
            label = {"va": "top", "fontsize": 9, "backgroundcolor": plots.PAPER}
            ax.text(both[i] + 0.012, height, f"{name} {both[i]:.2f}", **label)
    axes[1].set_xlabel("cosine of the two vectors")
    plots.show(
        fig,
        alt=f"Histograms of the cosine of random pairs of words: raw {raw.mean():.2f} ± "
        f"{raw.std():.2f}; with the mean row taken away {abs(centred.mean()):.2f} ± "
        f"{centred.std():.2f}. Marked, raw and centred: "
        + "; ".join(f"{name} {a:.2f} and {b:.2f}" for name, (a, b) in marked.items())
        + ".",
    )


def word_map(points: Tensor, groups: Mapping[str, str], sizes: Tensor) -> None:
    """Words in the plane of two directions; one marker and colour per group.

    points: (words, 2), in the order of the groups. groups: name to its words in one text.
    sizes: the singular values, whose squares are shares of the variance.
    """
    kept = float(sizes[:2].square().sum() / sizes.square().sum())
    fig, ax = plt.subplots(figsize=(7.2, 5.4))
    start, labelled = 0, list[tuple[float, float, str]]()
    width, height = (points.max(0).values - points.min(0).values).tolist()
    for i, (name, text) in enumerate(groups.items()):
        words = text.split()
        x, y = points[start : start + len(words)].T.tolist()
        start += len(words)
        colour = plots.COLOURS[i % len(plots.COLOURS)]
        ax.plot(x, y, plots.MARKERS[i], color=colour, label=name, linestyle="none")
        labelled += zip(x, y, words, strict=True)
    ax.set(xlabel="first direction", ylabel="second direction", xticks=[], yticks=[])
    ax.set_title(f"{len(points)} embeddings in the plane, {kept:.0%} of their variance")
    _label(ax, labelled, wide=0.013 * width, high=0.033 * height)
    ax.margins(x=0.12)
    ax.legend(fontsize=9, loc="best")
    plots.show(
        fig,
        alt=f"A map of {len(points)} word embeddings on two directions that keep {kept:.0%} of "
        f"their variance. The groups {', '.join(groups)} form islands of their own.",
    )


def _label(ax: Axes, labelled: list[tuple[float, float, str]], wide: float, high: float) -> None:
    """Names to the right of their points, each moved up until it covers no name below it.

    wide, high: what a letter and a line take, in data units.
    """
    placed: list[tuple[float, float, str]] = []
    for x, y, word in sorted(labelled, key=lambda each: each[1]):
        up = y
        while any(
            abs(up - other_y) < high and x < other_x + wide * len(other) + wide
            and other_x < x + wide * len(word) + wide
            for other_x, other_y, other in placed
        ):  # fmt: skip
            up += high / 4
        placed.append((x, up, word))
        lifted = {"arrowstyle": "-", "color": plots.GRID, "lw": 0.8} if up > y + high else None
        ax.annotate(word, (x, y), xytext=(x + wide, up), fontsize=8, va="center", arrowprops=lifted)


def one_pair(pairs: Sequence[int] = (0, 8, 16, 31)) -> None:
    """The widget in print: two arrows before and after a shift, and the scores of four pairs."""
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.8), width_ratios=(1.25, 1.25, 2.6))
    for ax, (query, key) in zip(axes[:2], ((40, 28), (240, 228)), strict=True):
        ax.add_patch(plt.Circle((0, 0), 1, fill=False, color=plots.GRID))
        for name, position, colour, line in (
            ("k", key, plots.VERMILION, "--"),
            ("q", query, plots.BLUE, "-"),
        ):
            x, y = arrow(8, position)
            ax.plot([0, x], [0, y], line, color=colour, linewidth=2.5)
            ax.plot(x, y, "o", color=colour)
            ax.text(1.28 * x, 1.28 * y, name, ha="center", va="center")
        ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", xticks=[], yticks=[])
        ax.set_title(f"q at {query},\nk at {key}", fontsize=9)
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
    distances = torch.arange(0, 401)
    for pair in pairs:
        if pair == 0:  # too fast for a readable curve over 400 tokens: its first waves only
            d = torch.linspace(0, 25, 251)
            axes[2].plot(d, (frequency(0) * d).cos(), linewidth=1, label="pair 0 (to 25)")
            continue
        axes[2].plot(distances, (frequency(pair) * distances).cos(), label=f"pair {pair}")
    axes[2].set(xlabel="distance in tokens", ylabel="score of the pair", ylim=(-1.15, 1.15))
    fig.legend(fontsize=8, loc="outside lower right", ncols=4)
    twelve = float(torch.tensor(12 * frequency(8)).cos())
    plots.show(
        fig,
        alt="Left: the arrows of a query and a key of pair 8, twelve positions apart. At 40 and 28 "
        "and at 240 and 228 they point elsewhere, but the angle between them is the same, and so "
        f"is their score, {twelve:.2f}. Right: score against distance for pairs 0, 8, 16 and 31. "
        "Pair 0 swings once in 6 tokens, pair 8 in 112, pair 16 in 1,987; pair 31 stays at 1.",
    )


def wavelengths(lengths: Tensor, trained: int, unturned: int) -> None:
    """Tokens for one turn of each pair, on a logarithmic axis, with the trained length."""
    fig, ax = plt.subplots()
    pairs = torch.arange(len(lengths))
    full = lengths <= trained
    for i, (chosen, name) in enumerate(
        ((full, "turns fully"), (~full, "never completes a turn in training"))
    ):
        ax.plot(pairs[chosen], lengths[chosen], plots.MARKERS[i], linestyle="none", label=name)
    ax.axhline(trained, color=plots.INK, linewidth=1, linestyle="--")
    ax.text(0, trained * 1.25, f"trained length, {trained:,} tokens", va="bottom")
    ax.set(yscale="log", xlabel="pair i", ylabel="tokens for one full turn")
    ax.set_title("From 6 tokens to hundreds of thousands")
    ax.legend(loc="lower right")
    plots.show(
        fig,
        alt=f"Wavelength of each of the {len(lengths)} pairs on a logarithmic axis: a straight "
        f"line from {lengths[0]:.1f} tokens for pair 0 to {lengths[-1]:,.0f} for pair "
        f"{len(lengths) - 1}. The last {unturned} lie above the trained length of {trained:,}.",
    )


def speeds_kept(kept: Mapping[str, Tensor], factor: float) -> None:
    """By method, the share of its speed that each pair has after stretching by `factor`."""
    fig, ax = plt.subplots()
    for i, (name, shares) in enumerate(kept.items()):
        marker = plots.MARKERS[i]
        ax.plot(shares, marker=marker, markevery=(i, 4), color=plots.COLOURS[i + 1], label=name)
    ax.axhline(1 / factor, color=plots.INK, linewidth=0.8, linestyle=":")
    ax.set(xlabel="pair i, from fast to slow", ylabel="new speed / old speed", ylim=(0, 1.08))
    ax.set_title("Who is slowed: everybody, or only the slow")
    ax.legend(loc="upper right")
    middle = ", ".join(f"{name} {float(shares[16]):.2f}" for name, shares in kept.items())
    plots.show(
        fig,
        alt=f"New speed over old speed for each pair when the context is stretched {factor:.0f} "
        f"times. At pair 0: linear {1 / factor:.2f}, the others 1. At pair 31: all "
        f"{1 / factor:.2f}. Between, at pair 16: {middle}.",
    )


def gap_curves(gaps: Sequence[int], copy: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """The loss on the second copy against the gap before it: mean over seeds, by method.

    copy: name to losses, [gap][seed].
    """
    fig, ax = plt.subplots(figsize=(7.2, 4.4))
    means = {name: np.array(losses).mean(axis=1) for name, losses in copy.items()}
    thousands = np.array(gaps) / 1000
    for i, (name, losses) in enumerate(copy.items()):
        mean, colour = means[name], plots.COLOURS[i]
        error = np.array(losses).std(axis=1, ddof=1) / len(losses[0]) ** 0.5
        ax.plot(thousands, mean, marker=plots.MARKERS[i], color=colour, label=name)
        ax.fill_between(thousands, mean - error, mean + error, color=colour, alpha=0.15, lw=0)
    ax.axvline(8.192, ymax=0.9, color=plots.INK, linewidth=1, linestyle="--")
    ax.text(8.4, 0.2, "trained length", fontsize=9)
    ax.set(xlabel="gap between the copies, thousands of positions", ylim=(0, 14.8))
    ax.set(ylabel="loss on the second copy, nats")
    ax.set_title("Copying across a gap; the context stretched four times")
    ax.legend(ncols=5, fontsize=8, loc="upper center", columnspacing=1)
    shown = [list(gaps).index(gap) for gap in (0, 4_000, 10_000, 18_000, 26_000)]
    plots.show(
        fig,
        alt="Mean loss on the second copy at gaps of 0, 4,000, 10,000, 18,000 and 26,000: "
        + "; ".join(
            f"{name} " + ", ".join(f"{mean[index]:.1f}" for index in shown)
            for name, mean in means.items()
        )
        + ".",
    )
