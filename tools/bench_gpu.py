"""Measure the CUDA engine beside transformers and torch.compile, on random weights.

    python tools/bench_gpu.py                                   # all shapes (a quarter of an hour)
    python tools/bench_gpu.py --write                           # and into docs/benchmarks.md
    python tools/bench_gpu.py --shapes Llama-2-7B --json gpu.json --markdown gpu.md
    python tools/bench_gpu.py --smoke                           # whether it runs, on any machine

Weights are made on the GPU in the shapes of known models; nothing is downloaded. In one run:

- the ceilings: bytes per second of a large read, FLOP per second of a large product in bfloat16;
- decode, bfloat16, at batch 1 and 8: the engine, minillm's modules, the same step by torch.compile,
  and transformers with a static cache, which it compiles;
- decode with INT8 and INT4 weights: the engine;
- a prompt of 4,096 tokens: the engine and transformers.

A share is what is achieved of the ceiling: the bytes that a step must read (weights, keys and
values), or a prompt's FLOPs, per second. --smoke takes a tiny shape, on a CPU under Triton's
interpreter and without graphs: its times say nothing about anything.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that `tools` can be imported
if "--smoke" in sys.argv:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton

import torch  # noqa: E402

from minillm.bench import Ceilings, ceilings, machine, random_prompts, step_cost  # noqa: E402
from minillm.config import ModelConfig  # noqa: E402
from minillm.engines.base import Unsupported  # noqa: E402
from tools.gpu import shapes  # noqa: E402
from tools.gpu.engines import Compiled, Engine, Modules, Peer, Runner  # noqa: E402
from tools.gpu.report import Figure, table, verdicts  # noqa: E402
from tools.gpu.shapes import Work  # noqa: E402
from tools.peers.report import replace_between  # noqa: E402

DTYPE = torch.bfloat16


def main() -> int:
    """Measure, print as it comes, and write the files that were asked for."""
    options = parse()
    device = torch.device("cpu" if options.smoke else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device; --smoke shows on any machine that this runs")
        return 2
    about = facts(device, options.smoke)
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    most = ceilings(device, DTYPE)
    if not options.smoke:
        print(f"ceilings: {bounds(most)}", flush=True)
    known = shapes.TINY if options.smoke else shapes.SHAPES
    names = options.shapes or list(known)
    figures: list[Figure] = []
    try:
        for name in names:
            work = shapes.SMOKE if options.smoke else Work(runs=options.runs)
            for figure in measured(name, known[name], device, work):
                print(line(figure, most, options.smoke), flush=True)
                figures.append(figure)
    except Unsupported as reason:
        print(f"the CUDA engine cannot run: {reason}")
        return 2
    report = markdown(about, most, figures, options.smoke)
    print(f"\n{report}")
    write(options, about, most, figures, report)
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the CUDA engine beside transformers.")
    parser.add_argument("--shapes", nargs="+", choices=list(shapes.SHAPES), metavar="SHAPE")
    parser.add_argument("--runs", type=int, default=5, help="runs that count (default: 5)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--markdown", type=Path, help="write the report to this file")
    parser.add_argument("--write", action="store_true", help="put it into docs/benchmarks.md")
    parser.add_argument("--smoke", action="store_true", help="only show that it runs, on a CPU")
    options = parser.parse_args()
    if options.smoke and (options.shapes or options.write):
        parser.error("--smoke has a shape of its own, and nothing for a document")
    if options.runs < 1:
        parser.error(f"--runs is {options.runs}; at least 1 is needed")
    return options


def facts(device: torch.device, smoke: bool) -> dict[str, Any]:
    """What the figures belong to."""
    found = {"date": date.today().isoformat(), **machine(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["compute capability"] = f"{properties.major}.{properties.minor}"
        found["memory"] = f"{properties.total_memory / 2**30:.0f} GiB"
        found["driver"] = driver()
        found["CUDA"] = torch.version.cuda
    if smoke:
        found["note"] = "smoke run under Triton's interpreter: no figure here is a speed"
    return found


def driver() -> str:
    """The version of the NVIDIA driver, where nvidia-smi tells it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()


