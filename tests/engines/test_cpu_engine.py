"""The C++ engine's rules: what it refuses, notices and leaves alone; threads and processes."""

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minillm.config import ExpertsConfig, LayerConfig
from minillm.engines import cpu_structs
from minillm.engines.base import Accelerated, Unsupported
from minillm.engines.cpu import CpuEngine
from minillm.kernels import cpu
from minillm.kv_cache import new_cache
from minillm.quantization.int8 import Int8Linear
from minillm.quantization.linear import put
from tests.engines.cpu_models import (
    TOLERANCE,
    alone,
    needs_library,
    off_by,
    on_blocks,
    transformer,
    wide,
)
from tests.engines.cuda_models import BASE, MODELS

pytestmark = needs_library

IDS = torch.tensor([[5, 9, 2, 7]])


def hidden(model, ids=IDS):
    with torch.inference_mode():
        return model(ids, new_cache(model.config, len(ids), 30))


def test_name():
    assert CpuEngine(transformer(BASE)).name == f"cpu ({cpu.variant()})"


def test_models_that_it_cannot_run():
    experts = LayerConfig(experts=ExpertsConfig(3, 1, 16))
    with pytest.raises(Unsupported, match="layer 1 has several experts"):
        CpuEngine(transformer(replace(BASE, layers=(LayerConfig(), experts, LayerConfig()))))
    with pytest.raises(Unsupported, match="head_dim is 514; at most 512"):
        CpuEngine(transformer(replace(BASE, head_dim=514)))
    model = transformer(BASE)
    put(model, "layers.2.mlp.up_proj", Int8Linear(torch.randn(48, 32)))
    with pytest.raises(Unsupported, match=r"layers\.2\.up_proj is a Int8Linear"):
        CpuEngine(model)
    with pytest.raises(Unsupported, match="float64"):
        CpuEngine(transformer(BASE, torch.float64))


def test_without_a_library(monkeypatch):
    monkeypatch.setenv("MINILLM_CPU", "off")
    with pytest.raises(Unsupported, match="MINILLM_CPU=off"):
        CpuEngine(transformer(BASE))


@torch.inference_mode()
def test_wrong_input_raises_what_the_modules_raise():
    model = transformer(BASE)
    for runner in (model, Accelerated(model, CpuEngine(model))):
        with pytest.raises(IndexError, match="index 61 is out of bounds"):
            runner(torch.tensor([[61]]), new_cache(BASE, 1, 9))
        with pytest.raises(ValueError, match="holds 3 tokens per row; 4 needed"):
            runner(IDS, new_cache(BASE, 1, 3))
        with pytest.raises(ValueError, match=r"counts is \[5\]"):
            runner(IDS, new_cache(BASE, 1, 9), [5])


def test_weights_in_floating_point_are_read_in_place():
    model = transformer(MODELS["biases"])
    ours = alone(model)
    before = hidden(ours)
    for name in ("o_proj.weight", "q_proj.bias"):
        model.layers[1].self_attn.get_parameter(name).data.mul_(1.5)
    model.norm.weight.data.mul_(2)
    after = hidden(ours)
    assert off_by(after, before).max() > 0.01
    assert off_by(after, hidden(model)).max() < TOLERANCE


def test_what_is_replaced_is_noticed_when_a_text_begins():
    model = transformer(BASE)
    ours, cache = alone(model), new_cache(BASE, 1, 30)
    before, step = hidden(ours), torch.tensor([[3]])
    model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.randn(48, 32))
    assert off_by(hidden(ours), hidden(model)).max() < TOLERANCE
    model.layers[1].mlp.down_proj.weight.data = torch.randn(32, 48)
    assert off_by(hidden(ours), hidden(model)).max() < TOLERANCE
    put(model, "layers.2.self_attn.v_proj", torch.nn.Linear(32, 16, bias=True))
    assert off_by(hidden(ours, step), hidden(model, step)).max() < TOLERANCE  # another cache
    assert off_by(hidden(ours), before).max() > 0.01
    put(model, "layers.2.mlp.up_proj", Int8Linear(torch.randn(48, 32)))
    with torch.inference_mode():
        assert ours.engine.forward(IDS, cache) is None  # not any more
        put(model, "layers.2.mlp.up_proj", torch.nn.Linear(32, 48, bias=False))
        assert ours.engine.forward(IDS, cache) is not None


