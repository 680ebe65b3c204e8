"""Figures of notebook 03."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from torch import Tensor

from minillm.course import plots


def scale(widths: Sequence[int], rows: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Variance of the scores and the largest of 16 weights, against the width of a head.

    rows: for each rule of scaling, a pair (variance, largest weight) per width.
    """
    fig, axes = plt.subplots(1, 2)
    for i, (name, pairs) in enumerate(rows.items()):
        for ax, values in zip(axes, zip(*pairs, strict=True), strict=True):
            ax.plot(widths, values, marker=plots.MARKERS[i], label=name)
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.set_xticks(widths, [str(width) for width in widths])
        ax.set_xlabel("width D of the head")
    axes[0].set_yscale("log")
    axes[0].set_title("Variance of a score")
    axes[1].set(ylim=(0, 1))
    axes[1].set_title("Largest of 16 weights, on average")
    axes[0].legend()
    told = "; ".join(
        f"{name}: variance {pairs[-1][0]:.2g}, largest weight {pairs[-1][1]:.2f}"
        for name, pairs in rows.items()
    )
    plots.show(fig, alt=f"Random queries and keys, values at D = {widths[-1]}: {told}.")


def memory(lengths: Sequence[int], direct: Sequence[int], tiled: Sequence[int]) -> None:
    """Peak bytes of the tensors of both forms of attention, against the length."""
    fig, ax = plt.subplots()
    for i, (name, values) in enumerate((("direct", direct), ("tile by tile", tiled))):
        megabytes = [value / 1e6 for value in values]
        ax.plot(lengths, megabytes, marker=plots.MARKERS[i])
        ax.annotate(
            f"{name}: {megabytes[-1]:.1f} MB",
            (lengths[-1], megabytes[-1]),
            xytext=(-10, 0) if i == 0 else (-6, 12),
            textcoords="offset points",
            ha="right",
            va="center",
        )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
    ax.set(xlabel="tokens", ylabel="MB of tensors at the peak, one head")
    ax.set_title("Doubling the text: four times the matrix, twice the tiles")
    plots.show(
        fig,
        alt="Peak tensor memory of one head, direct and tile by tile: "
        + "; ".join(
            f"{a / 1e6:.1f} and {b / 1e6:.1f} MB at {length:,} tokens"
            for length, a, b in zip(lengths, direct, tiled, strict=True)
        )
        + ".",
    )


