"""The kernels of notebook 08's exercises, each with the faults that its check knows.

FAULT says which one; 0 is the right kernel. Types are those of `triton.language`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minillm.course.triton_here import DEVICE, tl, triton
from minillm.quantization.int4 import pack_nibbles

Block = Any
# Numbers on both sides of each tensor that belong to nobody. A kernel sees memory, not tensors: a
# store without a mask would otherwise end the process.
GUARD = 4096


def add_norm(
    x_ptr: Block,
    r_ptr: Block,
    w_ptr: Block,
    out_ptr: Block,
    sum_ptr: Block,
    C: int,
    eps: float,
    BLOCK: tl.constexpr,
    FAULT: tl.constexpr = 0,
) -> None:
    """x + residual, and its RMSNorm, one row per program."""
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    start = row * C
    if FAULT == 11:  # always the first row
        start = row * 0
    if FAULT == 12:  # rows as wide as the block
        start = row * BLOCK
    mask, place = column < C, start + column
    seen, kept = mask, mask
    if FAULT == 1:  # no mask where it loads
        seen = column < BLOCK
    if FAULT == 10:  # no mask where it stores
        kept = column < BLOCK
    residual = tl.load(r_ptr + place, mask=seen, other=0.0)
    x = tl.load(x_ptr + place, mask=seen, other=0.0)
    weight = tl.load(w_ptr + column, mask=mask, other=0.0)
    total = x + residual
    normed = total
    if FAULT == 2:  # the residual is forgotten
        normed = x
    wide = normed.to(tl.float32)
    squares = wide * wide
    if FAULT == 3:  # squared in float16
        squares = (normed * normed).to(tl.float32)
    mean = tl.sum(squares, axis=0) / C
    if FAULT == 4:  # mean before square
        mean = tl.sum(wide, axis=0) / C
        mean = mean * mean
    if FAULT == 5:  # divided by the block's width
        mean = tl.sum(squares, axis=0) / BLOCK
    scale = tl.rsqrt(mean + eps)
    if FAULT == 6:  # eps outside of the root
        scale = 1 / (tl.sqrt(mean) + eps)
    if FAULT == 13:  # no root
        scale = 1 / (mean + eps)
    out = wide * scale * weight
    if FAULT == 7:  # no weight
        out = wide * scale
    if FAULT == 8:  # the residual again
        out = out + residual
    tl.store(out_ptr + place, out, mask=kept)
    if FAULT != 9:  # the sum is not stored
        tl.store(sum_ptr + place, total, mask=kept)


def int4_dot(
    x_ptr: Block,
    codes_ptr: Block,
    scales_ptr: Block,
    zeros_ptr: Block,
    y_ptr: Block,
    C: int,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    FAULT: tl.constexpr = 0,
) -> None:
    """One row of 4-bit codes times x, one row per program."""
    row, pair = tl.program_id(0), tl.arange(0, BLOCK)
    mask = pair < C // 2
    if FAULT == 1:  # no mask
        mask = pair < BLOCK
    start, groups = row * (C // 2), row * (C // GROUP)
    if FAULT == 2:  # always the first row
        start = row * 0
    if FAULT == 10:  # as if a code were a byte
        start = row * C
    if FAULT == 8:  # the first row's scales and zero points
        groups = row * 0
    group = groups + 2 * pair // GROUP
    if FAULT == 9:  # counted in bytes
        group = groups + pair // GROUP
    scale_group = group
    if FAULT == 3:  # one scale for the row
        scale_group = groups + pair * 0
    byte = tl.load(codes_ptr + start + pair, mask=mask, other=0)
    scale = tl.load(scales_ptr + scale_group, mask=mask, other=0.0)
    zero = tl.load(zeros_ptr + group, mask=mask, other=0)
    low, high = byte & 15, byte >> 4
    if FAULT != 11:  # bytes minus bytes
        low, high, zero = low.to(tl.float32), high.to(tl.float32), zero.to(tl.float32)
    if FAULT == 4:  # the high nibble first
        low, high = high, low
    first_place, second_place = 2 * pair, 2 * pair + 1
    if FAULT == 5:  # the first half of the row, then the second
        first_place, second_place = pair, C // 2 + pair
    first = tl.load(x_ptr + first_place, mask=mask, other=0.0)
    second = tl.load(x_ptr + second_place, mask=mask, other=0.0)
    parts = (first * (low - zero) + second * (high - zero)) * scale
    if FAULT == 6:  # no zero point
        parts = (first * low + second * high) * scale
    if FAULT == 7:  # the zero point after the scale
        parts = first * (low * scale - zero) + second * (high * scale - zero)
    if FAULT == 12:  # the even columns alone
        parts = first * (low - zero) * scale
    to = y_ptr + row
    if FAULT == 13:  # all results in one place
        to = y_ptr + row * 0
    tl.store(to, tl.sum(parts, axis=0))


# --- Cases, and how an answer runs on one ---------------------------------------------------------


def rows(count: int, C: int, size: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, residual and weight for `add_norm`."""
    generator = torch.Generator().manual_seed(seed)
    x, residual = (size * torch.randn(2, count, C, generator=generator) + 0.1 * size).half()
    return x, residual, torch.rand(C, generator=generator).half() + 0.5


