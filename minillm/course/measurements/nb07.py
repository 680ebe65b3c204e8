"""Notebook 07: what fewer bits cost on the real model, method by method."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any

from minillm.calibration import calibration_ids
from minillm.course.precomputed import Measurement
from minillm.course.probes import doc_ids
from minillm.course.quality import TOKENS, Quality, measure, one_window, weights_origin
from minillm.course.storage import METHODS
from minillm.llm import LLM

# Of these methods a figure on a shorter text is stored as well, which takes seconds to confirm.
SAMPLE = ("int8-channel", "int4-64", "kv-int4")
SAMPLE_TOKENS = 300


def head(llm: LLM, tokens: int = TOKENS) -> dict[str, Any]:
    """What is measured: on which text and weights, after which calibration."""
    sequences = calibration_ids(llm.tokenizer)
    return {
        "text": "data/corpus.txt",
        "tokens": tokens,
        "weights": weights_origin(llm),
        "calibration": f"minillm/quantization/data/calibration.txt, {sum(map(len, sequences)):,} "
        f"tokens in {len(sequences)} sequences",
    }


def measured(
    llm: LLM, names: Collection[str] = tuple(METHODS), tokens: int = TOKENS
) -> Iterator[Quality]:
    """Methods, one after the other, on the first tokens of the course's text."""
    ids = doc_ids(llm, tokens)
    reference = one_window(llm, ids)
    for name in names:
        yield measure(llm, name, reference, ids)


def as_row(found: Quality) -> dict[str, Any]:
    """For JSON, with as many digits as another machine would confirm."""
    return {
        key: float(f"{value:.5g}") if isinstance(value, float) else value
        for key, value in asdict(found).items()
    }


def _quality(llm: LLM) -> Any:
    return head(llm) | {
        "rows": [as_row(row) for row in measured(llm)],
        "sample tokens": SAMPLE_TOKENS,
        "sample": [as_row(row) for row in measured(llm, SAMPLE, SAMPLE_TOKENS)],
    }


def _quality_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    """Perplexities and KL by their logarithms, so that the tolerance is relative."""
    rows = measured(llm, SAMPLE, stored["sample tokens"])
    for before, now in zip(stored["sample"], map(as_row, rows), strict=True):
        for key in ("perplexity", "kl"):
            yield f"{now['name']}: {key}", math.log(before[key]), math.log(now[key])
        yield f"{now['name']}: bits", before["bits"], now["bits"]


MEASUREMENTS = {"07.quality": Measurement(_quality, _quality_sample, tolerance=0.02)}
