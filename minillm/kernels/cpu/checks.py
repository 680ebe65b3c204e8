"""What the C++ kernels rely on: shapes, dtypes, device, contiguity. ValueError for all else."""

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = 32
# Floating-point types, by their number in products.h.
FLOATS = {torch.float32: 2, torch.bfloat16: 3, torch.float16: 4}


def describe(x: Tensor) -> str:
    """As messages have it: "float32 (2, 64) on cpu"."""
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)} on {x.device.type}"


def check_stack(name: str, parts: Sequence[Tensor], dtypes: tuple[torch.dtype, ...]) -> int:
    """The width that all parts have in common, which are matrices of one dtype."""
    if not parts:
        raise ValueError(f"no {name}: at least one matrix is needed")
    for x in parts:
        if x.ndim != 2 or x.dtype not in dtypes or x.device.type != "cpu" or 0 in x.shape:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise ValueError(f"{name} are {describe(x)}; a matrix of {allowed} on cpu is needed")
        if not x.is_contiguous():
            raise ValueError(f"{name} {tuple(x.shape)} are not contiguous")
        if x.dtype != parts[0].dtype or x.shape[1] != parts[0].shape[1]:
            raise ValueError(f"{name} {describe(parts[0])} and {describe(x)} cannot be stacked")
    return int(parts[0].shape[1])


def check_order(order: Tensor | None, rows: int) -> None:
    """None, or numbers of rows below `rows`."""
    if order is None:
        return
    if order.dtype != torch.int64 or order.shape != (rows,) or order.device.type != "cpu":
        raise ValueError(f"the order is {describe(order)}; int64 ({rows},) on cpu is needed")
    if not order.is_contiguous() or int(order.min()) < 0 or int(order.max()) >= rows:
        raise ValueError(f"the order must be contiguous and hold rows from 0 to {rows - 1}")


def check_activations(x: Tensor, multiple: int = BLOCK) -> tuple[int, int]:
    """(M, C) of contiguous float32 with a multiple of so many columns."""
    if x.ndim != 2 or x.dtype != torch.float32 or x.device.type != "cpu" or not x.is_contiguous():
        raise ValueError(f"activations are {describe(x)}; contiguous float32 (M, C) is needed")
    if not x.shape[1] or x.shape[1] % multiple:
        raise ValueError(f"activations of {x.shape[1]} columns; a multiple of {multiple} is needed")
    return int(x.shape[0]), int(x.shape[1])


def check_product(shape: tuple[int, int], C: int, bias: Tensor | None) -> int:
    """N, for activations of C columns and a weight of this shape (N, C)."""
    N, width = shape
    if width != C:
        raise ValueError(f"activations of {C} columns for a weight of {width}")
    if bias is None:
        return N
    if bias.dtype != torch.float32 or bias.shape != (N,) or bias.device.type != "cpu":
        raise ValueError(f"the bias is {describe(bias)}; float32 ({N},) on cpu is needed")
    if not bias.is_contiguous():
        raise ValueError(f"the bias ({N},) is not contiguous")
    return N