def three_heads(panels: Sequence[tuple[str, Sequence[str], Tensor]]) -> None:
    """Heat maps of attention weights. panels: title, labels of the tokens, weights (T, T)."""
    fig, axes = plt.subplots(1, len(panels), figsize=(7.2, 3.3))
    for ax, (title, labels, weights) in zip(axes, panels, strict=True):
        image = ax.imshow(weights.numpy(), vmin=0, vmax=1)
        ax.grid(False)
        places = range(len(labels))
        ax.set_xticks(places, labels, rotation=90, fontsize=8)
        ax.set_yticks(places, labels, fontsize=8)
        ax.set_title(title.replace(" ", "\n", 1), fontsize=10)
        for t in places:
            for s in places[: t + 1]:
                if (weight := float(weights[t, s])) >= 0.5:
                    ink = "black" if weight > 0.6 else "white"
                    ax.text(s, t, f"{weight:.1f}", ha="center", va="center", fontsize=6, color=ink)
    axes[0].set_ylabel("query (looks)")
    axes[len(panels) // 2].set_xlabel("key (is looked at)")
    fig.colorbar(image, ax=axes, label="weight", shrink=0.7)
    told = [
        f"{title}: the last token gives {float(weights[-1].max()):.2f} "
        f"to {labels[int(weights[-1].argmax())]!r}"
        for title, labels, weights in panels
    ]
    plots.show(fig, alt="Attention weights of three heads. " + "; ".join(told) + ".")


def head_map(copy: Tensor, full: float, marked: Sequence[tuple[int, int]]) -> None:
    """COPY without each head, (L, H), and the value of the full model; some heads are marked."""
    fig, ax = plt.subplots(figsize=(7.2, 2.9))
    image = ax.imshow((copy.T - full).numpy(), aspect="auto", vmin=0)
    ax.grid(False)
    ax.set_xticks(range(0, len(copy), 2))
    ax.set_yticks(range(copy.shape[1]))
    for layer, head in marked:
        ax.text(layer + 0.7, head, f"{layer}.{head}", va="center", fontsize=8, color="white")
    ax.set(xlabel="layer", ylabel="head")
    ax.set_title("What copying loses when one head is removed")
    fig.colorbar(image, ax=ax, label="COPY, nats more")
    told = ", ".join(f"{layer}.{head} {copy[layer, head] - full:+.1f}" for layer, head in marked)
    plots.show(fig, alt=f"270 heads; rise of the copying loss in nats without: {told}.")


def patching(values: Tensor, tokens: Sequence[str]) -> None:
    """Logit of Rome minus that of Paris after patching: (L, T) values, the prompt's tokens."""
    fig, ax = plt.subplots(figsize=(7.2, 2.9))
    bound = float(values.abs().max())
    image = ax.imshow(values.T.numpy(), aspect="auto", vmin=-bound, vmax=bound)
    ax.grid(False)
    ax.set_xticks(range(0, len(values), 2))
    ax.set_yticks(range(len(tokens)), tokens)
    ax.axvline(23.5, color="white", linestyle=":", linewidth=1.5)
    last = values.shape[1] - 1
    for layer, place in ((11, 3), (27, 3), (11, last), (27, last)):
        value = float(values[layer, place])
        ink = "black" if value > 0 else "white"
        ax.text(layer, place, f"{value:+.1f}", ha="center", va="center", color=ink)
    ax.set(xlabel="the hidden state that enters this layer is replaced")
    ax.set_title("Italy's hidden state in the France prompt, at one place")
    fig.colorbar(image, ax=ax, label="logit of Rome\nminus logit of Paris")
    plots.show(
        fig,
        alt="Patching, 5 positions by 30 layers. Rome minus Paris is "
        f"{float(values[:24, 3].mean()):+.1f} on average at the country up to layer 23 and "
        f"{float(values[24:, 3].mean()):+.1f} from 24 on; at the last position "
        f"{float(values[:24, last].mean()):+.1f} up to 23 and "
        f"{float(values[24:, last].mean()):+.1f} from 24 on; elsewhere "
        f"{float(values[:, :3].mean()):+.1f}.",
    )


def cut_edges(probability: Sequence[float], right: Sequence[int], full: float) -> None:
    """Mean probability of seven capitals when one edge is cut, by the layer it is cut in."""
    fig, ax = plt.subplots(figsize=(7.2, 2.9))
    ax.plot(probability, marker=plots.MARKERS[0])
    ax.axhline(full, color=plots.INK, linestyle=":", linewidth=1)
    ax.annotate("nothing cut", (0, full), xytext=(0, 12), textcoords="offset points")
    worst = min(range(len(right)), key=lambda layer: right[layer])
    ax.annotate(
        f"layer {worst}: {right[worst]} of 7 right",
        (worst, probability[worst]),
        xytext=(-10, 4),
        textcoords="offset points",
        ha="right",
    )
    ax.set(xlabel="layer", ylabel="probability of the capital", ylim=(0, 0.75))
    ax.set_title("The last token may not see the country, in one layer")
    others = [value for layer, value in enumerate(probability) if layer != worst]
    plots.show(
        fig,
        alt=f"Mean probability of the right capital, {full:.2f} with nothing cut. Cut in layer "
        f"{worst} it is {probability[worst]:.2f} and {right[worst]} of 7 are right; in every other "
        f"layer {min(others):.2f} or more and 7 of 7.",
    )


def sink(weights: Sequence[float], channel: Sequence[float]) -> None:
    """By layer: attention on the first token, and channel 507 of the first token's vector."""
    fig, ax = plt.subplots()
    layers = range(len(weights))
    ax.bar(layers, weights, color=plots.SKY, hatch=plots.HATCHES[1])
    ax.set(xlabel="layer", ylabel="attention on the first token (bars)", ylim=(0, 1))
    ax.grid(False)
    twin = ax.twinx()
    size = [max(abs(value), 1) for value in channel]
    twin.plot(layers, size, color=plots.VERMILION, marker=plots.MARKERS[1])
    twin.set(yscale="log", ylabel="channel 507, entering the layer (line)", ylim=(1, 1e6))
    twin.grid(False)
    twin.spines["right"].set_visible(True)
    for layer in (5, 11, 12):
        twin.annotate(
            f"{size[layer]:,.0f}",
            (layer, size[layer]),
            xytext=(0, 9 if layer != 11 else -13),
            textcoords="offset points",
            ha="center",
        )
    ax.set_title("Where the channel is loud, heads park their attention")
    plots.show(
        fig,
        alt="Attention on the first token and its channel 507, by layer: "
        + "; ".join(
            f"{weights[i]:.2f} and {float(f'{size[i]:.2g}'):,.0f} at {i}"
            for i in (0, 5, 11, 12, 23)
        )
        + ".",
    )


def table(rows: Sequence[Sequence[Any]], head: Sequence[str], *, digits: int = 2) -> None:
    """Prints rows in columns: numbers to the right, with so many decimals; texts to the left."""

    def cell(value: Any) -> str:
        return f"{value:.{digits}f}" if isinstance(value, float) else str(value)

    cells = [[*map(cell, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    numeric = [isinstance(value, float) for value in rows[0]]
    for row in ([*head], *cells):
        print(
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
        )
