"""One decode step of the CUDA engine against the modules: every feature, cache and batch.

Where there is a GPU the step is recorded and replayed there. Elsewhere it runs on the CPU, kernel
by kernel: with kernels in plain PyTorch, and a few models with Triton's under its interpreter.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from minillm.engines.cuda import CudaEngine
from minillm.engines.cuda_weights import Dense
from minillm.generate import prefill
from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from tests.engines.cuda_compare import (
    accelerated,
    close,
    compare,
    ids_of,
    pair,
    read_codes,
    read_prompts,
    take_turns,
)
from tests.engines.cuda_models import (
    BASE,
    CODED,
    DEVICE,
    MODELS,
    coded,
    prompts,
    transformer,
)
from tests.engines.kernels import KERNELS, engine_of, kernels_of


@pytest.fixture(params=KERNELS)
def kind(request):
    return request.param


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_modules(name, kind):
    model = transformer(MODELS[name])
    compare(model, accelerated(model, kind), prompts([3, 7, 5], MODELS[name]))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("dynamic", "longrope")])
def test_prompts(name, kind):
    model = transformer(MODELS[name])
    fast = accelerated(model, kind)
    windows = [layer.sliding_window or 8 for layer in model.config.layers]
    read_prompts(model, fast, [2, min(*windows, 8), 1])


def test_prompts_where_there_is_no_flash_kernel(kind, monkeypatch):
    monkeypatch.setattr("minillm.engines.cuda_step._has_flash", lambda *_: False)
    model = transformer(MODELS["one key head"])
    read_prompts(model, accelerated(model, kind), [7, 3])


@pytest.mark.parametrize("bits", CODED)
def test_prompts_with_coded_weights(bits, kind):
    model = coded(BASE, bits)
    read_prompts(model, accelerated(model, kind), [7, 3])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_batches(rows, kind):
    model = transformer(BASE)
    compare(model, accelerated(model, kind), prompts([4] * rows))


@pytest.mark.parametrize("bits", CODED)
def test_coded_weights(bits, kind):
    model = coded(MODELS["biases"], bits)
    compare(model, accelerated(model, kind), prompts([3, 6]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_16_bits(name, dtype, kind):
    model = transformer(MODELS[name], dtype)
    compare(model, accelerated(model, kind), prompts([3, 6]), dtype=dtype)


@pytest.mark.parametrize("name", ["llama", "windows and sinks"])
def test_the_cache_is_filled_as_by_the_modules(name, kind):
    model = transformer(MODELS[name])
    slow, fast = compare(model, accelerated(model, kind), prompts([3, 7, 5]), steps=6)
    for found, expected in zip([*fast.keys, *fast.values], [*slow.keys, *slow.values], strict=True):
        close(found, expected)


@pytest.mark.parametrize("name", ["llama", "windows", "windows and sinks"])
def test_engine_and_modules_take_turns(name, kind):
    model = transformer(MODELS[name])
    take_turns(model, accelerated(model, kind), 9)


@pytest.mark.parametrize("name", ["llama", "windows and sinks"])
@torch.no_grad()
def test_caches_that_are_not_its_own(name, kind):
    model = transformer(MODELS[name])
    fast = accelerated(model, kind)
    caches = [new_cache(model.config, 2, 20, device=DEVICE) for _ in range(2)]
    for cache in caches:
        prefill(model, prompts([3, 6]), cache)
    for step in range(6):
        ids = ids_of(step, 2)
        hidden = fast.engine.forward(ids, caches[0])
        assert hidden is not None
        close(hidden, model(ids, caches[1]))


@pytest.mark.parametrize("name", ["llama", "gemma", "windows and sinks"])
@pytest.mark.parametrize("coding", ["int8", "int4"])
@torch.no_grad()
def test_caches_of_codes(coding, name, kind):
    """Over steps that fill the block of one row, of the other, and of none."""
    read_codes(MODELS[name], coding, kind, [29, 4], steps=30)


@torch.no_grad()
def test_a_dense_cache_of_a_model_with_windows(kind):
    model = transformer(MODELS["windows and sinks"])
    fast = accelerated(model, kind)
    caches = [DenseKVCache(model.config, 2, 24, device=DEVICE) for _ in range(2)]
    for cache in caches:
        prefill(model, prompts([9, 2]), cache)
    for step in range(4):
        ids = ids_of(step, 2)
        close(fast.engine.forward(ids, caches[0]), model(ids, caches[1]))


@torch.no_grad()
def test_truncated_and_selected_rows(kind):
    model = transformer(BASE)
    fast = accelerated(model, kind)
    caches = pair(fast, 3)
    for cache in caches:
        prefill(model, prompts([4, 2, 6]), cache)
    for rows, change in ((3, None), (3, "truncate"), (2, [0, 2]), (2, None), (2, [1, 0])):
        for cache in caches:
            if change == "truncate":
                cache.truncate([int(n) - 1 for n in cache.lengths])
            elif change:
                cache.select(change)
        ids = ids_of(rows, rows)
        close(fast.engine.forward(ids, caches[1]), model(ids, caches[0]))
    assert caches[1].storage is None  # rows in another order leave the pool


@torch.no_grad()
def test_what_it_leaves_to_the_modules():
    model = transformer(BASE)
    engine = CudaEngine(model, kernels_of("plain"))
    cache = engine.new_cache(2, 16)
    one = torch.zeros(2, 1, dtype=torch.int64, device=DEVICE)
    assert engine.forward(one, cache, counts=[1, 0]) is None
    quantized = new_cache(BASE, 2, 64, kind="int8", device=DEVICE)
    assert engine.forward(one.repeat(1, 3), quantized) is None
    assert engine.logits(torch.zeros(2, 1, 32, device=DEVICE)) is None
    assert cache.lengths.tolist() == quantized.lengths.tolist() == [0, 0]
    three = torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)
    assert engine.forward(three, cache) is not None
    assert engine.forward(three, cache) is None  # a second part of a prompt
    windowed: Any = engine_of(transformer(MODELS["windows"]))
    assert windowed.forward(torch.zeros_like(three).repeat(1, 2), windowed.new_cache(2, 16)) is None
    dynamic: Any = engine_of(transformer(MODELS["dynamic"]))
    assert dynamic.forward(three, dynamic.new_cache(2, 16)) is None
    wide = transformer(replace(BASE, head_dim=256))
    quantized = new_cache(wide.config, 2, 64, kind="int8", device=DEVICE)
    assert engine_of(wide).forward(one, quantized) is None  # too wide in float32
    assert quantized.lengths.tolist() == [0, 0]
    assert engine_of(wide.half()).forward(one, quantized) is not None


@torch.no_grad()
def test_it_stops_where_sinks_have_to_be_turned():
    model = transformer(MODELS["windows and sinks"])
    fast = accelerated(model, "plain")
    trained = model.config.max_position_embeddings
    slow_cache, fast_cache = pair(fast, 1, capacity=trained + 20)
    text = prompts([trained - 3])
    for cache in (slow_cache, fast_cache):
        prefill(model, text, cache, chunk_size=16)
    for step in range(8):
        ids = ids_of(step, 1)
        assert (fast.engine.forward(ids, fast_cache) is None) == (step >= 3)
        if step >= 3:
            model(ids, fast_cache)
        model(ids, slow_cache)
        for found, expected in zip(fast_cache.keys, slow_cache.keys, strict=True):
            close(found, expected)


@torch.no_grad()
def test_a_full_cache_raises_as_the_modules_do():
    model = transformer(BASE)
    fast = accelerated(model, "plain")
    cache = fast.engine.new_cache(1, 4)
    prefill(model, prompts([4]), cache)
    with pytest.raises(ValueError, match="holds 4 tokens per row; 5 needed"):
        fast(ids_of(0, 1), cache)
    assert cache.lengths.tolist() == [4]


def test_weights_are_shared_with_the_modules():
    model = transformer(MODELS["biases"])
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    engine = CudaEngine(model, kernels_of("plain"))
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name
    whole = engine.weights.layers[1].qkv
    assert isinstance(whole, Dense)
    assert whole.bias is not None
    weights = dict(model.named_parameters())
    for name in ("q_proj", "k_proj", "v_proj"):
        weight, bias = (weights[f"layers.1.self_attn.{name}.{x}"] for x in ("weight", "bias"))
        assert weight.untyped_storage().data_ptr() == whole.weight.data_ptr()
        assert bias.untyped_storage().data_ptr() == whole.bias.data_ptr()
    again = CudaEngine(model, kernels_of("plain")).weights.layers[1].qkv  # joined already
    assert isinstance(again, Dense)
    assert again.weight.data_ptr() == whole.weight.data_ptr()


@pytest.mark.parametrize("bits", CODED)
def test_codes_are_shared_with_the_modules(bits):
    model = coded(BASE, bits)
    engine = CudaEngine(model, kernels_of("plain"))
    part, whole = model.get_submodule("layers.0.mlp.up_proj"), engine.weights.layers[0].gate_up
    for name in ("codes", "scales", "zeros"):
        shared = getattr(part, name).untyped_storage().data_ptr()
        assert shared == getattr(whole, name).data_ptr(), name


def test_layers_with_an_order_of_columns_stay_apart(kind):
    model = coded(BASE, "4 bits")
    draw = torch.Generator().manual_seed(3)
    for name in ("q_proj", "k_proj"):
        layer = model.get_submodule(f"layers.1.self_attn.{name}")
        layer.register_buffer("order", torch.randperm(32, generator=draw).to(DEVICE))
    compare(model, accelerated(model, kind), prompts([3, 6]))
