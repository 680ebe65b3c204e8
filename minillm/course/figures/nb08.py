"""Figures of notebook 08."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from minillm.bench import Ceilings
from minillm.course import plots

REST = "#8C8A84"  # of a part that is not one thing


def step_parts(steps: Mapping[str, Mapping[str, float]]) -> None:
    """Milliseconds of a decode step by part, one bar for each way to run it."""
    totals = {name: sum(parts.values()) for name, parts in steps.items()}
    order = list(dict.fromkeys(part for parts in steps.values() for part in parts))
    colours = [*plots.COLOURS[: len(order) - 1], REST]
    fig, ax = plt.subplots(figsize=(7.2, 1.8 + 0.6 * len(steps)))
    for row, (name, parts) in enumerate(steps.items()):
        left = 0.0
        for i, part in enumerate(order):
            ms = parts.get(part, 0.0)
            ax.barh(
                row,
                ms,
                left=left,
                height=0.6,
                color=colours[i],
                hatch=plots.HATCHES[i % len(plots.HATCHES)],
                label=part if row == 0 else None,
            )
            left += ms
        ax.annotate(
            f"{totals[name]:.1f} ms",
            (left, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    ax.set_yticks(range(len(steps)), list(steps))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="milliseconds per token", xlim=(0, 1.14 * max(totals.values())))
    names = list(steps)
    largest = max(steps[names[0]], key=lambda part: steps[names[0]][part])
    share = steps[names[0]][largest] / totals[names[0]]
    others = [f"{name}: {totals[name] / totals[names[0]]:.0%} of its time" for name in names[1:]]
    ax.set_title("; ".join([f"{names[0]}: {largest}, {share:.0%}", *others]))
    fig.legend(loc="outside lower center", ncols=4)
    told = [
        f"{name} {totals[name]:.1f}: "
        + ", ".join(f"{part} {ms:.1f}" for part, ms in parts.items() if ms >= 0.05)
        for name, parts in steps.items()
    ]
    plots.show(fig, alt=f"Milliseconds of a decode step by part. {'; '.join(told)}.")


def three_bounds(
    megabytes: Sequence[float],
    one_token: Sequence[float],
    tokens: Sequence[int],
    many: Sequence[float],
    limits: Ceilings,
) -> None:
    """Microseconds of one product: against the matrix's bytes, and against the number of tokens.

    megabytes, one_token: matrices of growing size, each times one token. tokens, many: the largest
    matrix times more tokens.
    """
    fig, (left, right) = plt.subplots(1, 2, sharey=True)
    left.loglog(megabytes, one_token, marker=plots.MARKERS[0], label="measured")
    read = [m * 1e12 / limits.bytes_per_s for m in megabytes]
    left.loglog(megabytes, read, color=plots.INK, linestyle="--", label="reading alone")
    left.set(xlabel="megabytes of weights, one token", ylabel="microseconds")
    left.set_title("launch, then memory")
    left.legend(loc="upper left")
    flops = [2e6 * megabytes[-1] / 4 * n for n in tokens]
    right.loglog(tokens, many, marker=plots.MARKERS[0], label="measured")
    right.axhline(read[-1], color=plots.INK, linestyle="--", label="reading alone")
    arithmetic = [1e6 * f / limits.flops_per_s for f in flops]
    right.loglog(tokens, arithmetic, color=plots.VERMILION, linestyle=":", label="arithmetic alone")
    right.set(xlabel=f"tokens, {megabytes[-1]:.1f} MB of weights")
    right.set_title("memory, then arithmetic")
    right.legend(loc="lower right")
    left.set_ylim(0.7 * one_token[0], 2 * max(*many, *one_token))  # both panels
    right.set_xticks(tokens[::2], [str(n) for n in tokens[::2]])
    right.minorticks_off()
    plots.show(
        fig,
        alt="Microseconds of one product, logarithmic axes. Left, one token and growing matrices: "
        f"{one_token[0]:.1f} at {1e3 * megabytes[0]:.1f} kB, and {one_token[-1]:.0f} at "
        f"{megabytes[-1]:.1f} MB, where reading alone takes {read[-1]:.0f}. Right, the largest "
        f"matrix and more tokens: {many[0]:.0f} for {tokens[0]}, {many[-1]:.0f} for {tokens[-1]}, "
        f"whose arithmetic alone takes {arithmetic[-1]:.0f}.",
    )


def speeds(rows: Sequence[Mapping[str, float | str]], bandwidth: float) -> None:
    """Milliseconds per token against the megabytes that a step reads, by engine.

    rows: name, engine, megabytes, ms. bandwidth: bytes per second of the machine they ran on.
    """
    fig, ax = plt.subplots(figsize=(7.2, 4.2))
    engines = list(dict.fromkeys(str(row["engine"]) for row in rows))
    sizes = [float(row["megabytes"]) for row in rows]
    line = np.array([0, 1.2 * max(sizes)])
    ax.plot(line, line * 1e9 / bandwidth, color=plots.INK, linestyle="--", label="reading alone")
    slowest = next(float(row["ms"]) for row in rows)
    for i, engine in enumerate(engines):
        mine = sorted(
            (row for row in rows if row["engine"] == engine and float(row["ms"]) <= slowest),
            key=lambda row: row["megabytes"],
        )
        x, y = ([float(row[key]) for row in mine] for key in ("megabytes", "ms"))
        style = {"color": plots.COLOURS[i], "markersize": 8, "linestyle": "", "zorder": 5}
        ax.plot(x, y, plots.MARKERS[i], label=engine, **style)
        for number, (row, a, b) in enumerate(zip(mine, x, y, strict=True)):
            low, first = number % 2 == 1, number == 0 and len(mine) > 2
            ax.annotate(
                f"{row['name']}: {b:.1f}",
                (a, b),
                xytext=(8, -3) if low else (14 if first else -2, 9),
                textcoords="offset points",
                ha="left" if low else "right" if first else "center",
                va="top" if low else "bottom",
                bbox=plots.BEHIND,
            )
    ax.set(xlabel="megabytes read per token", ylabel="milliseconds per token")
    ax.set(xlim=(0, line[1]), ylim=(0, 1.2 * slowest))
    ax.set_title("Where a kernel reads them, fewer bytes are less time")
    ax.legend(loc="upper left")
    told = [f"{r['engine']}, {r['name']}: {r['megabytes']:.0f} MB, {r['ms']:.1f} ms" for r in rows]
    plots.show(
        fig,
        alt="Milliseconds per token against megabytes read per token. "
        + "; ".join(told)
        + f". Reading alone, at {bandwidth / 1e9:.0f} GB/s: {max(sizes) * 1e9 / bandwidth:.1f} ms "
        f"for {max(sizes):.0f} MB.",
    )


def roofline(points: Mapping[str, tuple[float, float]], limits: Ceilings) -> None:
    """Achieved FLOP/s against FLOPs per byte. points: name to (FLOPs per byte, FLOP/s)."""
    fig, ax = plt.subplots(figsize=(7.2, 4.0))
    most = max(8 * limits.ridge, *(2 * x for x, _ in points.values()))
    x = np.geomspace(0.2, most, 200)
    roof = np.minimum(x * limits.bytes_per_s, limits.flops_per_s) / 1e9
    ax.loglog(x, roof, color=plots.INK, label="the roof")
    told = []
    for i, (name, (intensity, speed)) in enumerate(points.items()):
        allowed = min(intensity * limits.bytes_per_s, limits.flops_per_s)
        colour = plots.COLOURS[i]
        ax.plot([intensity] * 2, [speed / 1e9, allowed / 1e9], color=colour, linestyle=":")
        ax.plot(intensity, speed / 1e9, plots.MARKERS[i], color=colour, markersize=8, label=name)
        share = f"{speed / allowed:.0%}"
        ax.annotate(
            share,
            (intensity, speed / 1e9),
            xytext=(8, -3),
            textcoords="offset points",
            bbox=plots.BEHIND,
        )
        told.append(f"{name}: {intensity:.1f} FLOPs per byte, {speed / 1e9:.1f} GFLOP/s, {share}")
    ax.set(xlabel="FLOPs per byte of weights and cache", ylabel="GFLOP per second")
    ax.set(xlim=(0.2, most * 1.5))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_title("Below the roof: what each phase leaves of what is possible")
    ax.legend(loc="lower right")
    plots.show(
        fig,
        alt=f"A roofline: the slope is {limits.bytes_per_s / 1e9:.0f} GB/s, the flat part "
        f"{limits.flops_per_s / 1e9:.0f} GFLOP/s, the ridge at {limits.ridge:.1f} FLOPs per byte. "
        + "; ".join(told)
        + " of the roof above it.",
    )