def test_a_swapped_block_of_codes_is_noticed():
    model, other = on_blocks(wide("llama"), "Q4_1"), on_blocks(wide("llama"), "Q8_0")
    ours = alone(model)
    hidden(ours)
    put(model, "layers.1.mlp.gate_proj", other.layers[1].mlp.gate_proj)
    assert off_by(hidden(ours), hidden(model)).median() < 1e-3
    model.layers[2].mlp.gate_proj.data = other.layers[2].mlp.gate_proj.data
    with pytest.raises(ValueError, match="blocks of kind Q4_1"):
        hidden(ours)  # bytes of another kind: an error, and no step beyond them


def test_hooks_are_heard():
    model = transformer(BASE)
    runner, heard = Accelerated(model, CpuEngine(model)), []
    handle = model.layers[1].mlp.register_forward_hook(lambda *args: heard.append(args))
    hidden(runner)
    assert len(heard) == 1
    handle.remove()
    hidden(runner)
    assert len(heard) == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads, many_tokens):
    """Three heads and odd sizes for one, two and three threads."""
    before = torch.get_num_threads()
    model = on_blocks(wide("one key head"), "Q4_1")
    try:
        torch.set_num_threads(1)
        expected = hidden(alone(model), IDS.repeat(3, 5))
        torch.set_num_threads(threads)
        ours, cache = alone(model), new_cache(model.config, 3, 30)
        found = hidden(ours, IDS.repeat(3, 5))
        assert torch.equal(found, expected)
        with torch.inference_mode():
            steps = [ours(IDS[:, i % 4 : i % 4 + 1].repeat(3, 1), cache) for i in range(20)]
        assert off_by(torch.cat(steps, dim=1), expected).median() < 1e-4
    finally:
        torch.set_num_threads(before)


def test_profile():
    engine = alone(on_blocks(wide("llama"), "Q4_0")).engine
    cache = new_cache(engine._source.config, 1, 9)
    with torch.inference_mode():
        found = engine.profile(IDS, cache)
    assert list(found) == [*cpu_structs.STAGES, *cpu_structs.HEAD_STAGES, "python"]
    assert all(seconds >= 0 for seconds in found.values())
    assert sum(found.values()) > 0
    assert cache.lengths.tolist() == [4]
    with pytest.raises(ValueError, match=r"the modules run a step of shape \(1, 4\)"):
        engine.profile(IDS, new_cache(replace(BASE, head_dim=4), 1, 9))


def test_structs_have_the_sizes_that_cpp_gives_them():
    sizes = (ctypes.c_int64 * 4)()
    cpu.load_library().mm_step_sizes(sizes)
    structs = cpu_structs.Layer, cpu_structs.Model, cpu_structs.Step, cpu_structs.LayerCache
    assert list(sizes) == [ctypes.sizeof(struct) for struct in structs]


FORKED = """
import os, torch
from tests.engines.cpu_models import alone, on_blocks, wide
from minillm.kv_cache import new_cache
torch.set_num_threads(2)
model = alone(on_blocks(wide("llama"), "Q4_1"))
ids = torch.tensor([[1, 2, 3]])
with torch.inference_mode():
    expected = model(ids, new_cache(model.config, 1, 9))
    child = os.fork()
    if child == 0:
        torch.set_num_threads(2)
        found = model(ids, new_cache(model.config, 1, 9))
        os._exit(0 if torch.equal(found, expected) else 3)
    print(os.waitpid(child, 0)[1])
    maps = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else ""
    files = {line.split()[-1] for line in maps.splitlines()}
    print(len([file for file in files if "libgomp" in file or "libomp" in file]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_on_one_thread_and_one_openmp_runtime_is_loaded():
    found = subprocess.run(
        [sys.executable, "-c", FORKED],
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    status, runtimes = found.stdout.split()
    assert status == "0"
    assert int(runtimes) <= 1


@pytest.mark.parametrize("name", cpu.variants())
def test_the_variant_of_the_environment(name):
    code = (
        "from tests.engines.cpu_models import alone, on_blocks, wide\n"
        "print(alone(on_blocks(wide('llama'), 'Q4_1')).engine.name)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"MINILLM_CPU": name},
        capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert found.stdout.strip() == f"cpu ({name})", found.stdout + found.stderr
