"""Figures of notebook 01."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt

from minillm.course import plots


def growth(read: Sequence[int], words: Sequence[int], characters: Sequence[int]) -> None:
    """Different words and different characters against the words read."""
    fig, ax = plt.subplots()
    last = read[-1]
    for i, (name, seen) in enumerate((("words", words), ("characters", characters))):
        ax.plot(read, seen, marker=plots.MARKERS[i], markevery=5)
        ax.annotate(
            f"{seen[-1]} different {name}",
            (last, seen[-1]),
            xytext=(-6, -44 if i == 0 else 8),
            textcoords="offset points",
            ha="right",
            va="top" if i == 0 else "bottom",
        )
    ax.set(xlabel="words of the text read so far", ylabel="different ones seen", ylim=(0, None))
    ax.set_title("New words keep coming, new characters do not")
    half = len(read) // 2
    plots.show(
        fig,
        alt=f"Different words grow from {words[half]} after {read[half]:,} words to {words[-1]} "
        f"after {last:,}; different characters stop at {characters[-1]}.",
    )


def compression(merges: Sequence[int], training: Sequence[float], unseen: Sequence[float]) -> None:
    """Bytes per token against the number of merges, for the training text and another one."""
    fig, ax = plt.subplots()
    ax.plot(merges, training, marker=plots.MARKERS[0], label="the text it was trained on")
    ax.plot(merges, unseen, marker=plots.MARKERS[1], label="a text it has not seen")
    ax.set_xticks(merges)
    ax.set(xlabel="merges", ylabel="bytes per token", ylim=(0, None))
    ax.set_title("The first merges shorten any text; the last ones mostly the training text")
    ax.legend()
    plots.show(
        fig,
        alt="Bytes per token on the training text and on an unseen text: "
        + "; ".join(
            f"{a:.1f} and {b:.1f} at {count} merges"
            for count, a, b in zip(merges, training, unseen, strict=True)
        )
        + ".",
    )


def languages(rows: Sequence[tuple[str, float, float]]) -> None:
    """For each language its tokens and its bytes per token. rows: name, tokens, bytes."""
    names = [name for name, _, _ in rows]
    least = rows[0][1]
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 4.4), sharey=True)
    panels = (
        (left, [tokens / least for _, tokens, _ in rows], "tokens, as a multiple of English", "×"),
        (right, [size / tokens for _, tokens, size in rows], "bytes per token", ""),
    )
    for i, (ax, values, title, unit) in enumerate(panels):
        bars = ax.barh(names, values, color=plots.COLOURS[i], hatch=plots.HATCHES[i])
        ax.bar_label(bars, [f"{value:.1f}{unit}" for value in values], padding=3)
        ax.set_xlim(0, max(values) * 1.18)
        ax.set_xlabel(title)
        ax.grid(axis="y", visible=False)
    left.invert_yaxis()
    fig.suptitle("The same eight sentences", x=0.01, ha="left", fontsize=11)
    plots.show(
        fig,
        alt="The same eight sentences, tokens as a multiple of English and bytes per token: "
        + "; ".join(
            f"{name} {tokens / least:.1f} and {size / tokens:.1f}" for name, tokens, size in rows
        )
        + ".",
    )
