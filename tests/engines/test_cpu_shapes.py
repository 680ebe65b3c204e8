"""The C++ engine against the modules: odd shapes drawn by chance, caches without room to spare.

A cache is as long as its longest row, so that a sanitizer sees what reads or writes past its end:
tests/kernels/test_cpu_sanitizers.py runs this file again.
"""

import random
from dataclasses import replace

import pytest
import torch

from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from tests.engines.cpu_models import TOLERANCE, alone, needs_library, rms, transformer
from tests.engines.cuda_models import BASE
from tests.engines.test_cpu_caches import CACHES, ids, run

pytestmark = [needs_library, pytest.mark.usefixtures("many_tokens")]

KINDS = [*CACHES, "sliding float32", "sliding float16", "sliding bfloat16"]
HEADS = [(1, 1), (2, 1), (5, 1), (4, 2), (9, 3), (14, 2), (3, 3)]


def draw_config(draw):
    """A model of two layers, with biases and a norm of heads or without."""
    H, K = draw.choice(HEADS)
    config = replace(
        BASE,
        hidden_size=draw.choice([20, 33, 48]),
        intermediate_size=draw.choice([31, 40, 65]),
        num_attention_heads=H,
        num_key_value_heads=K,
        head_dim=draw.choice([6, 8, 12, 64, 80]),
        attention_bias=draw.random() < 0.5,
        mlp_bias=draw.random() < 0.5,
        qk_norm=draw.choice(["none", "head", "whole"]),
        activation=draw.choice(["swiglu", "geglu"]),
        max_position_embeddings=1024,
        num_hidden_layers=2,
        layers=BASE.layers[:2],
    )
    window, every = draw.choice([None, 1, 2, 7, 33]), draw.choice([None, 2])
    if window:
        config = config.with_window(window, sinks=draw.choice([0, 1, 3]), global_every=every)
    return config


def draw_steps(draw, rows):
    """A prompt of each row, chunks and single tokens; some rows bring none."""
    steps = []
    for longest in (draw.choice([1, 30, 64, 65, 140]), 1, draw.choice([2, 33]), 1, 1):
        counts = [longest, *(draw.randint(0, longest) for _ in range(rows - 1))]
        draw.shuffle(counts)
        steps.append((ids(rows, longest, draw.randrange(1000)), counts))
    return steps


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_odd_shapes(kind, variant, threads):
    draw = random.Random(f"{kind} {variant}")
    for rows in (1, 2, 3):
        config, steps = draw_config(draw), draw_steps(draw, rows)
        room = max(map(sum, zip(*(counts for _, counts in steps), strict=True)))
        name = kind.removeprefix("sliding ")
        make = CACHES[kind] if kind == name else of_rings(getattr(torch, name))
        model = transformer(config)
        found = run(alone(model), make(config, rows, room), steps)
        expected = run(model, make(config, rows, room), steps)
        exact = run(model, DenseKVCache(config, rows, room), steps)
        rounding = rms(expected - exact)  # by the cache; between two codes it may go either way
        assert rms(found - expected) < 0.5 * rounding + TOLERANCE * rms(expected)


def of_rings(dtype):
    """A maker of the cache that keeps windows, where there are any."""
    return lambda config, rows, room: new_cache(config, rows, room, dtype=dtype)
