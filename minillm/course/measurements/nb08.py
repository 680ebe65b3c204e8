"""Notebook 08: one step of decoding with and without an engine, in each form of the weights."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from minillm.bench import Ceilings, Cost, ceilings, diagnose, prefill_cost, step_cost
from minillm.bench.diagnosis import Phase
from minillm.bench.peaks import read_bytes_per_s
from minillm.course.measurements.nb05 import fill
from minillm.course.opening import open_or_say
from minillm.course.precomputed import Measurement
from minillm.course.step_profile import engine_parts, step_parts, step_seconds
from minillm.course.timing import timed
from minillm.engines import accelerate
from minillm.kernels import cpu
from minillm.kernels.cpu import products
from minillm.kernels.reference import quantized_linear
from minillm.llm import LLM
from minillm.quantization.int4 import pack_nibbles, quantize_groups
from minillm.quantization.memory import trim
from minillm.sampling import SamplingParams

# How a model is opened; the first is what notebooks 00 to 07 ran on. What INT8 and INT4 leave as it
# is, the embedding and the norms, has 16 bits.
FORMS: Mapping[str, Mapping[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "INT8": {"dtype": "bfloat16", "quantize": "int8"},
    "INT4": {"dtype": "bfloat16", "quantize": "int4"},
    "GGUF, 4 bits": {"quantize": "gguf"},
}
FILE = "GGUF, 4 bits"
CONTEXT = 256
PROMPT = 256
IDS = list(range(1000, 1000 + PROMPT))  # any will do: what a step takes does not depend on them


def opened(form: str, backend: str = "cpu") -> LLM | None:
    """SmolLM2 in this form; None, with a printed line, where the backend cannot run it here."""
    return open_or_say(form, device="cpu", backend=backend, **{"dtype": "float32", **FORMS[form]})


def opened_on_gpu(backend: str) -> LLM | None:
    """SmolLM2 on the GPU, in the dtype for it; as `opened` where the backend cannot run there."""
    return open_or_say(f"backend {backend}", device="cuda", backend=backend)


@contextmanager
def engine_on(llm: LLM) -> Iterator[None]:
    """The same model, its weights shared, run by the C++ engine. ValueError where it cannot."""
    plain = llm.model
    llm.model = accelerate(plain, "cpu")
    try:
        yield
    finally:
        llm.model = plain


def speed_row(llm: LLM, form: str, engine: str) -> dict[str, Any]:
    """What a step reads, and how long it and the prefill of the 256 tokens before it take."""
    cache = fill(llm, llm.new_cache(1, CONTEXT + 1), CONTEXT)

    def first_token() -> None:
        llm.generate(IDS, SamplingParams(max_new_tokens=1))

    return {
        "name": form,
        "engine": engine,
        "megabytes": round(step_cost(llm, context=CONTEXT).bytes / 1e6, 1),
        "ms": round(1e3 * step_seconds(llm, cache), 2),
        "prefill_ms": round(1e3 * timed(first_token, repeat=2)[1], 1),
    }


def waits(llm: LLM, ids: list[int], new_tokens: int = 16) -> tuple[float, float]:
    """TTFT and the median ITL of an answer to a prompt, in seconds."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    stats = llm.generate(ids, params).stats
    return stats.ttft_s, statistics.median(stats.itl_s)


def report(
    llm: LLM, ids: list[int], limits: Ceilings, *, knobs: bool = False
) -> tuple[float, float]:
    """Print what either phase waits for, after this prompt; TTFT and ITL in seconds.

    knobs: print what would help as well.
    """
    measured = waits(llm, ids)
    costs: dict[Phase, Cost] = {
        "prefill": prefill_cost(llm, 1, len(ids)),
        "decode": step_cost(llm, context=len(ids)),
    }
    for (phase, cost), seconds in zip(costs.items(), measured, strict=True):
        found = diagnose(cost, seconds, limits, phase)
        print(f"{phase:7} {1e3 * seconds:5.1f} ms, at best {1e3 * found.least_s:5.1f}", end=": ")
        # Products of codes are faster, and of a small model part stays where it was read.
        beyond = {"compute": " of floats", "bandwidth": " without the processor's cache"}
        than = beyond[found.bound] if found.fraction > 1 else ""
        print(f"{found.fraction:.0%} of what is possible{than}; bound: {found.bound}")
        if knobs:
            print(f"  would help: {found.knob}")
    return measured


def busy(run: Callable[[], object], repeat: int = 1) -> tuple[float, float]:
    """The share of all threads' time that the processor was busy, and the seconds of one run."""
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(repeat):
        run()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    return used / wall / torch.get_num_threads(), wall / repeat


@torch.inference_mode()
def layer_times(weight: Tensor, repeat: int = 20) -> None:
    """Print how long one token takes through a layer: as it is, and in 8 and 4 bits."""
    x = torch.randn(1, weight.shape[1])

    def microseconds(function: Callable[..., Any], *arguments: Any) -> str:
        return f"{1e6 * timed(function, *arguments, repeat=repeat)[1]:.0f} µs"

    print(f"float32: {microseconds(torch.nn.functional.linear, x, weight)}")
    for bits in (8, 4):
        found = quantize_groups(weight, 64, bits=bits)
        codes = pack_nibbles(found.codes) if bits == 4 else found.codes
        groups = products.Groups(codes, found.scales, found.zeros)
        plain = microseconds(quantized_linear, x, *groups, None, bits)
        print(f"INT{bits}: turned back into floats {plain}", end=", ")
        if reason := cpu.why_not():
            print(f"and no kernel here: {reason}")
        else:
            packed = products.pack_groups(bits, [groups])
            print(f"read as it is {microseconds(products.linear, packed, x)}")