def measured(name: str, config: ModelConfig, device: torch.device, work: Work) -> Iterator[Figure]:
    """All figures of one shape; every model is freed before the next one is made."""
    model = shapes.random_model(config, device, DTYPE)
    bench = Bench(name, config, device, work)
    backend = "inductor" if device.type == "cuda" else "eager"
    engine = Engine(model)
    yield from bench.decoded("bfloat16", engine, shapes.weight_bytes(model))
    yield bench.prompt_read("bfloat16", engine)
    del engine
    for runner in (Modules(model), Compiled(model, backend)):
        yield from bench.decoded("bfloat16", runner, shapes.weight_bytes(model))
    for kind in shapes.GROUPS:
        coded = shapes.quantize(shapes.random_model(config, device, DTYPE), kind)
        yield from bench.decoded(kind, Engine(coded), shapes.weight_bytes(coded))
    peer_bytes = shapes.weight_bytes(model)
    del model, runner, coded
    bench.free()
    peer = Peer(config, device, DTYPE)
    yield from bench.decoded("bfloat16", peer, peer_bytes)
    yield bench.prompt_read("bfloat16", peer)


class Bench:
    """The measurements of one shape."""

    def __init__(self, name: str, config: ModelConfig, device: torch.device, work: Work) -> None:
        self.name, self.config, self.device, self.work = name, config, device, work

    def decoded(self, weights: str, runner: Runner, weight_bytes: float) -> Iterator[Figure]:
        """Decoding at each batch size."""
        work, config = self.work, self.config
        for rows in work.rows:
            self.free()
            prompts = random_prompts(config.vocab_size, rows, work.prompt)
            seconds = runner.seconds_per_step(prompts, work.tokens, work.runs, work.warm)
            # Half-way through the answer: as many tokens in the cache as on average.
            context = work.prompt + work.tokens // 2
            read = weight_bytes + step_cost(config, rows, 1, context, dtype=DTYPE).cache_bytes
            yield Figure(self.name, weights, "decode", rows, runner.name, seconds, read, rows)

    def prompt_read(self, weights: str, runner: Modules | Peer) -> Figure:
        """Reading one long prompt."""
        self.free()
        tokens = self.work.prefill
        [prompt] = random_prompts(self.config.vocab_size, 1, tokens)
        seconds = median_seconds(lambda: runner.prefill(prompt), self.device, self.work)
        flops = step_cost(self.config, 1, tokens).flops
        return Figure(self.name, weights, "prefill", 1, runner.name, seconds, flops, tokens)

    def free(self) -> None:
        """Give back the memory of what is gone."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def median_seconds(call: Callable[[], object], device: torch.device, work: Work) -> float:
    """The median time of a call, until the device is done with it; after two that warm up."""
    times, before = [], 2 if work.warm else 0
    for _ in range(before + work.runs):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return median(times[before:])


def line(figure: Figure, most: Ceilings, smoke: bool) -> str:
    """One figure, as it is printed on the way."""
    what = f"{figure.shape}, {figure.weights}, {figure.phase} of {figure.rows}, {figure.engine}"
    if smoke:
        return f"{what}: ran"
    share = f"{figure.share(most):.0%} of the ceiling"
    return f"{what}: {figure.tokens_per_s:,.1f} tokens/s ({figure.seconds * 1e3:.3f} ms, {share})"


def bounds(most: Ceilings) -> str:
    """Both ceilings."""
    return f"{most.bytes_per_s / 1e9:,.0f} GB/s read, {most.flops_per_s / 1e12:,.1f} TFLOP/s"


def markdown(
    about: Mapping[str, Any], most: Ceilings, figures: Sequence[Figure], smoke: bool
) -> str:
    """The report: machine and date, ceilings, table, targets."""
    if smoke:
        return f"Smoke run: {len(figures)} measurements ran. No figure here is a speed."
    parts = [
        ", ".join(f"{name} {value}" for name, value in about.items()),
        f"Measured ceilings: {bounds(most)} (bfloat16).",
        table(figures, most, Engine.name),
        "\n".join(f"- {text}" for text in verdicts(figures, most, Engine.name)),
    ]
    return "\n\n".join(parts)


def write(
    options: argparse.Namespace,
    about: Mapping[str, Any],
    most: Ceilings,
    figures: Sequence[Figure],
    report: str,
) -> None:
    """The files that were asked for."""
    if options.json:
        found = {
            "machine": about,
            "smoke": options.smoke,
            "ceilings": asdict(most),
            "figures": [figure.as_dict(most) for figure in figures],
            "targets": [] if options.smoke else verdicts(figures, most, Engine.name),
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.write:
        replace_between(ROOT / "docs" / "benchmarks.md", "gpu", report)
    if options.markdown:
        options.markdown.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
