"""What the CUDA engine's tests compare: its steps beside those of the modules."""

from typing import Any

import torch

from minillm.engines.base import Accelerated
from minillm.engines.cuda import CudaEngine
from minillm.generate import prefill
from minillm.kv_cache import new_cache
from tests.engines.cuda_models import (
    DEVICE,
    prompts,
    transformer,
)
from tests.engines.kernels import kernels_of

# Relative to the largest value: sums of some hundred products, in another order.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.04, torch.float16: 5e-3}


def close(found, expected, tolerance=2e-5):
    error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert float(error) < tolerance, float(error)


def ids_of(step, rows):
    return torch.tensor([[(7 * step + 13 * row) % 61] for row in range(rows)], device=DEVICE)


def pair(model, rows, capacity=32, dtype=torch.float32):
    """A cache for the modules and one of the engine's pool."""
    config = model.config
    plain = new_cache(config, rows, capacity, dtype=dtype, device=DEVICE)
    return plain, model.engine.new_cache(rows, capacity)


def accelerated(model, kind):
    return Accelerated(model, CudaEngine(model, kernels_of(kind)))


@torch.no_grad()
def compare(model, fast, texts, steps=8, dtype=torch.float32, capacity=32):
    """Prompts through the modules, then steps through both."""
    slow_cache, fast_cache = pair(fast, len(texts), capacity, dtype)
    for cache in (slow_cache, fast_cache):
        prefill(model, texts, cache)
    for step in range(steps):
        ids = ids_of(step, len(texts))
        hidden = fast.engine.forward(ids, fast_cache)
        assert hidden is not None
        assert hidden.dtype == dtype
        expected = model(ids, slow_cache)
        close(hidden, expected, TOLERANCE[dtype])
        close(fast.logits(hidden), model.logits(expected), TOLERANCE[dtype])
    assert fast_cache.lengths.tolist() == [len(text) + steps for text in texts]
    return slow_cache, fast_cache


@torch.no_grad()
def read_prompts(model, fast, lengths, capacity=32, dtype=torch.float32):
    """Prompts of several lengths in one step, then one more step, by the engine and by modules."""
    rows, T = len(lengths), max(lengths)
    ids = torch.tensor([text + [0] * (T - len(text)) for text in prompts(lengths)], device=DEVICE)
    slow_cache, fast_cache = pair(fast, rows, capacity, dtype)
    found = fast.engine.forward(ids, fast_cache, lengths, torch.tensor(lengths))
    assert found is not None
    expected = model(ids, slow_cache, lengths, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        close(found[row, :length], expected[row, :length], TOLERANCE[dtype])
    assert fast_cache.lengths.tolist() == lengths
    close(fast(ids_of(1, rows), fast_cache), model(ids_of(1, rows), slow_cache), TOLERANCE[dtype])


@torch.no_grad()
def take_turns(model, fast, steps, dtype=torch.float32):
    """Steps of engine and modules on one cache, against modules on another."""
    slow_cache, fast_cache = pair(fast, 2, 16, dtype)
    for cache in (slow_cache, fast_cache):
        prefill(model, prompts([2, 5]), cache)
    for step in range(steps):
        ids = ids_of(step, 2)
        found = (fast if step % 3 else model)(ids, fast_cache)
        close(found, model(ids, slow_cache), TOLERANCE[dtype])


def read_codes(config, coding, kind, lengths, steps):
    model = transformer(config)
    fast = accelerated(model, kind)
    caches: Any = [
        new_cache(config, len(lengths), 64, device=DEVICE, kind=coding) for _ in range(2)
    ]
    for cache in caches:
        prefill(model, prompts(lengths), cache)
    for step in range(steps):
        ids = ids_of(step, len(lengths))
        found = fast.engine.forward(ids, caches[0])
        assert found is not None
        close(found, model(ids, caches[1]))
    for store, other in ((caches[0].keys, caches[1].keys), (caches[0].values, caches[1].values)):
        close(store.open, other.open)
        for x, y in zip(store.blocks, other.blocks, strict=True):
            assert float((x.float() - y.float()).abs().max()) <= 0.01 * float(y.float().abs().max())
