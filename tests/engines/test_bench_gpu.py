"""`make bench-gpu`: its arithmetic, and, as a smoke run on a CPU, that it runs."""

import importlib.util
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.bench import Ceilings
from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.sampling import SamplingParams
from tests.engines.kernels import has_triton
from tools.bench_gpu import markdown
from tools.gpu.bench import Bench, Make
from tools.gpu.compiled import CompiledStep
from tools.gpu.engines import Engine, Runner
from tools.gpu.report import Figure, table, verdicts
from tools.gpu.shapes import SHAPES, TINY, Work, quantize, random_model, weight_bytes

ROOT = Path(__file__).resolve().parents[2]
MOST = Ceilings(bytes_per_s=1000e9, flops_per_s=200e12)
OURS = Figure("Llama-2-7B", "bfloat16", "decode", 1, "ours", 0.015, 13.5e9, 1)


def test_shares_and_targets():
    assert OURS.share(MOST) == pytest.approx(0.9)
    slow = replace(OURS, weights="int4", seconds=0.01, work=3.8e9)
    prompt = replace(OURS, phase="prefill", seconds=0.5, work=55e12, tokens=4096)
    assert prompt.tokens_per_s == pytest.approx(8192)
    assert verdicts([OURS, slow, prompt], MOST, "ours") == [
        "Llama-2-7B, bfloat16, decode at batch 1: 90% of the measured bandwidth (85%: met)",
        "Llama-2-7B, int4, decode at batch 1: 38% of the measured bandwidth (60%: missed)",
        "Llama-2-7B, bfloat16, prefill: 55% of the measured matrix rate (60%: missed)",
    ]
    assert "not measured" in verdicts([], MOST, "ours")[0]


def test_the_table_names_the_peers_ratio():
    text = table([OURS, replace(OURS, engine="peer", seconds=0.03)], MOST, "ours")
    rows = text.splitlines()
    assert rows[2].endswith("| ours | 66.7 | 90% | – |")
    assert rows[3].endswith("| peer | 33.3 | 45% | 2.00 |")


def test_the_shapes_are_those_of_the_models():
    millions = {name: config.num_parameters() / 1e6 for name, config in SHAPES.items()}
    assert millions == pytest.approx(
        {"SmolLM2-135M": 134.5, "Llama-3.2-1B": 1235.8, "Llama-2-7B": 6738.4}, abs=0.1
    )


def test_bytes_of_weights():
    config = TINY["tiny"]
    model = random_model(config, torch.device("cpu"), torch.bfloat16)
    assert model.embed_tokens.weight.dtype == torch.bfloat16
    table_bytes = 2 * config.vocab_size * config.hidden_size
    plain = weight_bytes(model)
    assert plain == 2 * config.num_parameters() - table_bytes
    matrices = plain - table_bytes - 2 * 3 * config.hidden_size
    quantized = weight_bytes(quantize(model, "int4"))
    # Half a byte a weight, and for each 128 columns a scale and a zero point, instead of two bytes.
    assert quantized == plain - matrices + matrices // 4 + matrices // 2 // 128 * 3


class Half(Runner):
    """A step takes half a second."""

    name, weight_bytes = "half", 1000

    def seconds_per_step(self, *_: object) -> float:
        return 0.5


def test_what_does_not_run_is_left_out_and_named():
    """The other figures stand, and what was allocated before the failure is gone."""
    large = []

    def too_large() -> Runner:
        held = torch.zeros(1)
        large.append(weakref.ref(held))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken() -> Runner:
        assert large[0]() is None
        raise RuntimeError("no luck\nat all")

    class Four(Bench):
        def runners(self) -> Iterator[tuple[str, str, Make]]:
            yield "bfloat16", "first", Half
            yield "int8", "second", too_large
            yield "bfloat16", "third", broken
            yield "bfloat16", "fourth", Half

    device = torch.device("cpu")
    bench = Four(
        "tiny", TINY["tiny"], device, torch.bfloat16, Work(rows=(1, 2), prompt=8, tokens=4)
    )
    figures = list(bench.figures())
    assert [(x.rows, x.engine) for x in figures] == [(1, "half"), (2, "half")] * 2
    # One layer with one key head of 64: 10 old tokens are read, and one is written.
    assert [x.work for x in figures[:2]] == [1000 + 11 * 256, 1000 + 2 * 11 * 256]
    assert bench.skipped == [
        "tiny, int8, second: out of memory",
        "tiny, bfloat16, third: RuntimeError: no luck",
    ]
    report = markdown({"date": "today"}, MOST, figures, bench.skipped, smoke=False)
    assert report.endswith("- left out: tiny, bfloat16, third: RuntimeError: no luck")


@has_triton
def test_a_prompt_is_read_by_the_engine(monkeypatch):
    runner = Engine(random_model(TINY["tiny"], torch.device("cpu"), torch.float32))
    forward = runner.engine.forward
    found: list[torch.Tensor | None] = []

    def noted(*args: Any) -> Any:
        found.append(forward(*args))
        return found[-1]

    monkeypatch.setattr(runner.engine, "forward", noted)
    runner.prefill([3, 1, 4])
    [hidden] = found
    assert hidden is not None
    assert hidden.shape == (1, 3, 128)


def test_the_compiled_step_is_greedy_decoding():
    model = random_model(TINY["tiny"], torch.device("cpu"), torch.float32)
    step = CompiledStep(model, 2, 10, "eager")
    ids, positions, found = torch.tensor([3, 5]), torch.tensor([0, 0]), []
    with torch.no_grad():
        for _ in range(6):
            ids, positions = step(ids, positions), positions + 1
            found.append(ids.tolist())
    requests = [Request([first], SamplingParams(max_new_tokens=6)) for first in (3, 5)]
    cache = new_cache(model.config, 2, 10)
    list(decode(model, cache, prefill(model, [[3], [5]], cache), requests))
    assert [list(row) for row in zip(*found, strict=True)] == [r.token_ids for r in requests]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no triton here")
def test_a_smoke_run(tmp_path):
    command = [sys.executable, "tools/bench_gpu.py", "--smoke"]
    files = {name: tmp_path / f"gpu.{name}" for name in ("json", "markdown")}
    for name, path in files.items():
        command += [f"--{name}", str(path)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tokens/s" not in done.stdout
    assert "No figure here is a speed." in files["markdown"].read_text(encoding="utf-8")
    report = json.loads(files["json"].read_text(encoding="utf-8"))
    assert report["smoke"]
    assert report["targets"] == []
    engines = {figure["engine"] for figure in report["figures"]}
    assert len(engines) == 4
    assert {figure["weights"] for figure in report["figures"]} == {"bfloat16", "int8", "int4"}


def test_without_a_gpu_it_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    command = [sys.executable, "tools/bench_gpu.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no CUDA device" in done.stdout
