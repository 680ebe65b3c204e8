"""Packed weights and their products, from Python. Every argument is checked before C++ sees it."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import NamedTuple, NoReturn, SupportsIndex

import torch
from torch import Tensor

from minillm.kernels.cpu import load_library
from minillm.kernels.cpu.checks import (
    BLOCK,
    FLOATS,
    check_activations,
    check_order,
    check_product,
    check_stack,
    describe,
)

# Kinds of ggml blocks: their number in products.h, and the bytes of a block.
BLOCK_KINDS = {"Q4_0": (0, 18), "Q4_1": (1, 20), "Q8_0": (2, 34)}


class Weight:
    """A matrix (N, C) as the kernels read it, made by one of the three functions below.

    handle: the address of products.h's Weight, for other C++ functions; valid while this lives.
    """

    def __init__(self, handle: int | None, N: int, C: int, keep: Sequence[Tensor] = ()) -> None:
        if not handle:
            raise MemoryError(f"no memory for a packed weight of {N} × {C}")
        self.handle, self.shape = handle, (N, C)
        self.coded = not keep
        self._keep = keep  # floating-point weights are read where they are
        self._free = load_library().mm_free

    @property
    def nbytes(self) -> int:
        """Bytes of the packed copy; of weights in floating point, only of the row pointers."""
        return int(load_library().mm_weight_bytes(self.handle))

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._free(handle)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a packed weight cannot be copied or pickled; pack its tensors again")

    def row(self, n: int) -> Tensor:
        """Row n, (C,), float32."""
        if not 0 <= n < self.shape[0]:
            raise ValueError(f"row {n} of a weight with {self.shape[0]} rows")
        out = torch.empty(self.shape[1])
        load_library().mm_dequantize_row(self.handle, n, out.data_ptr())
        return out


@contextmanager
def room(nbytes: int) -> Iterator[None]:
    """For weights that take so many bytes and are packed inside.

    The system provides the memory in a thread meanwhile: for 100 MB up to 0.3 s, which else are
    added to the packing. More weights, or fewer, are no mistake; what is left goes at the end.
    """
    library = load_library()
    library.mm_expect(nbytes)
    thread = Thread(target=library.mm_ready, daemon=True)
    thread.start()
    try:
        yield
    finally:
        library.mm_expect(0)
        thread.join()


def pack_blocks(kind: str, data: Sequence[Tensor], order: Tensor | None = None) -> Weight:
    """ggml blocks: (N, C/32 · bytes of a block), uint8, each; stacked by rows.

    order: (N,), int64: which row of the stack each row of the result is.
    """
    if kind not in BLOCK_KINDS:
        raise ValueError(f"blocks of kind {kind!r}; known are {', '.join(BLOCK_KINDS)}")
    number, size = BLOCK_KINDS[kind]
    width = check_stack("blocks", data, (torch.uint8,))
    if width % size:
        raise ValueError(f"rows of {width} bytes; blocks of kind {kind} have {size} bytes each")
    rows, C = [len(x) for x in data], width // size * BLOCK
    check_order(order, sum(rows))
    handle = load_library().mm_pack_blocks(
        number, len(data), _pointers(data), _numbers(rows), _pointer(order), C
    )
    return Weight(handle, sum(rows), C)


class Groups(NamedTuple):
    """Codes as `QuantizedLinear` has them: weight = (code - zero) · scale."""

    codes: Tensor
    """(N, C) of 8 bits, or (N, C/2) bytes of two 4-bit codes, the low half first."""
    scales: Tensor
    """(N, G), float16, bfloat16 or float32."""
    zeros: Tensor
    """(N, G), uint8."""


def pack_groups(bits: int, parts: Sequence[Groups], order: Tensor | None = None) -> Weight:
    """Codes of 4 or 8 bits in groups of a multiple of 32 columns, stacked by rows."""
    if bits not in (4, 8):
        raise ValueError(f"codes of {bits} bits; 4 or 8 are possible")
    codes, scales, zeros = ([part[i] for part in parts] for i in range(3))
    C = check_stack("codes", codes, (torch.uint8,)) * 8 // bits
    G = check_stack("scales", scales, tuple(FLOATS))
    if check_stack("zeros", zeros, (torch.uint8,)) != G:
        raise ValueError(f"{zeros[0].shape[1]} zeros a row, but {G} scales")
    if C % G or C // G % BLOCK:
        raise ValueError(f"{C} columns in {G} groups; a group must be a multiple of {BLOCK}")
    rows = [len(x) for x in codes]
    if rows != [len(x) for x in scales] or rows != [len(x) for x in zeros]:
        raise ValueError("codes, scales and zeros differ in their numbers of rows")
    check_order(order, sum(rows))
    pointers = (_pointers(codes), _pointers(scales), _pointers(zeros))
    handle = load_library().mm_pack_groups(
        bits, FLOATS[scales[0].dtype], len(rows), *pointers, _numbers(rows), _pointer(order), C,
        C // G,
    )  # fmt: skip
    return Weight(handle, sum(rows), C)


def point_to_floats(weights: Sequence[Tensor], order: Tensor | None = None) -> Weight:
    """Weights (N, C) in float32, bfloat16 or float16, stacked by rows without a copy."""
    C = check_stack("weights", weights, tuple(FLOATS))
    rows = [len(x) for x in weights]
    check_order(order, sum(rows))
    handle = load_library().mm_pack_floats(
        FLOATS[weights[0].dtype], len(rows), _pointers(weights), _numbers(rows), _pointer(order), C
    )
    return Weight(handle, sum(rows), C, weights)


class Rounded(NamedTuple):
    """Activations as whole numbers, and the sum of each block's."""

    codes: Tensor
    """(M, C), int8."""
    scales: Tensor
    """(M, C/32), float32."""
    sums: Tensor
    """(M, C/32), int32."""


