"""Measure the CUDA engine beside transformers and torch.compile, on random weights.

    python tools/bench_gpu.py                                   # all shapes
    python tools/bench_gpu.py --write                           # and into docs/benchmarks.md
    python tools/bench_gpu.py --shapes Llama-2-7B --json gpu.json --markdown gpu.md
    python tools/bench_gpu.py --smoke                           # whether it runs, on any machine

Weights are made on the GPU in the shapes of known models; nothing is downloaded. In one run:

- the ceilings: bytes per second of a large read, FLOP per second of a large product;
- decode, bfloat16 (float16 on a GPU without it), at batch 1 and 8: the engine, minillm's modules,
  the same step by torch.compile, and transformers with a static cache, which it compiles;
- decode with INT8 and INT4 weights: the engine;
- a prompt of 4,096 tokens: the engine and transformers.

A share is what is achieved of the ceiling: the bytes that a step must read (weights, keys and
values), or a prompt's FLOPs, per second. What does not fit into the GPU's memory, or fails, is left
out, and named in the report. --smoke takes a tiny shape, on a CPU under Triton's
interpreter and without graphs: its times say nothing about anything.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that `tools` can be imported
if "--smoke" in sys.argv:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton

import torch  # noqa: E402

from minillm.bench import Ceilings, ceilings, machine  # noqa: E402
from minillm.device import pick_dtype  # noqa: E402
from minillm.engines.base import Unsupported  # noqa: E402
from tools.gpu import shapes  # noqa: E402
from tools.gpu.bench import Bench  # noqa: E402
from tools.gpu.engines import Engine  # noqa: E402
from tools.gpu.report import Figure, table, verdicts  # noqa: E402
from tools.gpu.shapes import Work  # noqa: E402
from tools.peers.report import replace_between  # noqa: E402


def main() -> int:
    """Measure, print as it comes, and write the files that were asked for."""
    options = parse()
    device = torch.device("cpu" if options.smoke else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device; --smoke shows on any machine that this runs")
        return 2
    dtype = torch.bfloat16 if options.smoke else pick_dtype("auto", device)
    about = facts(device, dtype, options.smoke)
    print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
    most = ceilings(device, dtype)
    if not options.smoke:
        print(f"ceilings: {bounds(most)}", flush=True)
    known = shapes.TINY if options.smoke else shapes.SHAPES
    names = options.shapes or list(known)
    work = shapes.SMOKE if options.smoke else Work(runs=options.runs)
    figures: list[Figure] = []
    skipped: list[str] = []
    try:
        for name in names:
            bench = Bench(name, known[name], device, dtype, work)
            for figure in bench.figures():
                print(line(figure, most, options.smoke), flush=True)
                figures.append(figure)
            for text in bench.skipped:
                print(f"left out: {text}", flush=True)
            skipped += bench.skipped
    except Unsupported as reason:
        print(f"the CUDA engine cannot run: {reason}")
        return 2
    report = markdown(about, most, figures, skipped, options.smoke)
    print(f"\n{report}")
    write(options, about, most, figures, skipped, report)
    return 0 if figures else 1


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


def facts(device: torch.device, dtype: torch.dtype, smoke: bool) -> dict[str, Any]:
    """What the figures belong to."""
    found = {"date": date.today().isoformat(), **machine(device)}
    found["dtype"] = str(dtype).removeprefix("torch.")
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
    about: Mapping[str, Any],
    most: Ceilings,
    figures: Sequence[Figure],
    skipped: Sequence[str],
    smoke: bool,
) -> str:
    """The report: machine and date, ceilings, table, what is missing there, targets."""
    left_out = "".join(f"\n- left out: {text}" for text in skipped)
    if smoke:
        return f"Smoke run: {len(figures)} measurements ran. No figure here is a speed.{left_out}"
    parts = [
        ", ".join(f"{name} {value}" for name, value in about.items()),
        f"Measured ceilings: {bounds(most)}.",
        table(figures, most, Engine.name),
        "\n".join(f"- {text}" for text in verdicts(figures, most, Engine.name)) + left_out,
    ]
    return "\n\n".join(parts)


def write(
    options: argparse.Namespace,
    about: Mapping[str, Any],
    most: Ceilings,
    figures: Sequence[Figure],
    skipped: Sequence[str],
    report: str,
) -> None:
    """The files that were asked for."""
    if options.json:
        found = {
            "machine": about,
            "smoke": options.smoke,
            "ceilings": asdict(most),
            "figures": [figure.as_dict(most) for figure in figures],
            "left_out": list(skipped),
            "targets": [] if options.smoke else verdicts(figures, most, Engine.name),
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.write:
        replace_between(ROOT / "docs" / "benchmarks.md", "gpu", report)
    if options.markdown:
        options.markdown.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
