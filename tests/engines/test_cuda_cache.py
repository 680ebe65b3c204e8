"""Storage that outlives its caches."""

import gc
import weakref
from typing import Any

import pytest
import torch

from minillm.engines.cuda_cache import IDLE, Pool, bucket
from minillm.generate import Request, prefill
from minillm.sampling import SamplingParams
from tests.engines.cuda_models import BASE, DEVICE, MODELS, prompts, transformer
from tests.engines.kernels import engine_of

WINDOWED = MODELS["windows and sinks"]


def pool(config=BASE) -> Any:
    return Pool(config, torch.float32, DEVICE)


@pytest.mark.parametrize("config", [BASE, WINDOWED], ids=["dense", "sliding"])
def test_the_next_cache_gets_the_storage_of_one_that_is_gone(config):
    stock = pool(config)
    first = stock.new_cache(3, 20)
    first.keys[0].fill_(5), first.values[-1].fill_(5)
    storage, address = first.storage, first.keys[0].data_ptr()
    other = stock.new_cache(3, 20)
    assert other.storage is not storage  # the first one is still in use
    del first
    gc.collect()
    second = stock.new_cache(2, 30)
    assert second.storage is storage
    assert second.keys[0].data_ptr() == address
    assert not any(x.any() for x in [*second.keys, *second.values])
    assert second.lengths.tolist() == [0, 0]


def test_a_storage_is_a_power_of_two_wide_and_long():
    stock = pool()
    cache = stock.new_cache(5, 700)
    assert (cache.storage.rows, cache.storage.capacity) == (8, 1024)
    assert cache.keys.shape == (3, 5, 2, 700, 8)
    assert cache.capacity == 700
    assert [bucket(n) for n in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]


def test_the_smallest_that_fits_is_taken():
    stock = pool()
    sizes = [(4, 600), (1, 600), (1, 5000)]
    caches = [stock.new_cache(*size) for size in sizes]
    small = caches[1].storage
    del caches
    assert stock.new_cache(1, 800).storage is small
    assert stock.new_cache(2, 800).storage.rows == 4


def test_idle_storage_is_bounded():
    stock = pool()
    caches = [stock.new_cache(1, 20) for _ in range(IDLE + 2)]
    storages = [cache.storage for cache in caches]
    while caches:
        caches.pop(0)
    assert stock.idle == storages[2:]


def test_memory_is_free_as_soon_as_an_engine_is_gone(no_collector):
    """Not at the collector's next round, which knows nothing of a GPU's memory."""
    model = transformer(BASE)
    engine = engine_of(model)
    cache = engine.new_cache(2, 30)
    logits = prefill(model, prompts([3, 4]), cache)
    requests = [Request(text, SamplingParams(max_new_tokens=4)) for text in prompts([3, 4])]
    list(engine.decode(cache, logits, requests))
    engine.forward(torch.zeros(2, 1, dtype=torch.int64, device=DEVICE), cache)
    watched = [weakref.ref(x) for x in (engine, cache.storage, cache)]
    del engine, cache, logits
    assert [ref() is None for ref in watched] == [True] * 3


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("config", [BASE, WINDOWED], ids=["dense", "sliding"])
def test_rows_move_to_the_front_in_place(config):
    cache = pool(config).new_cache(5, 20)
    for tensors in (cache.keys, cache.values):
        for tensor in tensors:
            tensor.copy_(torch.arange(5.0).view(5, 1, 1, 1))
    cache.lengths = torch.arange(5)
    address, storage = cache.keys[0].data_ptr(), cache.storage
    cache.select([1, 2, 4])
    assert cache.keys[0].data_ptr() == address
    assert cache.storage is storage
    assert cache.lengths.tolist() == [1, 2, 4]
    for tensor in [*cache.keys, *cache.values]:
        assert tensor[:, 0, 0, 0].tolist() == [1, 2, 4]


@pytest.mark.parametrize("rows", [[1, 0], [2, 2], []])
def test_rows_in_another_order_leave_the_pool(rows):
    cache = pool().new_cache(3, 20)
    cache.keys.copy_(torch.arange(3.0).view(1, 3, 1, 1, 1))
    cache.select(rows)
    assert cache.storage is None
    assert cache.keys[0, :, 0, 0, 0].tolist() == rows


def test_no_room_for_a_wide_bucket(monkeypatch):
    """Where a power of two does not fit in memory, what was asked for may."""
    stock = pool()
    del_me = stock.new_cache(1, 20)
    del del_me
    new = stock._new

    def full(rows, capacity):
        if capacity > 3000:
            raise torch.OutOfMemoryError("full")
        return new(rows, capacity)

    monkeypatch.setattr(stock, "_new", full)
    cache = stock.new_cache(3, 2500)
    assert (cache.storage.rows, cache.storage.capacity) == (3, 2500)
    assert not stock.idle


def test_what_was_allocated_before_memory_ran_out_is_free_for_the_second_attempt(monkeypatch):
    stock = pool()
    watched: list[weakref.ref[torch.Tensor]] = []

    def new(rows, capacity):
        half = torch.zeros(1)
        if watched:
            assert watched[0]() is None
            monkeypatch.undo()
            return stock._new(rows, capacity)
        watched.append(weakref.ref(half))
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(stock, "_new", new)
    assert stock.new_cache(3, 600).storage.capacity == 600


def test_a_storage_that_another_thread_freed_is_not_taken():
    stock = pool()
    caches = [stock.new_cache(1, n) for n in (20, 5000)]
    storages = [cache.storage for cache in caches]
    caches.clear()

    class Raced(list[Any]):
        def remove(self, storage):
            if storage is storages[0]:
                raise ValueError("list.remove(x): x not in list")
            super().remove(storage)

    stock.idle = Raced(stock.idle)
    assert stock.new_cache(1, 20).storage is storages[1]


def test_a_storage_of_odd_size_serves_a_batch():
    model = transformer(BASE)
    engine = engine_of(model)
    cache = engine.pool.new_cache(3, 30)
    cache.storage.rows = 3  # as where memory is short; a bucket would have 4
    logits = prefill(model, prompts([3, 4, 5]), cache)
    requests = [Request(text, SamplingParams(max_new_tokens=4)) for text in prompts([3, 4, 5])]
    assert len(list(engine.decode(cache, logits, requests))) == 12
    assert set(cache.storage.graphs) == {("greedy", 3)}


def test_requests_share_graphs():
    model = transformer(BASE)
    engine = engine_of(model)
    kept = []
    for count in (1, 3, 1, 2, 1, 3, 4):
        texts = prompts(range(2, 2 + count))
        cache = engine.new_cache(count, 30)
        requests = [Request(text, SamplingParams(max_new_tokens=5)) for text in texts]
        list(engine.decode(cache, prefill(model, texts, cache), requests))
        kept.append(len(engine.pool.idle) + 1)
        del cache
    assert kept == [1, 2, 2, 2, 2, 2, 2]
    assert sorted(key for s in engine.pool.idle for key in s.graphs) == [
        ("greedy", 1),
        ("greedy", 2),
        ("greedy", 4),
    ]
