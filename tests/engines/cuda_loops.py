"""What the tests of the device-side loop share: both loops on the same texts."""

import torch

from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.sampling import SamplingParams
from tests.engines.cuda_models import BASE, DEVICE, MODELS, transformer
from tests.engines.kernels import engine_of

CAPACITY = 40
MODEL = transformer(BASE)
WINDOWED = transformer(MODELS["windows and sinks"])
ENGINES = {id(model): engine_of(model) for model in (MODEL, WINDOWED)}
ENGINE = ENGINES[id(MODEL)]


def requests_of(texts, most, stops=(), **params):
    """One request per text; most: its max_new_tokens."""
    return [
        Request(text, SamplingParams(max_new_tokens=n, **params), stop_ids=stops)
        for text, n in zip(texts, most, strict=True)
    ]


def loops(texts, most, stops=(), model=MODEL):
    """Both loops, ready to go: for each its requests, its cache and its generator."""
    engine = ENGINES[id(model)]
    slow_cache = new_cache(model.config, len(texts), CAPACITY, device=DEVICE)
    fast_cache = engine.new_cache(len(texts), CAPACITY)
    slow, quick = (requests_of(texts, most, stops) for _ in range(2))
    logits = [prefill(model, texts, cache) for cache in (slow_cache, fast_cache)]
    steps = engine.decode(fast_cache, logits[1], quick)
    assert steps is not None
    return (
        (slow, slow_cache, decode(model, slow_cache, logits[0], slow)),
        (quick, fast_cache, steps),
    )


@torch.no_grad()
def same_caches(found, expected, model=MODEL):
    """As long, and with the same next step: that reads all that counts."""
    assert found.lengths.tolist() == expected.lengths.tolist()
    ids = torch.full((len(found.lengths), 1), 7, device=DEVICE)
    torch.testing.assert_close(model(ids, found), model(ids, expected), rtol=1e-4, atol=1e-4)


def same_run(texts, most, stops=(), model=MODEL):
    (slow, slow_cache, expected), (quick, fast_cache, found) = loops(texts, most, stops, model)
    order = [(place(slow, request), token) for request, token in expected]
    assert [(place(quick, request), token) for request, token in found] == order
    assert [r.token_ids for r in quick] == [r.token_ids for r in slow]
    assert [r.finish_reason for r in quick] == [r.finish_reason for r in slow]
    return fast_cache, slow_cache, slow


def place(requests, request):
    return next(i for i, other in enumerate(requests) if other is request)
