"""Print how far minillm is from transformers, for every model family.

    python tools/parity.py              # one row per family
    python tools/parity.py --cases      # one row per tiny model
    python tools/parity.py phi3 gemma3  # only the tiny models whose names contain one of these

Each family has several tiny checkpoints with random weights, which transformers writes and both
sides read. The exit code is 1 where a bound is passed.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `tests` can be imported

from minillm.bench import machine
from tests.parity.measure import FLOAT32_BOUND, LENGTH, WAYS, Errors, Measured, measured
from tests.parity.models import CASES, TRAINED, WINDOW

WIDTHS = dict.fromkeys(WAYS, 9) | {" ": 1}
Row = tuple[Measured, Measured]
"""A tiny model in float32 and in bfloat16, or the worst of several."""


def main() -> int:
    """Measure, print the table, and say whether all is within the bounds."""
    parser = argparse.ArgumentParser(description="How far minillm's logits are from transformers'.")
    parser.add_argument("names", nargs="*", help="parts of the tiny models' names; default: all")
    parser.add_argument("--cases", action="store_true", help="a row for each tiny model")
    arguments = parser.parse_args()
    names = [n for n in CASES if not arguments.names or any(p in n for p in arguments.names)]
    if not names:
        parser.error(f"no name contains {arguments.names}; there are {', '.join(CASES)}")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)  # the models are too small to be shared out
    failed: list[str] = []
    print_head("tiny model" if arguments.cases else "family")
    titles = {name: name if arguments.cases else CASES[name].family for name in names}
    for title, members in itertools.groupby(names, titles.__getitem__):
        rows = []
        for name in members:
            rows.append((measured(name, torch.float32), measured(name, torch.bfloat16)))
            failed += [f"{name}: {way}, {m.dtype}" for m in rows[-1] for way in m.out_of_bounds]
        print_row(title, worst(rows))
    print_foot(failed)
    return 1 if failed else 0


def worst(rows: Iterable[Row]) -> Row:
    """The largest errors of several tiny models, way by way."""

    def both(a: Measured, b: Measured) -> Measured:
        ours = {
            way: functools.reduce(Errors.worst, [m.ours[way] for m in (a, b) if way in m.ours])
            for way in {**a.ours, **b.ours}
        }
        return Measured(a.dtype, ours, a.theirs.worst(b.theirs))

    exact, rough = zip(*rows, strict=True)
    return functools.reduce(both, exact), functools.reduce(both, rough)


def print_head(title: str) -> None:
    """What the columns are."""
    print("Logits of minillm against transformers' in float32, texts of", end=" ")
    print(f"{LENGTH} tokens; window {WINDOW}, original RoPE length {TRAINED}.")
    print("Difference: max |a - b| / max |b|; rms: root mean square of a - b over that of b.")
    print(
        "theirs: transformers in bfloat16, one pass. –: a GGUF file cannot say what the model is.\n"
    )
    print(f"{'':<31}{'float32':^36} {'bfloat16':^40} {'bfloat16, rms':^15}")
    heads = (*WAYS, " ", *WAYS, "theirs", " ", "ours", "theirs")
    print(f"{title:<31}{''.join(f'{head:>{WIDTHS.get(head, 8)}}' for head in heads)}")


def print_row(title: str, row: Row) -> None:
    """One line: float32 by way, bfloat16 by way, and transformers' own bfloat16."""
    exact, rough = row

    def cells(ours: dict[str, Errors], form: str) -> str:
        found = (format(ours[way].largest, form) if way in ours else "–" for way in WAYS)
        return "".join(
            f"{cell:>{WIDTHS.get(way, 8)}}" for way, cell in zip(WAYS, found, strict=True)
        )

    rms = functools.reduce(Errors.worst, rough.ours.values()).rms
    print(f"{title:<31}{cells(exact.ours, '.1e')} {cells(rough.ours, '.3f')}", end="")
    print(f"{rough.theirs.largest:8.3f} {rms:8.3f}{rough.theirs.rms:8.3f}", flush=True)


def print_foot(failed: list[str]) -> None:
    """The bounds, what passed them, and where this was measured."""
    print(f"\nBounds, for each tiny model: float32 {FLOAT32_BOUND:.0e}; bfloat16: rms", end=" ")
    print("within 1.5 times theirs + 1/512, difference within twice theirs + 1/32.")
    here = machine()
    print(f"{here['cpu']}, one thread; Python {sys.version.split()[0]}, ", end="")
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "gguf")))
    for text in failed:
        print(f"OUT OF BOUNDS: {text}")


if __name__ == "__main__":
    sys.exit(main())
