"""CUDA graphs: what a function launches, recorded once and sent to the GPU as a whole.

A decode step of L layers is some ten kernels per layer. Each launch costs the CPU about as long as
a small model's kernel takes on the GPU, which then waits; a replayed graph costs one launch.
"""

import warnings
from collections.abc import Callable
from functools import cache

import torch


class Recorded:
    """A function of no arguments and no result: the first call runs it, later ones replay it.

    What it launches may depend on nothing but the addresses that its tensors have at the first
    call: whoever owns it keeps these tensors in place. The first call is an ordinary one: it
    compiles and tunes kernels, which a recording must not do. Then the function runs once more for
    the recording, in which nothing is computed.
    Where recording fails every call is an ordinary one; a warning says so once.

    pool: memory that graphs share for what they compute on the way, from
    `torch.cuda.graph_pool_handle`; None: there is no CUDA, and nothing is recorded.
    """

    def __init__(self, run: Callable[[], None], pool: object | None) -> None:
        self._run, self._pool = run, pool
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run, or replay, on the current stream."""
        if self.graph is not None:
            self.graph.replay()
            return
        self._run()
        if self._pool is not None:
            self._record()

    def _record(self) -> None:
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Other threads may go on allocating meanwhile: only this one's launches are recorded.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # type: ignore[arg-type]
                self._run()
        except RuntimeError as error:
            self._pool = None
            torch.cuda.set_stream(here)  # a recording that fails may leave its own stream current
            _warn_once(str(error).splitlines()[0])
            return
        self.graph = graph


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"the decode step could not be recorded as a CUDA graph, so it runs slower, kernel by "
        f"kernel: {reason}",
        stacklevel=5,
    )
