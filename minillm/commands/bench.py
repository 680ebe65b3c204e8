"""`minillm bench`: is it slow to start, or slow to stream, and what would help?"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import torch

from minillm.bench import (
    Ceilings,
    Cost,
    Measurement,
    ceilings,
    diagnose,
    machine,
    measure,
    minillm_engine,
    prefill_cost,
    random_prompts,
    step_cost,
    transformers_engine,
)
from minillm.bench.cold import cold_start
from minillm.bench.counts import at_least
from minillm.bench.diagnosis import Phase
from minillm.bench.roofline import Point, check_picture, plot
from minillm.commands.options import load, running
from minillm.llm import LLM
from minillm.quantization.stored import stored_as
from minillm.weights.pull import resolve

QUESTIONS = {
    "prefill": "Slow to start (time to first token)?",
    "decode": "Slow to stream (inter-token latency)?",
}
SAID = {
    "compute": "waits for arithmetic",
    "bandwidth": "waits for memory",
    "overhead": "far from both ceilings: overhead",
}
BEYOND = {
    "bytes_fraction": "GB/s: caches hold some of it, or the ceiling was measured when others ran",
    "flops_fraction": "GFLOP/s: products of whole numbers, which are faster than those of floats",
}


def run(arguments: argparse.Namespace) -> None:
    """Print times, and how they compare with what this machine can do; or all as JSON."""
    _check(arguments)
    llm = load(arguments)
    _check_room(arguments, llm)
    here = machine(llm.device)
    processor = f"{here['cpu']}, {here['threads']} thread{'s' * (here['threads'] > 1)}"
    print(f"{llm!r} on {processor}", file=sys.stderr)
    cold = _cold(arguments, llm) if arguments.cold else None
    possible = ceilings(llm.device, llm.dtype)
    results, points = _measured(arguments, llm, possible)
    if arguments.json:
        found = {"machine": here} | _about(arguments, llm) | {"ceilings": _fields(possible)}
        cold_found = {"cold_start_s": cold} if cold else {}
        print(json.dumps(found | cold_found | {"results": results}, allow_nan=False))
    else:
        _show_diagnosis(points, possible, _name(llm.dtype))
        if cold:
            _show_cold(cold)
    if arguments.plot is not None:
        about = f"{llm.name}, {processor}, {here['device']}"
        plot(points, possible, about, arguments.plot)
        print(f"roofline: {arguments.plot}", file=sys.stderr)


def _check(arguments: argparse.Namespace) -> None:
    """ValueError before anything is loaded or measured."""
    if arguments.compare and arguments.window is not None:
        raise ValueError("--compare measures the model as it is; leave --window out")
    if arguments.plot is not None:
        check_picture(arguments.plot)
    at_least(1, prompt_tokens=min(arguments.prompt_tokens), batch_size=min(arguments.batch_sizes))
    at_least(1, runs=arguments.runs)
    at_least(2, new_tokens=arguments.new_tokens)


def _check_room(arguments: argparse.Namespace, llm: LLM) -> None:
    """ValueError where a text would be longer than the context; its last token needs no place."""
    longest, context = max(arguments.prompt_tokens), llm.config.context
    if context is not None and longest + arguments.new_tokens - 1 > context:
        raise ValueError(
            f"{longest} prompt tokens and {arguments.new_tokens} new ones are more than the "
            f"context of {context} holds"
        )


def _about(arguments: argparse.Namespace, llm: LLM) -> dict[str, str]:
    """What ran, for JSON: the model, and in what form."""
    return {
        "model": arguments.model,
        "backend": str(getattr(llm.model, "engine", "torch")),
        "weights": stored_as(llm.model),
        "dtype": _name(llm.dtype),
        "kv_cache": llm.kv_cache or _name(llm.dtype),
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _measured(
    arguments: argparse.Namespace, llm: LLM, possible: Ceilings
) -> tuple[list[dict[str, Any]], list[Point]]:
    """Every shape of work in turn: its figures, printed as they come, and minillm's points."""
    engines = {"minillm": minillm_engine(llm)}
    if arguments.compare:
        engines["transformers"] = transformers_engine(
            resolve(arguments.model), device=llm.device, dtype=llm.dtype
        )
    results: list[dict[str, Any]] = []
    points: list[Point] = []
    for prompt_tokens in arguments.prompt_tokens:
        for batch_size in arguments.batch_sizes:
            measured = measure(
                engines,
                llm.config.vocab_size,
                prompt_tokens=prompt_tokens,
                batch_size=batch_size,
                new_tokens=arguments.new_tokens,
                runs=arguments.runs,
            )
            if not arguments.json:
                _show(measured, heading=not results)
            both = _points(llm, measured[0], possible)
            points += both
            results += [m.as_dict() for m in measured]
            results[-len(measured)] |= {p.phase: _as_dict(p) for p in both}
    if arguments.compare and not arguments.json:
        _show_weights(llm)
    return results, points


