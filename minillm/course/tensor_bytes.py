"""How much memory the tensors of a computation take, counted while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the result of every PyTorch operation, and when its storage is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage(), given)
        return out

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        # A view, or a result written in place, lives in memory that is counted already, or that
        # was there before the count began.
        if key in self.alive or key in given:
            return

        def freed(_: object) -> None:
            self.now -= size
            del self.alive[key]

        self.alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)


def peak_bytes(function: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """Calls the function; returns its result and the most bytes that its tensors took at once.

    Counted are the storages of all tensors that PyTorch operations return during the call, from
    the moment each exists to the moment it is freed; not the arguments, and not what a kernel
    borrows while it works. So the number depends on shapes and types alone, and is the same on
    every machine.
    """
    counter = _Counter()
    with torch.no_grad(), counter:
        result = function(*arguments)
    return result, counter.peak
