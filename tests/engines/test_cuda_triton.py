"""The CUDA engine on Triton's kernels: a few models that stand for all, under the interpreter.

On a machine with a GPU the kernels are compiled, and test_cuda_step.py runs all models on them too.
"""

import pytest
import torch

from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.sampling import SamplingParams
from tests.engines.cuda_compare import (
    accelerated,
    compare,
    read_codes,
    read_prompts,
    take_turns,
)
from tests.engines.cuda_models import (
    COMPOSED,
    DEVICE,
    coded,
    prompts,
    transformer,
)
from tests.engines.kernels import engine_of, has_triton


@has_triton
def test_triton_reads_prompts(monkeypatch):
    monkeypatch.setattr("minillm.engines.cuda_cache.LEAST_CAPACITY", 16)
    model = transformer(COMPOSED["gemma, windows"])
    read_prompts(model, accelerated(model, "triton"), [3, 2], capacity=16)


@has_triton
@pytest.mark.parametrize("name", COMPOSED)
def test_triton_equals_the_modules(name, monkeypatch):
    monkeypatch.setattr("minillm.engines.cuda_cache.LEAST_CAPACITY", 16)
    model, texts = transformer(COMPOSED[name]), prompts([6, 3, 1][: len(name) % 3 + 1])
    compare(model, accelerated(model, "triton"), texts, steps=2, capacity=16)


@has_triton
@pytest.mark.parametrize("bits", ["4 bits", "8 bits in groups"])
def test_triton_with_coded_weights(bits, monkeypatch):
    monkeypatch.setattr("minillm.engines.cuda_cache.LEAST_CAPACITY", 16)
    model = coded(COMPOSED["olmo"], bits)
    compare(model, accelerated(model, "triton"), prompts([3, 6]), steps=2, capacity=16)


@has_triton
@torch.no_grad()
def test_triton_and_modules_take_turns(monkeypatch):
    monkeypatch.setattr("minillm.engines.cuda_cache.LEAST_CAPACITY", 16)
    model = transformer(COMPOSED["gemma, windows"], torch.bfloat16)
    take_turns(model, accelerated(model, "triton"), 4, torch.bfloat16)


@has_triton
@torch.no_grad()
def test_triton_on_a_cache_of_codes():
    read_codes(COMPOSED["olmo"], "int4", "triton", [30, 2], steps=3)


@has_triton
def test_triton_under_the_whole_loop(monkeypatch):
    """Greedy and sampled rows at once, by Triton's kernels: the greedy ones as by `decode`."""
    monkeypatch.setattr("minillm.engines.cuda_cache.LEAST_CAPACITY", 16)
    config = COMPOSED["olmo"]
    model = transformer(config)
    engine = engine_of(model, "triton")
    texts, found = prompts([3, 6], config), []
    for temperature in (0.0, 0.8, 0.8):
        cache = engine.new_cache(2, 16)
        requests = [
            Request(text, SamplingParams(max_new_tokens=4, temperature=t, top_p=0.9))
            for text, t in zip(texts, (0.0, temperature), strict=True)
        ]
        requests[1].generator = torch.Generator(DEVICE).manual_seed(3)
        list(engine.decode(cache, prefill(model, texts, cache), requests))
        found.append([r.token_ids for r in requests])
    expected = [Request(text, SamplingParams(max_new_tokens=4)) for text in texts]
    cache = new_cache(config, 2, 16, device=DEVICE)
    list(decode(model, cache, prefill(model, texts, cache), expected))
    assert found[0] == [r.token_ids for r in expected]
    assert found[1][0] == found[0][0]
    assert found[1] == found[2]
    assert all(len(ids) == 4 and min(ids) >= 0 for ids in found[1])
