"""CUDA graphs: what a function launches, recorded once and sent to the GPU as a whole.

A decode step of L layers is some ten kernels per layer, and each launch costs the CPU time. Where
the GPU is done with a kernel before the next one is launched, it waits; a replayed graph costs one
launch.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch


class GraphMemory:
    """Memory that graphs share for what they compute on the way. No two of them run at once.

    torch refuses to record on memory whose graphs are all gone, as they are after their storage was
    freed to make room for a larger one. So the first graph is kept, though nobody replays it then.
    """

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self._kept: torch.cuda.CUDAGraph | None = None

    def keep(self, graph: torch.cuda.CUDAGraph) -> None:
        """Take note of a graph that was recorded here."""
        self._kept = self._kept or graph


class Recorded:
    """A function of no arguments and no result: the first call runs it, later ones replay it.

    What it launches may depend on nothing but the addresses that its tensors have at the first
    call: whoever owns it keeps these tensors in place. The first call is an ordinary one: it
    compiles and tunes kernels, which a recording must not do. Then the function runs once more for
    the recording, in which nothing is computed.
    Where recording fails every call is an ordinary one; a warning says so once.

    memory: None where there is no CUDA, and nothing is recorded.
    """

    def __init__(self, run: Callable[[], None], memory: GraphMemory | None) -> None:
        self._run, self._memory = run, memory
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run, or replay, on the current stream."""
        if self.graph is not None:
            self.graph.replay()
            return
        self._run()
        if self._memory is not None:
            self._record(self._memory)

    def _record(self, memory: GraphMemory) -> None:
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads may go on allocating meanwhile: only this one's launches are recorded.
            with torch.cuda.graph(graph, pool=memory.handle, capture_error_mode="thread_local"):
                self._run()
        except RuntimeError as error:
            self._memory = None
            torch.cuda.set_stream(here)  # a recording that fails may leave its own stream current
            _warn_once(str(error).splitlines()[0])
            return
        self.graph = graph
        memory.keep(graph)


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"the decode step could not be recorded as a CUDA graph, so it runs slower, kernel by "
        f"kernel: {reason}",
        stacklevel=5,
    )
