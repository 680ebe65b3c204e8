"""Functions that are recorded once, with a stand-in for CUDA's graphs."""

import contextlib
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch

from minillm.engines import graphs
from minillm.engines.graphs import GraphMemory, Recorded


class FakeGraph:
    """In place of a CUDA graph: counts its replays."""

    def __init__(self):
        self.replays = 0

    def replay(self):
        self.replays += 1


@pytest.fixture
def fake(monkeypatch):
    @contextlib.contextmanager
    def record(graph, pool, capture_error_mode):
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "here")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    graphs._warn_once.cache_clear()


def test_recorded_after_the_first_call(fake):
    calls = []
    step: Any = Recorded(lambda: calls.append(1), GraphMemory())
    for _ in range(4):
        step()
    assert len(calls) == 2  # one ordinary call, one for the recording
    assert step.graph.replays == 3


def test_the_memory_of_graphs_outlives_them(fake):
    """One of them is kept: torch refuses to record on memory whose graphs are all gone."""
    memory = GraphMemory()
    steps: Any = [Recorded(lambda: None, memory) for _ in range(3)]
    for step in steps:
        step()
    first, last = (weakref.ref(steps[i].graph) for i in (0, 2))
    del steps, step
    gc.collect()
    assert first() is not None
    assert last() is None


def test_without_cuda_every_call_is_ordinary():
    calls = []
    step = Recorded(lambda: calls.append(1), None)
    for _ in range(3):
        step()
    assert len(calls) == 3
    assert step.graph is None


def test_what_cannot_be_recorded_runs_all_the_same(fake):
    calls = []

    def run():
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    step = Recorded(run, GraphMemory())
    with pytest.warns(UserWarning, match="kernel by kernel: operation not permitted") as caught:
        step()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
        step()
    assert len(calls) == 4
    assert step.graph is None
