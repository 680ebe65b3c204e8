"""Sampling on the device: draws that no neighbour disturbs, penalties, broken logits."""

import math

import pytest
import torch

from minillm.generate import Request, decode, prefill
from minillm.sampling import SamplingParams
from tests.engines.cuda_loops import (
    CAPACITY,
    ENGINE,
    MODEL,
    loops,
    requests_of,
    same_run,
)
from tests.engines.cuda_models import DEVICE, prompts


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_broken_logits(value):
    cache = ENGINE.new_cache(2, CAPACITY)
    logits = prefill(MODEL, prompts([3, 6]), cache).clone()
    logits[1] = value
    requests = requests_of(prompts([3, 6]), [5, 5])
    steps = ENGINE.decode(cache, logits, requests)
    with pytest.raises(ValueError, match="no token can be chosen; the model or its input is brok"):
        list(steps)
    assert cache.lengths.tolist() == [3, 6]
    assert [len(r.token_ids) for r in requests] == [1, 0]


def test_forbidden_ids_are_never_picked():
    _, _, free = same_run(prompts([4, 2]), [8, 8])
    banned = sorted({*free[0].token_ids, *free[1].token_ids})
    found = []
    for requests, cache, steps in loops(prompts([4, 2]), [8, 8]):
        steps.close()
        cache.truncate([0, 0])
        requests[0].forbidden_ids = banned
        logits = prefill(MODEL, prompts([4, 2]), cache)
        run = ENGINE.decode(cache, logits, requests) or decode(MODEL, cache, logits, requests)
        list(run)
        assert not {*requests[0].token_ids} & {*banned}
        found.append([r.token_ids for r in requests])
    assert found[0] == found[1]
    assert found[0][1] == free[1].token_ids


def sampled(texts, seeds, most=10, **params):
    cache = ENGINE.new_cache(len(texts), CAPACITY)
    logits = prefill(MODEL, texts, cache)
    requests = requests_of(texts, [most] * len(texts), temperature=1.0, **params)
    for request, seed in zip(requests, seeds, strict=True):
        request.generator = torch.Generator(DEVICE).manual_seed(seed)
    list(ENGINE.decode(cache, logits, requests))
    return [request.token_ids for request in requests]


def test_neighbours_do_not_disturb_a_sampled_text():
    texts = prompts([3, 6, 4])
    together = sampled(texts, [1, 2, 3])
    assert together == sampled(texts, [1, 2, 3])
    assert [together[0]] == sampled(texts[:1], [1])
    assert together[::-1] == sampled(texts[::-1], [3, 2, 1])
    assert together != sampled(texts, [1, 2, 4])
    assert together[:2] == sampled(texts, [1, 2, 4])[:2]


def test_equal_prompts_with_other_seeds_differ():
    texts = prompts([3]) * 4
    assert len({tuple(ids) for ids in sampled(texts, range(4))}) == 4
    assert len({tuple(ids) for ids in sampled(texts, [7] * 4)}) == 1


def test_a_generator_that_goes_on_gives_another_text():
    texts, generator = prompts([3]), torch.Generator(DEVICE).manual_seed(5)
    found = []
    for _ in range(2):
        cache = ENGINE.new_cache(1, CAPACITY)
        logits = prefill(MODEL, texts, cache)
        [request] = requests_of(texts, [10], temperature=1.0)
        request.generator = generator
        list(ENGINE.decode(cache, logits, [request]))
        found.append(request.token_ids)
    assert found[0] != found[1]


def test_greedy_beside_sampled():
    texts = prompts([3, 6])
    _, _, free = same_run(texts, [9, 9])
    cache = ENGINE.new_cache(2, CAPACITY)
    logits = prefill(MODEL, texts, cache)
    requests = [
        Request(texts[0], SamplingParams(max_new_tokens=9)),
        Request(texts[1], SamplingParams(max_new_tokens=9, temperature=1.0, top_k=1)),
    ]
    list(ENGINE.decode(cache, logits, requests))
    assert [r.token_ids for r in requests] == [r.token_ids for r in free]


@pytest.mark.parametrize("penalties", [(1.0, 1.5), (4.0, 1.0), (0.5, 30.0)])
def test_repetition_penalties(penalties):
    """Of the prompt's tokens and the answer's, row by row; below 1 it invites them."""
    texts, found = prompts([3, 6, 4]), []
    for fast in (False, True):
        cache = ENGINE.new_cache(3, CAPACITY)
        params = [SamplingParams(max_new_tokens=12, repetition_penalty=p) for p in (*penalties, 2)]
        requests = [Request(text, p) for text, p in zip(texts, params, strict=True)]
        loop = ENGINE.decode if fast else lambda *a: decode(MODEL, *a)
        list(loop(cache, prefill(MODEL, texts, cache), requests))
        found.append([r.token_ids for r in requests])
    assert found[0] == found[1]
