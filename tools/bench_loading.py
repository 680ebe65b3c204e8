"""Measure how long a model takes to load, and how much memory, beside transformers.

    python tools/bench_loading.py                # smollm2: from the folder, from the GGUF file
    python tools/bench_loading.py --runs 9

Every load is a fresh process. The engines take turns; the first round only warms the system's file
cache and is not counted. Each figure is the median of the rounds:

import  seconds to import the library.
load    seconds from its call to the model with its tokenizer.
first   seconds from there to the logits after one token, which reads every weight.
peak    bytes of memory at the most, above those after the import: at load, and at the first token.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Load:
    """One load, or the median of several: seconds, and bytes of memory."""

    import_s: float
    load_s: float
    first_s: float
    peak_load: float
    peak_first: float

    @property
    def start_s(self) -> float:
        """Seconds from nothing to a loaded model."""
        return self.import_s + self.load_s


def load(engine: str, path: str, dtype: str) -> Load:
    """Load the model in this process, which must not have imported torch before."""
    begin = time.perf_counter()
    if engine == "minillm":
        import torch

        from minillm import LLM
    else:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        assert LlamaForCausalLM  # imported late otherwise, within the load
    imported = time.perf_counter()
    before = _memory("VmRSS")
    if engine == "minillm":
        llm = LLM.from_pretrained(path, device="cpu", dtype=dtype)
        loaded, peak_load = time.perf_counter(), _memory("VmHWM")
        llm.logits([0])
    else:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), local_files_only=True
        )
        AutoTokenizer.from_pretrained(path, local_files_only=True)
        loaded, peak_load = time.perf_counter(), _memory("VmHWM")
        with torch.inference_mode():
            model(input_ids=torch.tensor([[0]]))
    done, peak = time.perf_counter(), _memory("VmHWM")
    return Load(
        imported - begin, loaded - imported, done - loaded, peak_load - before, peak - before
    )


def _memory(line: str) -> int:
    """VmRSS, the memory of this process now, or VmHWM, the most until now, in bytes."""
    if sys.platform == "linux":
        for text in Path("/proc/self/status").read_text().splitlines():
            if text.startswith(line):
                return int(text.split()[1]) * 1024
    from resource import RUSAGE_SELF, getrusage

    return getrusage(RUSAGE_SELF).ru_maxrss  # macOS: the most until now, in bytes


def measure(engines: Sequence[tuple[str, Path]], dtype: str, runs: int = 5) -> list[Load]:
    """The median load of each engine, an (engine, path) pair, in fresh processes."""
    rounds = [[_in_a_process(*pair, dtype) for pair in engines] for _ in range(1 + runs)]
    counted = list(zip(*rounds[1:], strict=True))
    return [
        Load(
            **{name: statistics.median(asdict(r)[name] for r in loads) for name in asdict(loads[0])}
        )
        for loads in counted
    ]


def _in_a_process(engine: str, path: Path, dtype: str) -> Load:
    command = [sys.executable, __file__, "--child", engine, str(path), dtype]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{engine} could not load {path}: {done.stderr.strip()[-500:]}")
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def table(names: Sequence[str], loads: Sequence[Load], dtype: str) -> list[str]:
    """The figures of one dtype as lines of text; the last one is the peer."""
    lines = [f"{dtype:<26} import, s  load, s  first, s   peak at load, MB  at first token"]
    for name, x in zip(names, loads, strict=True):
        lines.append(
            f"  {name:<24} {x.import_s:>9.2f} {x.load_s:>8.2f} {x.first_s:>9.2f} "
            f"{x.peak_load / 1e6:>18.0f} {x.peak_first / 1e6:>15.0f}"
        )
    peer = loads[-1]
    for name, x in zip(names[:-1], loads[:-1], strict=True):
        lines.append(
            f"  {name}: {peer.start_s / x.start_s:.2f} × as fast as {names[-1]} with imports, "
            f"{peer.load_s / x.load_s:.2f} × without"
        )
    return lines


def engines_of(folder: Path) -> tuple[list[str], list[tuple[str, Path]]]:
    """Names and (engine, path) of what is compared: the folder, its GGUF file, transformers."""
    gguf = [("minillm, GGUF file", ("minillm", path)) for path in sorted(folder.glob("*.gguf"))]
    pairs = [
        ("minillm, folder", ("minillm", folder)),
        *gguf[:1],
        ("transformers, folder", ("transformers", folder)),
    ]
    return [name for name, _ in pairs], [engine for _, engine in pairs]


def main() -> None:
    """Print the figures of one model."""
    from minillm.weights.pull import resolve

    parser = argparse.ArgumentParser(description="Measure loading beside transformers.")
    parser.add_argument("--model", default="smollm2", help="name or folder (default: smollm2)")
    parser.add_argument("--runs", type=int, default=5, help="rounds that count (default: 5)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(asdict(load(*arguments.child))))
        return
    if arguments.runs < 1:
        parser.error(f"--runs is {arguments.runs}; at least 1 is needed")
    names, engines = engines_of(resolve(arguments.model))
    for dtype in DTYPES:
        print("\n".join(table(names, measure(engines, dtype, arguments.runs), dtype)), flush=True)


if __name__ == "__main__":
    main()