def quantize_rows(x: Tensor) -> Rounded:
    """`reference.quantize_blocks` of x (M, C), float32."""
    M, C = check_activations(x)
    rounded = _room(M, C)
    load_library().mm_quantize(x.data_ptr(), *_addresses(rounded), 0, M * (C // BLOCK))
    return rounded


def product(
    weight: Weight, x: Tensor, bias: Tensor | None = None, rows: tuple[int, int] | None = None
) -> Tensor:
    """x · weightᵀ + bias for rows [first, last) of the weight, on one thread.

    x: (M, C), float32; coded weights round it. Returns (M, N), NaN outside of those rows.
    """
    M, C = check_activations(x)
    N = check_product(weight.shape, C, bias)
    first, last = rows or (0, N)
    if not 0 <= first <= last <= N:
        raise ValueError(f"rows {first} to {last} of a weight with {N} rows")
    rounded = quantize_rows(x) if weight.coded else _room(0, BLOCK)
    y = torch.full((M, N), float("nan"))
    load_library().mm_product(
        weight.handle, x.data_ptr(), *_addresses(rounded), M, first, last, y.data_ptr(), N,
        _pointer(bias),
    )  # fmt: skip
    return y


def linear(weight: Weight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias on all threads. x: (..., C), floating; returns (..., N) in its dtype."""
    if not x.is_floating_point() or x.device.type != "cpu" or not x.ndim:
        raise ValueError(f"activations are {describe(x)}; floating point (..., C) on a CPU fits")
    flat = x.reshape(-1, x.shape[-1]).float().contiguous()
    M, C = check_activations(flat, multiple=BLOCK if weight.coded else 1)
    N = check_product(weight.shape, C, bias)
    rounded, y = _room(M if weight.coded else 0, C), torch.empty(M, N)
    load_library().mm_linear(
        weight.handle, flat.data_ptr(), *_addresses(rounded), M, y.data_ptr(), _pointer(bias)
    )
    return y.view(*x.shape[:-1], N).to(x.dtype)


def dequantize_blocks(kind: str, row: Tensor) -> Tensor:
    """A row of ggml blocks, (C/32 · bytes of a block,), uint8, as float32: (C,)."""
    if kind not in BLOCK_KINDS:
        raise ValueError(f"blocks of kind {kind!r}; known are {', '.join(BLOCK_KINDS)}")
    number, size = BLOCK_KINDS[kind]
    if row.dtype != torch.uint8 or row.ndim != 1 or len(row) % size or row.device.type != "cpu":
        raise ValueError(f"a row of {kind} is {describe(row)}; uint8 (n · {size},) is needed")
    row = row.contiguous()
    out = torch.empty(len(row) // size * BLOCK)
    load_library().mm_dequantize_blocks(number, row.data_ptr(), len(out), out.data_ptr())
    return out


def _room(M: int, C: int) -> Rounded:
    blocks = (M, C // BLOCK)
    return Rounded(
        torch.empty(M, C, dtype=torch.int8),
        torch.empty(blocks),
        torch.empty(blocks, dtype=torch.int32),
    )


def _addresses(tensors: Sequence[Tensor]) -> list[int]:
    return [x.data_ptr() for x in tensors]


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))


def _numbers(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)
