"""A stand-in for Triton where it is not installed: the few functions that the course's kernels use.

Triton exists for Linux and is large. What its interpreter does is simple, though: it runs a kernel
once for each program number, one after the other, on the CPU. Here the same in PyTorch. A pointer
is a tensor's memory with addresses into it, and a block of numbers is a tensor.

It checks nothing about types and shapes that Triton would refuse, and it is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

Value = Any  # a tensor, or a Python number


class Pointer:
    """A tensor's memory, and addresses in it, counted in numbers from its first."""

    def __init__(self, memory: Tensor, address: Value = 0) -> None:
        self.memory, self.address = memory, address

    @classmethod
    def to(cls, tensor: Tensor) -> Pointer:
        """To the first number of a tensor; its neighbours in memory can be reached, too."""
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        return cls(whole, tensor.storage_offset())

    def __add__(self, offset: Value) -> Pointer:
        return Pointer(self.memory, self.address + offset)

    __radd__ = __add__

    def places(self, mask: Value) -> tuple[Tensor, Tensor]:
        """Addresses and mask in one shape."""
        seen = torch.as_tensor(True if mask is None else mask)
        address = self.address + torch.zeros_like(seen, dtype=torch.int64)
        return address, seen.expand(address.shape)


class Kernel:
    """What `triton.jit` makes of a function: `kernel[grid](…)` runs it for each program number."""

    def __init__(self, function: Callable[..., Any], **settings: Any) -> None:
        self.fn, self.settings = function, settings
        self.__name__, self.__module__ = function.__name__, function.__module__

    def __call__(self, *arguments: Any) -> Any:
        """Called by another kernel."""
        return self.fn(*arguments)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            given = [Pointer.to(a) if isinstance(a, Tensor) else a for a in arguments]
            constants = self.settings | constants
            for setting in ("num_warps", "num_stages"):  # how a GPU is to run it
                constants.pop(setting, None)
            for numbers in product(*map(range, grid(constants) if callable(grid) else grid)):
                language.numbers = torch.tensor(numbers)
                self.fn(*given, **constants)

        return launch


def jit(function: Callable[..., Any]) -> Kernel:
    """A function as a kernel."""
    return Kernel(function)


class Config:
    """Constants of a kernel that an autotuner may choose."""

    def __init__(self, kwargs: dict[str, Any], **_: Any) -> None:
        self.kwargs = kwargs


def autotune(configs: Sequence[Config], key: Any, **_: Any) -> Callable[[Kernel], Kernel]:
    """The kernel with the constants of the first configuration: there is no GPU to time them."""
    return lambda kernel: Kernel(kernel.fn, **configs[0].kwargs)


def next_power_of_2(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


class _Language:
    """`triton.language`: what stands in kernels."""

    constexpr = object
    float16, bfloat16, float32 = torch.float16, torch.bfloat16, torch.float32
    uint8, int8, int32, int64 = torch.uint8, torch.int8, torch.int32, torch.int64
    static_range = range
    cdiv = staticmethod(cdiv)

    def __init__(self) -> None:
        self.numbers = torch.zeros(1, dtype=torch.int64)

    def program_id(self, axis: int) -> Tensor:
        """Which program this is."""
        return self.numbers[axis]

    @staticmethod
    def arange(start: int, end: int) -> Tensor:
        """start, start + 1, …, end - 1; Triton wants a power of two of them."""
        if (end - start) & (end - start - 1):
            raise ValueError(f"arange's range must be a power of 2, not {end - start}")
        return torch.arange(start, end)

    @staticmethod
    def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A block of zeros."""
        return torch.zeros(tuple(shape), dtype=dtype)

    @staticmethod
    def load(pointer: Pointer, mask: Value = None, other: Value = 0) -> Tensor:
        """Numbers from memory; `other` where the mask is False."""
        address, seen = pointer.places(mask)
        found = pointer.memory[torch.where(seen, address, 0)]
        return torch.where(seen, found, torch.as_tensor(other).to(found.dtype))

    @staticmethod
    def store(pointer: Pointer, value: Value, mask: Value = None) -> None:
        """Numbers to memory, in the memory's own type."""
        address, seen = pointer.places(mask)
        value = torch.as_tensor(value).to(pointer.memory.dtype).expand(address.shape)
        pointer.memory[address[seen]] = value[seen]

    @staticmethod
    def sum(x: Tensor, axis: int | None = None) -> Tensor:
        """Of a block, in the block's own type."""
        kind = x.dtype if x.is_floating_point() else torch.int32
        return x.sum(dtype=kind) if axis is None else x.sum(axis, dtype=kind)

    @staticmethod
    def max(x: Tensor, axis: int | None = None) -> Tensor:
        """Of a block."""
        return x.max() if axis is None else x.amax(axis)

    @staticmethod
    def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
        """The same numbers in another shape."""
        return x.reshape(tuple(shape))

    @staticmethod
    def split(x: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves along a last axis of two."""
        first, second = x.unbind(-1)
        return first, second

    where = staticmethod(torch.where)
    maximum, minimum = staticmethod(torch.maximum), staticmethod(torch.minimum)
    abs, exp, sqrt, rsqrt = map(staticmethod, (torch.abs, torch.exp, torch.sqrt, torch.rsqrt))
    sigmoid = staticmethod(torch.sigmoid)


language = _Language()
