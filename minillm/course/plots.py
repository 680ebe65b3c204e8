"""One style for the course's figures, readable in light and dark themes and without colour vision.

```python
from minillm.course import plots

plots.use_style()
fig, ax = plt.subplots()
ax.plot(lengths, seconds, marker=plots.MARKERS[0], label="no cache")
plots.show(fig, alt="Without a cache, time per token grows from 118 ms at 32 tokens to 560 at 256.")
```

The figure's takeaway stands as prose in the Markdown cell below it. `alt` says the same to someone
who does not see the picture, numbers included.
"""

from __future__ import annotations

import html
import io
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette without its yellow, which is too light on the figures' background.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#AA4A85",
    "#B87A00",
    "#3A8FC4",
    "#222222",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo")
PAPER, INK, GRID = "#F4F2EC", "#222222", "#CFCBC0"
HEAT = "cividis"  # the same order of lightness with and without colour vision
DOTS_PER_INCH = 144
# `bbox=BEHIND` of a text: a line that runs through it stays behind.
BEHIND = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.5}


def use_style() -> None:
    """Sets the figures' style for this kernel."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(mpl.rcParamsDefault)
    mpl.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=COLOURS) + cycler(linestyle=LINES),
            "axes.axisbelow": True,
            "axes.edgecolor": INK,
            "axes.facecolor": PAPER,
            "axes.grid": True,
            "axes.labelcolor": INK,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "figure.constrained_layout.h_pad": 0.1,
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.1,
            "figure.facecolor": PAPER,
            "figure.figsize": (7.2, 3.6),
            "font.size": 10,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
            "hatch.color": PAPER,
            "hatch.linewidth": 1.2,
            "image.cmap": HEAT,
            # A frame without a border: a line that runs through a legend stays behind its text.
            "legend.edgecolor": "none",
            "legend.facecolor": PAPER,
            "legend.fancybox": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
            "savefig.facecolor": PAPER,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )


def show(figure: Figure, *, alt: str) -> None:
    """Displays a figure as PNG with its description, and closes it.

    The output carries the description three times over, because no viewer honours all of them: as
    the picture's `alt` metadata, as the plain-text form, and below it as text that folds out
    (JupyterLab reads only that one to a screen reader).

    Args:
        figure: the figure.
        alt: what the figure shows, in a sentence or two, with the numbers that matter.

    Raises:
        ValueError: the description is too short to say anything.
    """
    import matplotlib.pyplot as plt

    alt = " ".join(alt.split())
    if len(alt) < 20:
        raise ValueError(f"alt={alt!r}: describe what the figure shows, in 20 characters or more")
    if "IPython" not in sys.modules or sys.modules["IPython"].get_ipython() is None:
        plt.show()
        return
    from IPython.display import display

    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    plt.close(figure)
    pixels = round(figure.get_figwidth() * 96)
    metadata: dict[str, Any] = {"image/png": {"alt": alt, "width": pixels}}
    picture = {"image/png": png.getvalue(), "text/plain": f"Figure: {alt}"}
    display(picture, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]
    words = f"<details><summary>The figure in words</summary><p>{html.escape(alt)}</p></details>"
    display({"text/html": words}, raw=True)  # type: ignore[no-untyped-call]
