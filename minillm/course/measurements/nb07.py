"""Notebook 07: what fewer bits cost on the real model, and what they bring, method by method."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from minillm.calibration import calibration_ids
from minillm.course.precomputed import Measurement
from minillm.course.probes import doc_ids
from minillm.course.quality import TOKENS, Quality, measure, one_window, weights_origin
from minillm.course.speed import LONG_PROMPT, NEW_TOKENS, PROMPT, RUNS, Speed, speeds
from minillm.course.storage import METHODS
from minillm.kernels.cpu import why_not
from minillm.llm import LLM

# Of these methods a figure on a shorter text is stored as well, which takes seconds to confirm.
SAMPLE = ("int8-channel", "int4-64", "gguf", "kv-int4")
SAMPLE_TOKENS = 300
# One that has a kernel wherever there are any, and one that has none.
SPEED_SAMPLE = ("int4-64", "nf4-64")


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


def as_row(found: Quality | Speed) -> dict[str, Any]:
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


def _speed(llm: LLM) -> Any:
    return {
        "decode": f"{NEW_TOKENS} tokens after {PROMPT}, without the first; median of {RUNS} runs",
        "prefill": f"{LONG_PROMPT} tokens; median of {RUNS} runs",
        "weights": weights_origin(llm),
        "rows": [as_row(row) for row in speeds(llm)],
    }


def _speed_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    rows = speeds(llm, SPEED_SAMPLE, prompt=8, new_tokens=4, long_prompt=16, runs=1)
    before = _facts({row["name"]: row for row in stored["rows"]})
    for what, now in _facts({row.name: asdict(row) for row in rows}).items():
        yield what, before[what], now


def _facts(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Times differ between machines; what has a kernel does not, nor whether that is faster."""
    codes, uneven = (rows[name] for name in SPEED_SAMPLE)
    facts = {"NF4 has a kernel": uneven["decode_kernel"] is not None}
    if not why_not():  # else this machine has no kernels at all
        facts["INT4 has one"] = has_one = codes["decode_kernel"] is not None
        facts["INT4 is faster with it"] = has_one and codes["decode_kernel"] > codes["decode"]
    return facts


MEASUREMENTS = {
    "07.quality": Measurement(_quality, _quality_sample, tolerance=0.02),
    "07.speed": Measurement(_speed, _speed_sample),
}
