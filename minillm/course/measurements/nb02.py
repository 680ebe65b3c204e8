"""Heavy measurement of notebook 02: copying across a gap of positions, five ways to turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minillm.config import RopeConfig
from minillm.course.precomputed import Measurement
from minillm.course.probes import copy_loss, doc_loss
from minillm.course.trace import with_rope
from minillm.llm import LLM

FACTOR = 4.0
SEEDS = range(12)
GAPS = (0, 500, 1_000, 2_000, 4_000, 7_000, 10_000, 14_000, 18_000, 22_000, 26_000, 30_000)


def gap_of(seed: int, gap: int) -> int:
    """The gap that one seed uses: from 11 % less than `gap` to 11 % more.

    At one exact gap all middle pairs have one exact phase, which may happen to suit a head or not;
    a curve through exact gaps shows these accidents. None of these gaps is as long as the trained
    length minus a copy up to 7,000, and all are longer from 10,000 on.
    """
    return round(gap * (1 + 0.02 * (seed - (len(SEEDS) - 1) / 2)))


def stretched(llm: LLM) -> dict[str, RopeConfig]:
    """The model's own RoPE, and four that reach `FACTOR` times as far; by name, in plot order.

    NTK-aware is a larger base and nothing else: base · factor^(D / (D - 2)) slows the slowest pair
    by just the factor and leaves the fastest as it is.
    """
    own = llm.config.layers[0].rope
    assert own is not None
    D = llm.config.head_dim
    more: dict[str, Any] = {
        "factor": FACTOR,
        "original_max_position_embeddings": llm.config.max_position_embeddings,
    }
    return {
        "none": own,
        "linear": replace(own, rope_type="linear", **more),
        "NTK-aware": replace(own, rope_theta=own.rope_theta * FACTOR ** (D / (D - 2))),
        "Llama 3": replace(own, rope_type="llama3", **more),
        "YaRN": replace(own, rope_type="yarn", **more),
    }


def _measured(llm: LLM) -> dict[str, RopeConfig]:
    """The five curves, and a sixth: the wrong base that a careless loader takes."""
    own = stretched(llm)
    return own | {"base 10,000": replace(own["none"], rope_theta=10_000.0)}


def _gap_curves(llm: LLM) -> dict[str, Any]:
    copy: dict[str, list[list[float]]] = {}
    doc: dict[str, float] = {}
    for name, rope in _measured(llm).items():
        with with_rope(llm, rope):
            doc[name] = round(doc_loss(llm), 4)
            copy[name] = [
                [round(copy_loss(llm, [seed], gap_of(seed, gap)), 4) for seed in SEEDS]
                for gap in GAPS
            ]
    return {"gaps": list(GAPS), "copy": copy, "doc": doc}


def _sample(llm: LLM, values: Any) -> Iterable[tuple[str, float, float]]:
    """Two points of every curve and the loss on text."""
    for name, rope in _measured(llm).items():
        with with_rope(llm, rope):
            yield f"{name}, DOC", values["doc"][name], doc_loss(llm)
            for gap in (0, 7_000):
                kept = values["copy"][name][values["gaps"].index(gap)][0]
                yield f"{name}, gap {gap}, seed 0", kept, copy_loss(llm, [0], gap_of(0, gap))


MEASUREMENTS = {"02.gap_curves": Measurement(_gap_curves, _sample, tolerance=0.02)}
