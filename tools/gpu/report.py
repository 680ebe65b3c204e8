"""Figures of a GPU, as a table for people and as JSON, and the targets beside them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from minillm.bench import Ceilings

# Of the measured ceiling: bytes/s for a decode step, FLOP/s for a prompt of 4,096 tokens.
TARGETS = {
    ("Llama-2-7B", "bfloat16", "decode", 1): 0.85,
    ("Llama-2-7B", "int4", "decode", 1): 0.60,
    ("Llama-2-7B", "bfloat16", "prefill", 1): 0.60,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement. phase: "decode" or "prefill".

    seconds: of a step of all rows, or of the prompt. work: bytes that the step must read, or FLOPs
    of the prompt. tokens: that the step gives, or that the prompt has.
    """

    shape: str
    weights: str
    phase: str
    rows: int
    engine: str
    seconds: float
    work: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Of all rows together."""
        return self.tokens / self.seconds

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What was measured, whoever ran it."""
        return self.shape, self.weights, self.phase, self.rows

    def share(self, most: Ceilings) -> float:
        """What it achieves of the ceiling that bounds its phase."""
        bound = most.bytes_per_s if self.phase == "decode" else most.flops_per_s
        return self.work / self.seconds / bound

    def as_dict(self, most: Ceilings) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"tokens_per_s": self.tokens_per_s, "share": self.share(most)}


def table(figures: Sequence[Figure], most: Ceilings, ours: str) -> str:
    """Markdown: a row per figure, its share of the ceiling, how many times as fast `ours` is."""
    heads = ["shape", "weights", "phase", "rows", "engine", "tokens/s", "of the ceiling", "ours ×"]
    rows = [heads, ["---"] * 3 + ["--:"] + ["---"] + ["--:"] * 3]
    best = {figure.key: figure for figure in figures if figure.engine == ours}
    for x in figures:
        mine = best.get(x.key)
        ratio = f"{x.seconds / mine.seconds:.2f}" if mine and x.engine != ours else "–"
        share = f"{x.share(most):.0%}"
        cells = [x.shape, x.weights, x.phase, str(x.rows), x.engine]
        rows.append([*cells, f"{x.tokens_per_s:,.1f}", share, ratio])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def verdicts(figures: Sequence[Figure], most: Ceilings, ours: str) -> list[str]:
    """A line per target: met, missed, or not measured."""
    found = {figure.key: figure for figure in figures if figure.engine == ours}
    lines = []
    for key, target in TARGETS.items():
        shape, weights, phase, rows = key
        name = f"{shape}, {weights}, {phase}" + (f" at batch {rows}" if phase == "decode" else "")
        ceiling = "bandwidth" if phase == "decode" else "matrix rate"
        if key in found:
            share = found[key].share(most)
            met = "met" if share >= target else "missed"
            lines.append(f"{name}: {share:.0%} of the measured {ceiling} ({target:.0%}: {met})")
        else:
            lines.append(f"{name}: not measured ({target:.0%} of the {ceiling} is the target)")
    return lines
