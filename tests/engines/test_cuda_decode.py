"""The device-side loop against `decode`: tokens, order, reasons, and what the cache holds then.

The kernels here are those in plain PyTorch, on the GPU where there is one.
"""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.sampling import SamplingParams
from tests.engines.cuda_models import BASE, COMPOSED, DEVICE, MODELS, prompts, transformer
from tests.engines.kernels import engine_of, has_triton

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
    order = [(_place(slow, request), token) for request, token in expected]
    assert [(_place(quick, request), token) for request, token in found] == order
    assert [r.token_ids for r in quick] == [r.token_ids for r in slow]
    assert [r.finish_reason for r in quick] == [r.finish_reason for r in slow]
    return fast_cache, slow_cache, slow


def _place(requests, request):
    return next(i for i, other in enumerate(requests) if other is request)


def test_rows_leave_at_their_length():
    found, expected, _ = same_run(prompts([3, 6, 2, 5, 4]), [9, 1, 4, 4, 7])
    same_caches(found, expected)


def test_a_stop_is_found_one_step_late():
    texts = prompts([3, 6, 2])
    _, _, free = same_run(texts, [12, 12, 12])
    for place in (0, 3, 10):
        found, expected, slow = same_run(texts, [12, 12, 12], stops={free[1].token_ids[place]})
        assert "stop" in [r.finish_reason for r in slow]
        same_caches(found, expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_all_stop_at_once(rows):
    texts = prompts([5]) * rows
    _, _, free = same_run(texts, [10] * rows)
    found, expected, slow = same_run(texts, [10] * rows, stops={free[0].token_ids[4]})
    assert {r.finish_reason for r in slow} == {"stop"}
    same_caches(found, expected)


def test_the_first_token_is_the_last():
    for most, stops in ((1, ()), (5, range(61))):
        found, expected, _ = same_run(prompts([3, 6]), [most] * 2, stops)
        same_caches(found, expected)


def test_windows_and_sinks():
    found, expected, _ = same_run(prompts([3, 9, 2]), [20, 11, 20], model=WINDOWED)
    same_caches(found, expected, WINDOWED)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=5),
    st.sets(st.integers(0, 60), max_size=8),
    st.booleans(),
)
def test_any_batch(rows, stops, windowed):
    texts = prompts([length for length, _ in rows])
    most = [count for _, count in rows]
    model = WINDOWED if windowed else MODEL
    found, expected, _ = same_run(texts, most, stops, model)
    same_caches(found, expected, model)


@pytest.mark.parametrize("taken", range(8))
def test_closing_early(taken):
    """The step that was ahead is taken back."""
    (_, slow_cache, expected), (_, fast_cache, found) = loops(prompts([3, 6]), [9, 9])
    for steps in (expected, found):
        list(itertools.islice(steps, taken))
        steps.close()
    if taken:
        same_caches(fast_cache, slow_cache)
    assert fast_cache.lengths.tolist() == slow_cache.lengths.tolist()


def test_the_caller_ends_a_request():
    """As a stop string does, between two tokens."""
    runs = []
    for requests, cache, steps in loops(prompts([3, 6, 4]), [9, 9, 9]):
        seen = []
        for request, token in steps:
            seen.append((_place(requests, request), token))
            if len(seen) in (5, 9):
                request.finish_reason = "stop"
        runs.append((seen, cache))
    assert runs[0][0] == runs[1][0]
    same_caches(runs[1][1], runs[0][1])


def test_an_exception_of_the_caller_takes_the_step_back():
    (_, slow_cache, expected), (_, fast_cache, found) = loops(prompts([3, 6]), [9, 9])
    for steps in (expected, found):
        for count, _ in enumerate(steps):
            if count == 4:
                with pytest.raises(KeyboardInterrupt):
                    steps.throw(KeyboardInterrupt())
                break
    same_caches(fast_cache, slow_cache)


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


def test_the_next_step_runs_before_a_token_is_read(monkeypatch):
    events = []
    launch = ENGINE.launch

    def noted(*args):
        events.append("launch")
        launch(*args)

    monkeypatch.setattr(ENGINE, "launch", noted)
    _, (_, _, steps) = loops(prompts([4]), [5])
    for _, token in steps:
        events.append(token)
    assert [event == "launch" for event in events] == [True, False] * 4 + [False]


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


def test_what_is_left_to_the_host():
    texts = prompts([3, 6])

    def run(cache):
        logits = prefill(MODEL, texts, cache)
        return ENGINE.decode(cache, logits, requests_of(texts, [5, 5]))

    assert run(new_cache(BASE, 2, CAPACITY, device=DEVICE)) is None
    assert run(new_cache(BASE, 2, CAPACITY, device=DEVICE, kind="int8")) is None
    assert run(ENGINE.new_cache(2, 9)) is None  # it would raise at the tenth token
    assert run(ENGINE.new_cache(2, 10)) is not None


def test_room_is_counted_row_by_row():
    """The longest prompt need not have the longest answer."""
    texts = prompts([3, 6])
    cache = ENGINE.new_cache(2, 11)
    logits = prefill(MODEL, texts, cache)
    steps = ENGINE.decode(cache, logits, requests_of(texts, [9, 3]))
    assert steps is not None
    assert len(list(steps)) == 12


def test_two_texts_at_once():
    """Two loops that take turns, as two streams of one model do."""
    alone = [same_run(prompts([n]), [9])[2][0].token_ids for n in (3, 6)]
    runs = [loops(prompts([n]), [9])[1] for n in (3, 6)]
    for _ in itertools.zip_longest(*(steps for _, _, steps in runs)):
        pass
    assert [requests[0].token_ids for requests, _, _ in runs] == alone


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
