"""On a GPU: memory stays the same over requests, graphs are shared, and recording may fail."""

import gc

import pytest
import torch

from minillm.engines import graphs
from minillm.engines.graphs import GraphMemory, Recorded
from tests.engines.cuda_gpu import LONG, run
from tests.engines.cuda_models import DEVICE, prompts, transformer
from tests.engines.kernels import engine_of

pytestmark = pytest.mark.gpu


@pytest.mark.usefixtures("no_warnings")
def test_memory_does_not_grow_over_requests():
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    sizes = []
    for round_ in range(30):
        run(engine, model, prompts([3, 5, 4][: 1 + round_ % 3]), temperature=0.5)
        gc.collect()
        torch.cuda.synchronize()
        sizes.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert sizes[-1] == sizes[8]


@pytest.mark.usefixtures("no_warnings")
def test_requests_share_graphs():
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    run(engine, model, prompts([3]))
    [storage] = engine.pool.idle
    graph = storage.graphs["greedy", 1].graph
    for length in (5, 8, 2):
        run(engine, model, prompts([length]))
        assert engine.pool.idle == [storage]
        assert storage.graphs["greedy", 1].graph is graph is not None


def test_what_cannot_be_recorded_runs_kernel_by_kernel():
    graphs._warn_once.cache_clear()
    x = torch.zeros(4, device=DEVICE)
    here = torch.cuda.current_stream()

    def step():
        x.add_(1)
        float(x[0])  # waits for the GPU, which a recording forbids

    recorded = Recorded(step, GraphMemory())
    with pytest.warns(UserWarning, match="could not be recorded as a CUDA graph"):
        recorded()
    assert torch.cuda.current_stream() == here
    recorded()
    assert x.tolist() == [2.0] * 4
    assert recorded.graph is None


@pytest.mark.usefixtures("no_warnings")
def test_a_storage_that_was_freed_does_not_end_recording():
    """As where memory ran out: all graphs are gone, and the next is recorded on their memory."""
    model = transformer(LONG)
    engine = engine_of(model, "triton")
    first = run(engine, model, prompts([3]))
    engine.pool.idle.clear()
    gc.collect()
    assert run(engine, model, prompts([3])) == first
    [storage] = engine.pool.idle
    assert storage.graphs["greedy", 1].graph is not None
