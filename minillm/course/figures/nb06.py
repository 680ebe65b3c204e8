"""Figures of notebook 06."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullFormatter

from minillm.config import ModelConfig
from minillm.course import plots
from minillm.course.window_view import cache_bytes, kind_of

PLAIN = FuncFormatter(lambda value, _: f"{value:,.0f}")


def pooling(values: Mapping[str, Any]) -> None:
    """What pooling the key/value heads costs: one layer at a time, the last ten, all."""
    full, one = values["full"], values["one"]
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), width_ratios=(2.2, 1))
    left.bar(range(len(one)), [loss - full for loss in one], color=plots.BLUE)
    left.set(xlabel="the one layer that is pooled", ylabel="loss added, nats per token")
    left.set_title("One layer: nearly free past the first two")
    left.grid(axis="x", visible=False)
    names, heights = ("none", "last ten", "all"), (full, values["last ten"], values["all"])
    bars = right.bar(names, heights, color=plots.VERMILION, hatch=plots.HATCHES[1])
    right.bar_label(bars, [f"{height:.2f}" for height in heights], padding=2)
    right.set(ylabel="loss", ylim=(0, max(heights) * 1.12))
    right.set_title("Many layers")
    right.grid(axis="x", visible=False)
    worst = sorted(range(len(one)), key=lambda i: -one[i])[:2]
    plots.show(
        fig,
        alt=f"Pooling three key/value heads into one adds {one[worst[0]] - full:.2f} nats in layer "
        f"{worst[0]}, {one[worst[1]] - full:.2f} in layer {worst[1]} and at most "
        f"{max(x - full for i, x in enumerate(one) if i not in worst):.2f} in any other single "
        f"layer. The loss is {full:.2f} without pooling, {values['last ten']:.2f} with the last "
        f"ten layers pooled and {values['all']:.2f} with all.",
    )


def masks(tokens: int, window: int) -> None:
    """Three masks side by side: causal, with a window, with a window and one sink."""
    panels = (
        ("causal", tokens, 0),
        (f"window {window}", window, 0),
        (f"window {window}, 1 sink", window, 1),
    )
    marks = {
        "window": ("s", plots.BLUE),
        "sink": ("D", plots.VERMILION),
        "forgotten": (".", "#888"),
    }
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.9), sharey=True)
    for ax, (title, size, sinks) in zip(axes, panels, strict=True):
        for kind, (marker, colour) in marks.items():
            points = [
                (key, query)
                for query in range(tokens)
                for key in range(tokens)
                if kind_of(query, key, size, sinks) == kind
            ]
            x, y = zip(*points, strict=True) if points else ((), ())
            ax.scatter(x, y, marker=marker, color=colour, s=14 if kind == "forgotten" else 44)
        ax.set(xlabel="key", xticks=range(0, tokens, 2), yticks=range(0, tokens, 2), aspect="equal")
        ax.set_title(title)
    axes[0].set_ylabel("query")
    axes[0].invert_yaxis()
    plots.show(
        fig,
        alt=f"Three masks over {tokens} tokens. Causal: a filled triangle. Window {window}: a band "
        f"of {window} keys along the diagonal, the rest forgotten. With one sink: the same band, "
        "and key 0 stays visible in every row.",
    )


def windows(values: Mapping[str, Any]) -> None:
    """Perplexity against the window, with 0, 1 and 4 sinks."""
    sizes, full = values["windows"], values["full"]
    fig, ax = plt.subplots(figsize=(7.2, 3.8))
    for i, (sinks, row) in enumerate(values["perplexity"].items()):
        label = {"0": "no token kept", "1": "first token kept"}.get(sinks, f"first {sinks} kept")
        ax.plot(sizes, row, marker=plots.MARKERS[i], label=label)
    ax.axhline(full, color=plots.BLACK, linewidth=1, linestyle=":")
    ax.annotate(f"all tokens: {full:.0f}", (sizes[-1], full), xytext=(0, -13), ha="right",
                textcoords="offset points")  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.set_yticks([25, 50, 100, 200, 400])
    ax.set_ylim(20, 500)
    ax.yaxis.set_major_formatter(PLAIN)
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="window, tokens", ylabel="perplexity")
    ax.set_title("One kept token is worth more than a larger window")
    ax.legend()
    parts = [
        f"window {size}: " + ", ".join(f"{row[i]:.0f}" for row in values["perplexity"].values())
        for i, size in enumerate(sizes)
    ]
    plots.show(
        fig,
        alt="Perplexity with no, one and four first tokens kept. "
        + "; ".join(parts)
        + f". With all tokens {full:.0f}.",
    )


def copies(values: Mapping[str, Any], distance: int) -> None:
    """Loss on a copy that is `distance` tokens away, against the window."""
    sizes, losses = values["windows"], values["loss"]
    fig, ax = plt.subplots()
    ax.plot(sizes, losses, marker=plots.MARKERS[0])
    ax.axvline(distance, color=plots.VERMILION, linestyle="--", linewidth=1.2)
    ax.annotate(f"distance of the copy: {distance}", (distance, 8), xytext=(-8, 0), ha="right",
                textcoords="offset points")  # fmt: skip
    ax.axhline(values["full"], color=plots.BLACK, linewidth=1, linestyle=":")
    ax.annotate(f"all tokens: {values['full']:.1f}", (sizes[0], values["full"]), xytext=(0, 5),
                textcoords="offset points")  # fmt: skip
    ax.set(xlabel="window, tokens (one sink kept)", ylabel="loss on the copy", ylim=(0, None))
    ax.set_title("Thirty layers of windows do not reach one token further")
    chosen = [sizes.index(size) for size in (sizes[0], 64, 130, 139, 140, 141)]
    plots.show(
        fig,
        alt=f"Loss on a copy {distance} tokens away: "
        + ", ".join(f"{losses[i]:.1f} with a window of {sizes[i]}" for i in chosen)
        + f"; {values['full']:.1f} with all tokens.",
    )


def memory(config: ModelConfig, window: int, sinks: int, tokens: int = 10_000) -> None:
    """Bytes of the cache against the length of the text, at 16 bits."""
    lengths = [16 * (tokens / 16) ** (i / 60) for i in range(61)]
    mha = config.num_attention_heads // config.num_key_value_heads
    local = config.with_window(window, sinks=sinks)
    mixed = config.with_window(window, sinks=sinks, global_every=6)
    curves = (
        (f"every token, {config.num_attention_heads} heads (MHA)", config, mha),
        (f"every token, {config.num_key_value_heads} heads (GQA)", config, 1),
        (f"window {window}, every 6th layer global", mixed, 1),
        (f"window {window}, {sinks} sinks", local, 1),
    )
    fig, ax = plt.subplots(figsize=(7.2, 3.8))
    said = []
    for i, (name, each, times) in enumerate(curves):
        sizes = [times * cache_bytes(each, round(length)) / 1e6 for length in lengths]
        label = f"{name}: {sizes[-1]:,.0f} MB"
        ax.plot(lengths, sizes, marker=plots.MARKERS[i], markevery=10, label=label)
        said.append(f"{name}, {sizes[-1]:,.0f} MB")
    ax.set(xscale="log", yscale="log", xlabel="tokens of text", ylabel="MB, 16 bits per value")
    ax.set_ylim(0.2, 8_000)
    ax.legend(loc="upper left", title=f"at {tokens:,} tokens", alignment="left")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PLAIN)
    ax.set_title("With a window in every layer the cache stops growing")
    plots.show(fig, alt=f"Cache at {tokens:,} tokens: " + "; ".join(said) + ".")


def stream(values: Mapping[str, Any], corpus: int, trained: int) -> None:
    """Loss along a long text that repeats itself: every token kept, or a window with and without
    sinks."""
    size, tokens = values["bucket"], values["tokens"]
    x = [size * (i + 0.5) for i in range(len(values["dense"]))]
    names = {
        "sinks 0": f"window {values['window']}, nothing kept",
        "sinks 4": f"window {values['window']}, 4 sinks",
        "dense": "every token kept",
    }
    fig, ax = plt.subplots(figsize=(7.2, 3.8))
    for i, (key, name) in enumerate(names.items()):
        ax.plot(x, values[key], marker=plots.MARKERS[i], markevery=3, label=name)
    for place, text in ((corpus, "the text begins again"), (trained, "trained length")):
        ax.axvline(place, color=plots.BLACK, linewidth=1, linestyle=":")
        ax.annotate(text, (place, 1.5), xytext=(4, 0), textcoords="offset points")
    ax.set(xlabel="position in the stream, tokens", ylabel="loss, nats per token",
           ylim=(0, 4.6), xlim=(0, tokens))  # fmt: skip
    ax.xaxis.set_major_formatter(PLAIN)
    ax.set_title("A window with sinks runs on for ever, and remembers nothing")
    ax.legend(loc="upper right", ncols=3, columnspacing=1.2, fontsize=9)
    later = next(i for i, value in enumerate(x) if value > trained)
    means = {key: sum(values[key][later:]) / len(values[key][later:]) for key in names}
    plots.show(
        fig,
        alt=f"Loss along {tokens:,} tokens. Past the trained length of {trained:,} the means are: "
        + "; ".join(f"{name}, {means[key]:.1f}" for key, name in names.items())
        + f". All three begin alike; with every token kept the loss falls to nearly 0 after "
        f"{corpus:,} tokens, when the text begins again.",
    )
