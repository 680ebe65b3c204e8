"""The ceilings: real numbers here, and sizes that fit the machine."""

import pytest
import torch

from minillm.bench.peaks import (
    LEAST_READ,
    MOST_READ,
    available_memory,
    best_seconds,
    ceilings,
    last_level_cache,
    read_size,
)

CPU = torch.device("cpu")


def test_this_machine_has_ceilings(record_property):
    found = ceilings(runs=2)
    assert 1e8 < found.bytes_per_s < 1e13
    assert 1e8 < found.flops_per_s < 1e15
    record_property(
        "figure",
        f"ceilings: {found.bytes_per_s / 1e9:.1f} GB/s, {found.flops_per_s / 1e9:.0f} GFLOP/s "
        f"(float32), ridge at {found.ridge:.1f} FLOP per byte",
    )


def test_what_is_read_fits_into_no_cache(monkeypatch):
    module = "minillm.bench.peaks"
    monkeypatch.setattr(f"{module}.available_memory", lambda: 2**36)
    for cache, size in ((0, LEAST_READ), (2**29, 2**30), (2**33, MOST_READ)):
        monkeypatch.setattr(f"{module}.last_level_cache", lambda cache=cache: cache)
        assert read_size(CPU) == size


def test_what_is_read_leaves_memory_to_others(monkeypatch):
    monkeypatch.setattr("minillm.bench.peaks.available_memory", lambda: 2**29)
    assert read_size(CPU) == 2**27
    monkeypatch.setattr("minillm.bench.peaks.available_memory", lambda: None)
    assert read_size(CPU) >= LEAST_READ


def test_what_the_system_tells():
    assert 0 <= last_level_cache() < 2**36
    free = available_memory()
    assert free is None or free > 0


def test_the_best_of_all_runs_but_the_first(monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 12.0, 20.0, 25.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    calls: list[int] = []
    assert best_seconds(lambda: calls.append(1), CPU, 3) == 2
    assert len(calls) == 4


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_gpu_is_waited_for_before_the_clock_is_read(monkeypatch, kind):
    done: list[str] = []
    monkeypatch.setattr(f"torch.{kind}.synchronize", lambda *_: done.append("waited"))

    def clock():
        done.append("clock")
        return 0.0

    monkeypatch.setattr("time.perf_counter", clock)
    best_seconds(lambda: done.append("work"), torch.device(kind), 1)
    assert done == ["work", "waited", "clock", "work", "waited", "clock"]


def test_reads_are_timed_more_often_than_products(monkeypatch):
    asked: list[int] = []

    def timed(*arguments):
        asked.append(arguments[-1])
        return 1.0

    monkeypatch.setattr("minillm.bench.peaks.best_seconds", timed)
    ceilings(runs=3)
    assert asked == [15, 3]  # the first product is long enough


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs is 0"):
        ceilings(runs=0)