def _points(llm: LLM, m: Measurement, possible: Ceilings) -> list[Point]:
    """Both phases of one measurement. Decode: the step in the middle of those that were timed."""
    middle = m.prompt_tokens + m.new_tokens // 2 - 1
    costs: dict[Phase, tuple[Cost, float]] = {
        "prefill": (prefill_cost(llm, m.batch_size, m.prompt_tokens), m.ttft_s),
        "decode": (step_cost(llm, m.batch_size, 1, middle), m.itl_s),
    }
    label = f"{m.prompt_tokens} × {m.batch_size}"
    return [
        Point(phase, label, cost, diagnose(cost, seconds, possible, phase))
        for phase, (cost, seconds) in costs.items()
    ]


def _show(measured: Sequence[Measurement], heading: bool) -> None:
    if heading:
        print("engine        prompt  batch   TTFT, ms   ITL, ms   prefill tok/s   decode tok/s")
    for m in measured:
        print(
            f"{m.engine:<12} {m.prompt_tokens:>7} {m.batch_size:>6} "
            f"{m.ttft_s * 1e3:>10.1f} {m.itl_s * 1e3:>9.1f} "
            f"{m.prefill_tokens_per_s:>15.0f} "
            f"{m.decode_tokens_per_s:>14.1f}",
            flush=True,
        )
    if len(measured) == 2:
        ours, peer = measured
        print(
            f"  ratio: prefill {peer.ttft_s / ours.ttft_s:.2f}, decode "
            f"{peer.itl_s / ours.itl_s:.2f} (above 1: minillm is faster)",
            flush=True,
        )


def _show_weights(llm: LLM) -> None:
    """Say where a comparison is one of different weights: in fewer bits here, or rounded there."""
    ours = step_cost(llm).weight_bytes
    plain = step_cost(llm.config, dtype=llm.dtype).weight_bytes
    if ours < plain:
        print(
            f"  minillm reads {ours / 1e6:.0f} MB of weights a step; in {_name(llm.dtype)} they "
            f"take {plain / 1e6:.0f} MB"
        )


def _show_diagnosis(points: Sequence[Point], possible: Ceilings, dtype: str) -> None:
    """Achieved against possible, shape by shape; then, for each phase, what would help."""
    top, bandwidth = possible.flops_per_s / 1e9, possible.bytes_per_s / 1e9
    print(f"\nThis machine: {bandwidth:.1f} GB/s read, {top:,.0f} GFLOP/s ({dtype} product)")
    print("Needed: weights once a step, the cache per row; activations are not counted.\n")
    print(
        "phase     prompt × batch      MB    GFLOP   least, ms   GB/s achieved   GFLOP/s achieved"
    )
    for p in sorted(points, key=lambda p: p.phase != "prefill"):
        d = p.diagnosis
        print(
            f"{p.phase:<9} {p.label:>14} {p.cost.bytes / 1e6:>7.0f} {p.cost.flops / 1e9:>8.3g} "
            f"{d.least_s * 1e3:>11.1f} {d.bytes_per_s / 1e9:>8.1f} ({d.bytes_fraction:>4.0%}) "
            f"{d.flops_per_s / 1e9:>10.1f} ({d.flops_fraction:>4.0%})"
        )
    for name, reason in BEYOND.items():
        if any(getattr(p.diagnosis, name) > 1 for p in points):
            print(f"\nAbove 100 % of {reason}.")
    for phase, question in QUESTIONS.items():
        print(f"\n{question}")
        for knob in dict.fromkeys(p.diagnosis.knob for p in points if p.phase == phase):
            same = [p for p in points if p.phase == phase and p.diagnosis.knob == knob]
            shapes = ", ".join(p.label for p in same)
            print(f"  {shapes}: {SAID[same[0].diagnosis.bound]}")
            print(fill(f"try {knob}", 100, initial_indent="    ", subsequent_indent="    "))


def _cold(arguments: argparse.Namespace, llm: LLM) -> dict[str, float]:
    """A cold start with the shortest of the prompts."""
    (prompt,) = random_prompts(llm.config.vocab_size, 1, min(arguments.prompt_tokens))
    return cold_start(arguments.model, running(arguments), prompt, arguments.runs)


def _show_cold(parts: Mapping[str, float]) -> None:
    print("\nfrom the start of the process   ms")
    for name, seconds in parts.items():
        print(f"  {name:<20} {seconds * 1e3:>11.0f}")


def _as_dict(point: Point) -> dict[str, Any]:
    return _fields(point.cost) | point.diagnosis.as_dict()


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__slots__}
