"""The roofline: what can be achieved at each ratio of arithmetic to memory, and what was."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minillm.bench.cost import Cost
from minillm.bench.diagnosis import Bound, Diagnosis, Phase
from minillm.bench.peaks import Ceilings

# Dark ink on a warm white of its own, so that the page behind may be light or dark. Blue and
# vermilion differ in lightness too, and the phases have their own markers.
PAPER, INK, GRID = "#F4F2EC", "#222222", "#CFCBC0"
SAID: dict[Bound, str] = {
    "compute": "waits for arithmetic, {:.0%} of its ceiling at best",
    "bandwidth": "waits for memory, {:.0%} of its ceiling at best",
    "overhead": "is far from both ceilings, at {:.0%} of the nearer one",
}
BEYOND = "is beyond its ceiling, {:.3g} times: {}"
REASONS = {
    "compute": "products of whole numbers are faster",
    "bandwidth": "the processor's cache holds it",
}
STYLES: dict[Phase, tuple[str, str]] = {"prefill": ("#0072B2", "o"), "decode": ("#D55E00", "s")}


class Point(NamedTuple):
    """A phase of one shape of work: what it needs, and how it went."""

    phase: Phase
    label: str
    cost: Cost
    diagnosis: Diagnosis


def takeaway(points: Sequence[Point]) -> str:
    """What the picture says, for its title: the best of each phase, and what most wait for."""
    parts = []
    for phase in STYLES:
        found = [p.diagnosis for p in points if p.phase == phase]
        if not found:
            continue
        bounds = [d.bound for d in found]
        usual = max(SAID, key=bounds.count)
        best = max(d.fraction for d in found if d.bound == usual)
        said = SAID[usual] if best <= 1 else BEYOND
        parts.append(f"{phase} {said.format(best, REASONS.get(usual))}")
    text = ";\n".join(parts)
    return text[0].upper() + text[1:]


def check_picture(file: str | Path) -> None:
    """Raise ValueError where `plot` cannot write this file, before minutes are spent measuring.

    The name must end in .png, its folder must be there, and so must matplotlib.
    """
    if Path(file).suffix.lower() != ".png":
        raise ValueError(f"--plot is {str(file)!r}; a file name that ends in .png is needed")
    if not Path(file).absolute().parent.is_dir():
        raise ValueError(f"--plot is {str(file)!r}; that folder does not exist")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ValueError(f"--plot needs matplotlib (`pip install matplotlib`): {error}") from error


def plot(points: Sequence[Point], ceilings: Ceilings, machine: str, file: str | Path) -> None:
    """Write the roofline as a PNG: FLOP/s against FLOPs per byte, both on a logarithmic scale.

    The roof is min(bytes/s · FLOPs per byte, FLOP/s). A point's distance below it is what could be
    gained with the same work; left of the ridge fewer bytes help, right of it faster arithmetic.
    Raises what `check_picture` does.
    """
    check_picture(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = Figure(figsize=(7.2, 4.4), dpi=144, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor=PAPER)
    _draw_roof(axes, ceilings, [p.cost.intensity for p in points])
    _draw_points(axes, points)
    axes.set_ylim(top=ceilings.flops_per_s / 1e9 * 3)  # at last: what lies far below stays in view
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if axis is axes.yaxis else (1,)))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter(NullFormatter())
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("FLOPs per byte of weights and cache", color=INK)
    axes.set_ylabel("GFLOP/s", color=INK)
    axes.set_title(takeaway(points), loc="left", fontsize=11, color=INK)
    axes.legend(loc="lower right", facecolor=PAPER, edgecolor="none", labelcolor=INK)
    figure.supxlabel(machine, x=0.99, ha="right", fontsize=8, color=INK)
    figure.savefig(file, facecolor=PAPER)


def _draw_roof(axes: Any, ceilings: Ceilings, intensities: Sequence[float]) -> None:
    """The two ceilings, which meet at the ridge."""
    low = min([*intensities, ceilings.ridge]) / 4
    high = max([*intensities, ceilings.ridge]) * 4
    top, bandwidth = ceilings.flops_per_s / 1e9, ceilings.bytes_per_s / 1e9
    axes.loglog([low, ceilings.ridge, high], [low * bandwidth, top, top], color=INK, linewidth=1.8)
    axes.axvline(ceilings.ridge, color=INK, linewidth=0.8, linestyle=":")
    roomy = ceilings.ridge**2 < low * high  # the wider side of the ridge
    axes.text(
        ceilings.ridge,
        0.98,
        f"  ridge: {ceilings.ridge:.3g} FLOP per byte  ",
        transform=axes.get_xaxis_transform(),
        ha="left" if roomy else "right",
        va="top",
        fontsize=8,
        color=INK,
    )
    axes.annotate(
        f"{top:,.0f} GFLOP/s", (high, top), xytext=(-2, 4), textcoords="offset points", ha="right"
    )
    slope = math.sqrt(low * ceilings.ridge)
    axes.annotate(
        f"{bandwidth:,.1f} GB/s",
        (slope, slope * bandwidth),
        xytext=(-8, 4),
        textcoords="offset points",
        ha="right",
    )


def _draw_points(axes: Any, points: Sequence[Point]) -> None:
    """Each measurement, with a line up to what its work allows."""
    for phase, (colour, marker) in STYLES.items():
        found = [p for p in points if p.phase == phase]
        x = [p.cost.intensity for p in found]
        y = [p.diagnosis.flops_per_s / 1e9 for p in found]
        least = [p.cost.flops / p.diagnosis.least_s / 1e9 for p in found]
        axes.vlines(x, y, least, color=colour, linewidth=0.8, linestyle="--")
        axes.scatter(x, y, color=colour, marker=marker, s=36, label=phase, zorder=3)
        for text, place in _labels(found):
            axes.annotate(
                text, place, xytext=(7, -10), textcoords="offset points", fontsize=7, color=INK
            )


def _labels(points: Sequence[Point]) -> list[tuple[str, tuple[float, float]]]:
    """What stands beside the points, and where: one text for those that lie almost together."""
    groups: list[list[Point]] = []
    for point in points:
        near = (g for g in groups if _close(g[0], point))
        if group := next(near, None):
            group.append(point)
        else:
            groups.append([point])
    found = []
    for group in groups:
        names = " and ".join(p.label for p in group)
        ordered = sorted(p.diagnosis.fraction for p in group)
        shares = list(dict.fromkeys(f"{share:.0%}" for share in ordered))
        place = group[0].cost.intensity, group[0].diagnosis.flops_per_s / 1e9
        found.append((f"{names}: {' to '.join([shares[0], *shares[1:][-1:]])}", place))
    return found


def _close(a: Point, b: Point) -> bool:
    """Whether a label of one would run into the other's: labels are longer than high."""
    across = a.cost.intensity / b.cost.intensity
    up = a.diagnosis.flops_per_s / b.diagnosis.flops_per_s
    return 1 / 3 < across < 3 and 1 / 1.2 < up < 1.2
