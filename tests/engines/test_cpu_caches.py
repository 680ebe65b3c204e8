"""The C++ engine on every kind of cache: what it computes, what it stores, and taking turns."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from minillm.kv_cache import new_cache
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.one_pass import OnePass
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.kv_cache.sliding import SlidingKVCache
from tests.engines.cpu_models import (
    TOLERANCE,
    alone,
    assert_rounded_alike,
    needs_library,
    off_by,
    rms,
    transformer,
)
from tests.engines.cuda_models import BASE

pytestmark = [needs_library, pytest.mark.usefixtures("many_tokens")]

CONFIG = replace(BASE, max_position_embeddings=256)
CACHES: dict[str, Callable[..., KVCache]] = {
    "float32": DenseKVCache,
    "float16": lambda config, B, S: DenseKVCache(config, B, S, dtype=torch.float16),
    "bfloat16": lambda config, B, S: DenseKVCache(config, B, S, dtype=torch.bfloat16),
    "int8": QuantizedKVCache,
    "int8 by token": lambda config, B, S: QuantizedKVCache(config, B, S, keys_per="token"),
    "int4": lambda config, B, S: QuantizedKVCache(config, B, S, bits=4),
}
# Half the distance of two values that a cache may hold, relative to the largest of them.
STEP = {"float32": 0, "float16": 2**-12, "bfloat16": 2**-9, "int4": 1 / 30}
HEADS = {  # heads, key heads, width of a head
    "groups of 2": (4, 2, 8),
    "one key head for 5": (5, 1, 32),
    "as many key heads": (3, 3, 16),
    "groups of 3": (9, 3, 64),
    "80 wide": (4, 2, 80),
    "odd pairs": (2, 1, 6),
}


def ids(rows, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, CONFIG.vocab_size, (rows, length), generator=generator)


def run(model, cache, steps):
    """Logits of several steps: each is ids (B, T), or those and how many of them are real."""
    found = []
    for step in steps:
        tokens, counts = step if isinstance(step, tuple) else (step, None)
        scores = model.logits(model(tokens, cache, counts))
        for row, count in enumerate(counts or [tokens.shape[1]] * len(tokens)):
            found.append(scores[row, :count])
    return torch.cat(found)


def stored(cache, layer):
    """What the cache holds in a layer, each row up to its length: keys and values, float32."""
    if isinstance(cache, QuantizedKVCache):
        cache.advance([0] * len(cache.lengths), 1)
        both = cache.keys.read(layer, cache._step), cache.values.read(layer, cache._step)
    else:
        both = cache.keys[layer], cache.values[layer]
    rows = [x[row, :, : int(n)].float() for x in both for row, n in enumerate(cache.lengths)]
    return torch.cat([x.flatten() for x in rows])


def assert_alike(name, found, expected, exact):
    if name == "float32":
        assert off_by(found, expected).max() < TOLERANCE
    else:
        assert_rounded_alike(found, expected, exact)


# Steps of three rows: prompts of different lengths over two full blocks, chunks, single tokens.
STEPS = [
    (ids(3, 70), [70, 31, 1]),
    (ids(3, 9, 1), [9, 0, 4]),
    *ids(3, 5, 2).split(1, dim=1),
    (ids(3, 40, 3), [40, 33, 2]),
    (ids(3, 1, 4), [1, 0, 1]),
    *ids(3, 3, 5).split(1, dim=1),
]


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", CACHES)
@torch.inference_mode()
def test_every_cache(name, heads, variant):
    H, K, D = HEADS[heads]
    config = replace(CONFIG, num_attention_heads=H, num_key_value_heads=K, head_dim=D)
    model, make = transformer(config), CACHES[name]
    ours, theirs = make(config, 3, 140), make(config, 3, 140)
    found, expected = run(alone(model), ours, STEPS), run(model, theirs, STEPS)
    assert torch.equal(ours.lengths, theirs.lengths)
    assert_alike(name, found, expected, run(model, DenseKVCache(config, 3, 140), STEPS))
    for layer in range(config.num_hidden_layers):
        a, b = stored(ours, layer), stored(theirs, layer)
        if layer == 0:  # further on, inputs differ by what the layers before have rounded
            assert ((a - b).abs() > TOLERANCE * b.abs().max()).float().mean() < 0.01
        most = 2 * STEP.get(name, 1 / 510) + TOLERANCE  # a flip is one step of its group's grid
        assert (a - b).abs().max() < 1.5 * most * b.abs().max()


@pytest.mark.parametrize("name", CACHES)
@torch.inference_mode()
def test_modules_and_engine_take_turns(name):
    """Each step by one or the other, on one cache, in both orders."""
    model, make = transformer(CONFIG), CACHES[name]
    expected = run(model, make(CONFIG, 3, 140), STEPS)
    exact = run(model, DenseKVCache(CONFIG, 3, 140), STEPS)
    for first in (0, 1):
        cache, both = make(CONFIG, 3, 140), (model, alone(model))
        found = [run(both[(i + first) % 2], cache, [step]) for i, step in enumerate(STEPS)]
        assert_alike(name, torch.cat(found), expected, exact)


@pytest.mark.parametrize("name", CACHES)
@torch.inference_mode()
def test_truncate_and_select(name):
    model, results = transformer(CONFIG), []
    for runner, kind in ((alone(model), name), (model, name), (model, "float32")):
        cache = CACHES[kind](CONFIG, 3, 140)
        parts = [run(runner, cache, STEPS[:4])]
        cache.truncate([66, 20, 3])
        parts.append(run(runner, cache, STEPS[4:7]))
        cache.select([2, 0])
        parts += [run(runner, cache, [ids(2, 1, 7), ids(2, 6, 8)])]
        cache.select([1, 1, 0, 1])
        parts += [run(runner, cache, [ids(4, 1, 9), ids(4, 1, 10)])]
        results.append(torch.cat(parts))
    assert_alike(name, *results)


@pytest.mark.parametrize("shape", [(9, 3, 64), (5, 1, 64), (7, 1, 128), (2, 2, 64)])
@pytest.mark.parametrize("bits", [4, 8])
@torch.inference_mode()
def test_products_in_whole_numbers(bits, shape, variant, record_property):
    """Decoding on the same codes as the modules do: no rounding of keys in between.

    With AVX-512 the products of codes are in whole numbers, and queries and weights are rounded to
    16 bits for that: by far less than keys and values are to 8.
    """
    H, K, D = shape
    config = replace(CONFIG, num_attention_heads=H, num_key_value_heads=K, head_dim=D)
    model = transformer(config)
    cache = QuantizedKVCache(config, 2, 420, bits=bits)
    model(ids(2, 400), cache, [400, 333])
    exact = DenseKVCache(config, 2, 420)
    model(ids(2, 400), exact, [400, 333])
    step = [ids(2, 1, 1)]
    found, expected = (run(runner, deepcopy(cache), step) for runner in (alone(model), model))
    error = rms(found - expected) / rms(expected - run(model, exact, step))
    record_property("figure", f"{bits} bits, {shape}, {variant}: {error:.1e} of the rounding")
    if variant == "avx512":
        assert error < 0.05
    else:
        assert off_by(found, expected).max() < TOLERANCE


@pytest.mark.parametrize("sinks", [0, 3])
@pytest.mark.parametrize("window", [2, 7, 32, 50])
@torch.inference_mode()
def test_rings(window, sinks, variant):
    """Rows at different places of their rings, and chunks longer than a window."""
    for every in (None, 2):
        config = CONFIG.with_window(window, sinks=sinks, global_every=every)
        model = transformer(config)
        expected = run(model, DenseKVCache(config, 3, 140), STEPS)
        for dtype in (torch.float32, torch.float16):
            caches = [SlidingKVCache(config, 3, 140, dtype=dtype) for _ in range(2)]
            found = run(alone(model), caches[0], STEPS)
            if dtype == torch.float32:
                assert off_by(found, expected).max() < TOLERANCE
                run(model, caches[1], STEPS)
                for layer in range(config.num_hidden_layers):
                    a, b = (cache.keys[layer] for cache in caches)
                    assert off_by(a, b).max() < TOLERANCE
            else:
                assert_rounded_alike(found, run(model, caches[1], STEPS), expected)


@torch.inference_mode()
def test_rings_after_a_truncation():
    config = CONFIG.with_window(7, sinks=2)
    model = transformer(config)
    results = []
    for runner in (model, alone(model)):
        cache = new_cache(config, 3, 140)
        parts = [run(runner, cache, [STEPS[0], *STEPS[2:5]])]
        cache.truncate([int(n) - 1 for n in cache.lengths])
        parts.append(run(runner, cache, [ids(3, 1, 5), ids(3, 4, 6), ids(3, 1, 7)]))
        results.append(torch.cat(parts))
    assert off_by(results[1], results[0]).max() < TOLERANCE


@torch.inference_mode()
def test_steps_that_are_left_to_the_modules():
    """Sinks past the trained length, caches of other kinds or models, no token at all."""
    config = replace(CONFIG.with_window(7, sinks=2), max_position_embeddings=20)
    engine = alone(transformer(config)).engine
    cache = new_cache(config, 1, 100)
    assert engine.forward(ids(1, 20), cache) is not None
    assert engine.forward(ids(1, 1), cache) is None
    assert cache.lengths.tolist() == [20]

    engine = alone(transformer(CONFIG)).engine
    others = [
        OnePass(torch.arange(5)[None]),
        DenseKVCache(replace(CONFIG, head_dim=4), 1, 9),
        DenseKVCache(replace(CONFIG, num_hidden_layers=2, layers=CONFIG.layers[:2]), 1, 9),
        DenseKVCache(CONFIG, 2, 9),
        DenseKVCache(CONFIG, 1, 9, dtype=torch.float64),
        SlidingKVCache(CONFIG.with_window(3), 1, 9),
    ]
    for other in others:
        assert engine.forward(ids(1, 5), other) is None
        assert engine.forward(ids(1, 1), other) is None
        assert other.lengths.tolist() == [0] * len(other.lengths)
    assert engine.forward(ids(1, 5)[:, :0], DenseKVCache(CONFIG, 1, 9)) is None
    hidden = engine.forward(ids(2, 3), DenseKVCache(CONFIG, 2, 9), [0, 0])
    assert hidden is not None
    assert not hidden.any()


@torch.inference_mode()
def test_what_is_no_number_shows():
    """In its row from its place on, and nowhere else."""
    for make in CACHES.values():
        model = transformer(CONFIG)
        model.embed_tokens.weight[5] = torch.nan
        runner, cache, tokens = alone(model), make(CONFIG, 2, 80), ids(2, 40)
        tokens[tokens == 5] = 6
        tokens[1, 35] = 5
        hidden = torch.cat([runner(tokens, cache), runner(tokens[:, :1], cache)], dim=1)
        assert hidden[0].isfinite().all()
        assert hidden[1, 35:].isnan().any(-1).all()


@pytest.mark.parametrize("name", CACHES)
@torch.inference_mode()
def test_a_long_cache_moves_to_large_pages_once_a_text(name, monkeypatch):
    """What it holds is the same there."""
    model = alone(transformer(CONFIG))
    engine, moved = model.engine, []
    steps = [ids(2, 40), *ids(2, 3, 1).split(1, dim=1)]
    expected = run(model, CACHES[name](CONFIG, 2, 64), steps)
    move = engine._use_large_pages

    def counted(view):
        moved.append(view)
        move(view)

    monkeypatch.setattr(engine, "_use_large_pages", counted)
    assert torch.equal(run(model, CACHES[name](CONFIG, 2, 64), steps), expected)
    assert moved == []
    monkeypatch.setattr("minillm.engines.cpu.LONG_CACHE", 42)
    for texts in (1, 2):
        assert torch.equal(run(model, CACHES[name](CONFIG, 2, 64), steps), expected)
        assert len(moved) == texts
