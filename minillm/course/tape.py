"""A recording of PyTorch's operators, to be played again: what a CUDA graph is, on any device.

While a `Tape` records, everything runs as usual, and each operator is noted with the tensors it
reads and the tensor it writes. `replay()` runs the same operators on the same tensors: no Python
of the model's, no choices. What was a Python number while recording is that number for ever; what
is to change from replay to replay has to be written into a tensor that the recording reads.

A CUDA graph goes further: its replay is one call, where this one starts every operator anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Operator = Any  # a torch._ops.OpOverload


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records in a `with` block, under `torch.inference_mode`.

    calls: how many operators ran, by name. work: those that compute or copy, as (operator,
    arguments, keywords, result); the others only say anew where a tensor's numbers are (views).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, int] = {}
        self.work: list[tuple[Operator, tuple[Any, ...], dict[str, Any], Any]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To keep PyTorch's compiler out, PyTorch would import it: a second and 70 MB."""
        return False

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """PyTorch calls this in place of each operator."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = str(func).removeprefix("aten.").partition(".")[0]
        self.calls[name] = self.calls.get(name, 0) + 1
        new = [tensor for tensor in _tensors(result) if not _is_view(tensor, args)]
        if new or func._schema.is_mutable:
            self.work.append((func, args, kwargs, result))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        """Run the recorded operators again, each into the tensor that it wrote before."""
        for func, args, kwargs, result in self.work:
            again = func(*args, **kwargs)
            if isinstance(again, Tensor):  # nearly always, and time is what a replay is for
                if again is not result:
                    result.copy_(again)
            else:
                for old, new in zip(_tensors(result), _tensors(again), strict=True):
                    old.copy_(new)


def record(function: Callable[[], Any]) -> tuple[Any, Tape]:
    """Run a function once while a tape records; its result, and the tape.

    The result's tensors are what each replay writes anew.
    """
    tape = Tape()
    with torch.inference_mode(), tape:
        result = function()
    return result, tape


def _tensors(result: Any) -> list[Tensor]:
    """What an operator gives: a tensor, or several of them, such as values and their places.

    A list is left out: views (`split`), or as many numbers as the data decide (`nonzero`), which
    no recording can hold.
    """
    parts = result if isinstance(result, tuple) else [result]
    return [part for part in parts if isinstance(part, Tensor)]


def _is_view(result: Tensor, args: Any) -> bool:
    memory = result.untyped_storage().data_ptr()
    return any(isinstance(a, Tensor) and a.untyped_storage().data_ptr() == memory for a in args)