def compare(llm: LLM, fast: LLM | None) -> None:
    """Print a step of the float32 model in both ways, and one of another model on the engine."""
    rows = [speed_row(llm, "float32", "PyTorch")]
    if fast is not None:
        with engine_on(llm):
            rows.append(speed_row(llm, "float32", "C++ step"))
        rows.append(speed_row(fast, FILE, "C++ step"))
    for row in rows:
        print("{engine:9}{name:18}{megabytes:5.0f} MB {ms:6.1f} ms".format(**row), end=", ")
        print("prefill of 256 tokens {prefill_ms:4.0f} ms".format(**row))


def batches(llm: LLM, limits: Ceilings, sizes: Sequence[int] = (1, 2, 4, 8)) -> None:
    """Print what a step takes for so many texts at a time, and what it waits for."""
    for rows in sizes:
        trim()  # or what earlier cells have freed would count on top of a larger cache
        cache = fill(llm, llm.new_cache(rows, CONTEXT + 1), CONTEXT)
        seconds, cost = step_seconds(llm, cache), step_cost(llm, rows, context=CONTEXT)
        del cache  # the next one is larger still
        share, bound = cost.cache_bytes / cost.bytes, diagnose(cost, seconds, limits).bound
        print(f"batch {rows:2}: {1e3 * seconds:5.1f} ms, {rows / seconds:5.0f} tokens/s", end=", ")
        print(f"cache {share:3.0%} of the bytes; bound: {bound}")


def phase_points(
    llm: LLM, engine: str, measured: tuple[float, float], tokens: int = PROMPT
) -> dict[str, tuple[float, float]]:
    """FLOPs per byte and FLOP/s of both phases, by name, from TTFT and ITL in seconds."""
    costs = prefill_cost(llm, 1, tokens), step_cost(llm, context=tokens)
    names = f"prefill of {tokens}, {engine}", f"decode, {engine}"
    return {
        name: (cost.intensity, cost.flops / seconds)
        for name, cost, seconds in zip(names, costs, measured, strict=True)
    }


def _rows(rounds: int = 3) -> tuple[list[dict[str, Any]], float]:
    """A row for each form and engine, and bytes per second of a large read.

    What memory delivers changes from minute to minute where others use the machine as well. So the
    forms take turns, of their times the median counts, and so it does of a reading beside each.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    reads = []
    for turn in range(rounds):
        for form in FORMS:
            for backend, engine in (("torch", "PyTorch"), ("cpu", "C++ step")):
                if turn and engine == "PyTorch":
                    continue  # far from what memory delivers
                llm = opened(form, backend)
                if llm is None:
                    raise SystemExit("this measurement needs the C++ engine")
                found.setdefault((form, engine), []).append(speed_row(llm, form, engine))
                reads.append(read_bytes_per_s(llm.device, 3))
                del llm
                gc.collect()
    times = ("ms", "prefill_ms")
    rows = [
        taken[0] | {key: statistics.median(row[key] for row in taken) for key in times}
        for taken in found.values()
    ]
    return rows, statistics.median(reads)


def _full(llm: LLM) -> dict[str, Any]:
    cache = fill(llm, llm.new_cache(1, CONTEXT + 1), CONTEXT)
    parts = {"PyTorch": step_parts(llm.model, cache)}
    points = phase_points(llm, "PyTorch", waits(llm, IDS))
    rows, bytes_per_s = _rows()
    fast = opened(FILE)
    assert fast is not None
    parts["C++ step"] = engine_parts(fast, fill(fast, fast.new_cache(1, CONTEXT + 1), CONTEXT))
    points |= phase_points(fast, "C++ step", waits(fast, IDS))
    return {
        "bytes_per_s": bytes_per_s,
        "flops_per_s": ceilings("cpu").flops_per_s,
        "parts": {name: {k: round(v, 2) for k, v in each.items()} for name, each in parts.items()},
        "points": points,
        "rows": rows,
    }


def limits_of(found: Mapping[str, Any]) -> Ceilings:
    """The ceilings of the machine that a stored measurement comes from."""
    return Ceilings(found["bytes_per_s"], found["flops_per_s"])


def _sample(llm: LLM, stored: Any) -> Iterable[tuple[str, float, float]]:
    """Times differ between machines; what a step reads, and which way is faster, does not."""
    rows = {(row["name"], row["engine"]): row for row in stored["rows"]}
    now = round(step_cost(llm, context=CONTEXT).bytes / 1e6, 1)
    yield "megabytes of a float32 step", rows["float32", "PyTorch"]["megabytes"], now
    before = rows[FILE, "C++ step"]["ms"] < rows["float32", "PyTorch"]["ms"]
    if (fast := opened(FILE)) is not None:
        plain = step_seconds(llm, fill(llm, llm.new_cache(1, CONTEXT + 1), CONTEXT))
        faster = speed_row(fast, FILE, "C++ step")["ms"] < 1e3 * plain
        yield "the engine's step is faster", float(before), float(faster)


MEASUREMENTS = {"08.steps": Measurement(_full, _sample)}