def weights(N: int, C: int, group: int, seed: int) -> tuple[Tensor, ...]:
    """x, codes, scales and zeros for `int4_dot`."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(16, (N, C), generator=generator, dtype=torch.uint8)
    scales = torch.rand(N, C // group, generator=generator) + 0.5
    zeros = torch.randint(16, (N, C // group), generator=generator, dtype=torch.uint8)
    return torch.randn(C, generator=generator), codes, scales, zeros


def run_add_norm(
    answer: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> dict[str, Any]:
    """What an answer to 08.add_norm writes, and how many numbers where nothing is to be written."""
    count, C = x.shape
    given = [_inside(_guarded(tensor, 3.0), tensor.shape) for tensor in (x, residual, weight)]
    written = [_guarded(torch.full_like(x, torch.nan), torch.nan) for _ in range(2)]
    out, total = (_inside(memory, x.shape) for memory in written)
    block = triton.next_power_of_2(C)
    _launch(answer, count, *given, out, total, C, eps, BLOCK=block)
    found = {"out": out.float().cpu(), "sum": total.float().cpu()}
    return found | {"written beyond a tensor": _strayed(written)}


def run_int4_dot(
    answer: Any, x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, group: int
) -> Tensor:
    """What an answer to 08.int4_dot writes."""
    N, C = codes.shape
    pairs = ((x, 9.0), (pack_nibbles(codes), 0xF7), (scales, 1.0), (zeros, 3))
    given = [_inside(_guarded(tensor, guard), tensor.shape) for tensor, guard in pairs]
    y = _inside(_guarded(torch.full((N,), torch.nan), torch.nan), (N,))
    block = triton.next_power_of_2(C // 2)
    _launch(answer, N, *given, y, C, GROUP=group, BLOCK=block)
    return y.cpu()


def _launch(answer: Any, count: int, *arguments: Any, **constants: Any) -> None:
    """Run a kernel, decorated or not, for each row; a fault of ours is a `partial` of it."""
    if isinstance(answer, partial):
        answer, constants = answer.func, constants | answer.keywords
    if getattr(getattr(answer, "__code__", None), "co_names", ()) == ("NotImplementedError",):
        raise NotImplementedError
    kernel = answer if hasattr(answer, "fn") else triton.jit(answer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an overflow is a fault to be named, not to be printed
            kernel[(count,)](*arguments, **constants)
    except Exception as error:  # Triton's interpreter wraps what a kernel raises
        raise error.__cause__ or error from None


def _guarded(x: Tensor, guard: float) -> Tensor:
    """Memory with the numbers of x in the middle, and `guard` on both sides."""
    whole = torch.full((x.numel() + 2 * GUARD,), guard, dtype=x.dtype, device=DEVICE)
    whole[GUARD:-GUARD] = x.flatten()
    return whole


def _inside(memory: Tensor, shape: Sequence[int]) -> Tensor:
    return memory[GUARD:-GUARD].view(tuple(shape))


def _strayed(memories: Sequence[Tensor]) -> int:
    """How many numbers were written into guards of NaN."""
    guards = [guard for memory in memories for guard in (memory[:GUARD], memory[-GUARD:])]
    return sum(int((~guard.isnan()).sum()) for guard in guards)
