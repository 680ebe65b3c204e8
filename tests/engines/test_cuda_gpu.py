"""What only a GPU shows: recording, replay, and streaming without waiting."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from minillm.engines.base import Accelerated
from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.sampling import SamplingParams
from tests.engines.cuda_gpu import CAPACITY, LONG, run
from tests.engines.cuda_models import DEVICE, MODELS, coded, prompts, transformer
from tests.engines.kernels import engine_of

pytestmark = pytest.mark.gpu

KINDS = {
    "llama": lambda: transformer(LONG),
    "gemma": lambda: transformer(replace(MODELS["gemma"], max_position_embeddings=256)),
    "windows and sinks": lambda: transformer(LONG.with_window(24, sinks=2, global_every=2)),
    "bfloat16": lambda: transformer(LONG, torch.bfloat16),
    "float16": lambda: transformer(LONG, torch.float16),
    "4 bits": lambda: coded(LONG, "4 bits"),
    "8 bits": lambda: coded(LONG, "8 bits"),
}
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.06, torch.float16: 0.01}


def close(found, expected, tolerance):
    error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert float(error) < tolerance, float(error)


def caches(model, engine, rows):
    dtype = model.embed_tokens.weight.dtype
    plain = new_cache(model.config, rows, CAPACITY, dtype=dtype, device=DEVICE)
    return plain, engine.new_cache(rows, CAPACITY)


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_a_hundred_replays_equal_the_modules(name, rows):
    """Other ids at every step. A recorded position would show at once, and does in the keys."""
    model = KINDS[name]()
    engine = engine_of(model, "triton")
    slow_cache, fast_cache = caches(model, engine, rows)
    for cache in (slow_cache, fast_cache):
        prefill(model, prompts([3, 9, 5][:rows]), cache)
    tolerance = TOLERANCE[model.embed_tokens.weight.dtype]
    for step in range(100):
        ids = torch.tensor([[(7 * step + 13 * row) % 61] for row in range(rows)], device=DEVICE)
        close(engine.forward(ids, fast_cache), model(ids, slow_cache), tolerance)
        state = fast_cache.storage.state.positions
        assert state[:rows].tolist() == [int(n) - 1 for n in fast_cache.lengths]
        assert (state[rows:] == -1).all()
    for found, expected in zip(fast_cache.keys, slow_cache.keys, strict=True):
        close(found, expected, tolerance)
    [recorded] = fast_cache.storage.graphs.values()
    assert recorded.graph is not None


@pytest.mark.usefixtures("no_warnings")
@torch.no_grad()
def test_one_id_over_and_over_gives_other_states():
    """The classic fault: a graph that was recorded with a constant position repeats itself."""
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    cache = engine.new_cache(1, CAPACITY)
    prefill(model, prompts([4]), cache)
    ids = torch.tensor([[5]], device=DEVICE)
    states = [engine.forward(ids, cache)[0, 0] for _ in range(12)]
    for a, b in itertools.combinations(states, 2):
        assert not torch.equal(a, b)
    written = cache.keys[0, 0].abs().sum(dim=(0, 2)) > 0  # by place
    assert written.tolist() == [True] * 16 + [False] * (CAPACITY - 16)


@pytest.mark.usefixtures("no_warnings")
@torch.no_grad()
def test_padding_rows_write_nothing():
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    cache = engine.new_cache(3, CAPACITY)  # the graph has four rows
    prefill(model, prompts([4, 2, 3]), cache)
    before = cache.storage.keys[0][:, 3].clone()
    for step in range(4):
        engine.forward(torch.full((3, 1), step, device=DEVICE), cache)
    assert torch.equal(cache.storage.keys[0][:, 3], before)


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize("name", ["llama", "windows and sinks", "4 bits"])
def test_the_loop_equals_decode(name):
    model = KINDS[name]()
    engine = engine_of(model, "triton")
    texts, most = prompts([3, 9, 5, 2, 6]), [100, 30, 1, 64, 99]
    found = []
    for fast in (False, True, True):
        cache = caches(model, engine, 5)[fast]
        logits = prefill(model, texts, cache)
        requests = [
            Request(text, SamplingParams(max_new_tokens=n))
            for text, n in zip(texts, most, strict=True)
        ]
        steps: Any = engine.decode(cache, logits, requests) if fast else None
        order = [
            (next(i for i, r in enumerate(requests) if r is request), token)
            for request, token in steps or decode(model, cache, logits, requests)
        ]
        found.append((order, [r.finish_reason for r in requests], cache.lengths.tolist()))
    assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("no_warnings")
def test_nothing_but_the_events_of_tokens_waits_for_the_gpu():
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    texts = prompts([3, 9, 5])

    def loop(mode):
        cache = engine.new_cache(3, CAPACITY)
        requests = [
            Request(text, SamplingParams(max_new_tokens=n, temperature=t), forbidden_ids=[3, 4])
            for text, n, t in zip(texts, (40, 12, 25), (0.0, 1.0, 0.7), strict=True)
        ]
        for request in requests:
            request.generator = torch.Generator(DEVICE).manual_seed(1)
        logits = prefill(model, texts, cache)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            steps = engine.decode(cache, logits, requests)
            return [token for _, token in steps]
        finally:
            torch.cuda.set_sync_debug_mode("default")

    first = loop("default")  # compiles and records
    assert loop("error") == first


@pytest.mark.usefixtures("no_warnings")
def test_the_next_step_is_under_way_when_a_token_is_handed_out():
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    run(engine, model, prompts([4]))
    cache = engine.new_cache(1, CAPACITY)
    [request] = [Request(prompts([4])[0], SamplingParams(max_new_tokens=30))]
    steps = engine.decode(cache, prefill(model, [request.prompt_ids], cache), [request])
    for count, _ in enumerate(steps, start=1):
        launched = int(cache.lengths[0]) - 4
        assert launched == min(count, 29)


@pytest.mark.usefixtures("no_warnings")
def test_sampled_text_does_not_depend_on_neighbours():
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    texts = prompts([3, 9, 5])
    together = run(engine, model, texts, temperature=0.9, top_p=0.95)
    assert [
        run(engine, model, [text], temperature=0.9, top_p=0.95)[0] for text in texts
    ] == together
    assert run(engine, model, texts[::-1], temperature=0.9, top_p=0.95)[::-1] == together


def test_smollm2_writes_the_same_text(smollm2):
    """Greedy, in float32, by the engine and by the modules."""
    from minillm import LLM

    params = SamplingParams(max_new_tokens=60)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    texts = []
    for backend in ("torch", "cuda"):
        llm = LLM.from_pretrained(smollm2, device="cuda", dtype="float32", backend=backend)
        assert isinstance(llm.model, Accelerated) == (backend == "cuda")
        texts.append(["".join(llm.stream_chat(messages, params)) for _ in range(3)])
    assert texts[0] == texts[1]
