"""The device-side loop against `decode`: tokens, order, reasons, and what the cache holds then.

The kernels here are those in plain PyTorch, on the GPU where there is one.
"""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.generate import prefill
from minillm.kv_cache import new_cache
from tests.engines.cuda_loops import (
    CAPACITY,
    ENGINE,
    MODEL,
    WINDOWED,
    loops,
    place,
    requests_of,
    same_caches,
    same_run,
)
from tests.engines.cuda_models import BASE, DEVICE, prompts


def test_rows_leave_at_their_length():
    found, expected, _ = same_run(prompts([3, 6, 2, 5, 4]), [9, 1, 4, 4, 7])
    same_caches(found, expected)


def test_a_stop_is_found_one_step_late():
    texts = prompts([3, 6, 2])
    _, _, free = same_run(texts, [12, 12, 12])
    for last in (0, 3, 10):
        found, expected, slow = same_run(texts, [12, 12, 12], stops={free[1].token_ids[last]})
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
            seen.append((place(requests, request), token))
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


def test_two_threads_launch_one_after_the_other(monkeypatch):
    """A recording must not meet another one, nor a kernel that is being tuned."""
    within, together = threading.Lock(), []

    def slow(*args):
        together.append(not within.acquire(blocking=False))
        time.sleep(0.002)
        step(*args)
        within.release()

    step = ENGINE.launch
    monkeypatch.setattr(ENGINE, "launch", slow)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda n: list(loops(prompts([n]), [12])[1][2]), (3, 6)))
    assert len(together) == 22
    assert not any(together)


def test_two_texts_at_once():
    """Two loops that take turns, as two streams of one model do."""
    alone = [same_run(prompts([n]), [9])[2][0].token_ids for n in (3, 6)]
    runs = [loops(prompts([n]), [9])[1] for n in (3, 6)]
    for _ in itertools.zip_longest(*(steps for _, _, steps in runs)):
        pass
    assert [requests[0].token_ids for requests, _, _ in runs] == alone
