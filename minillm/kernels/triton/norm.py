"""RMSNorm in one pass over memory: alone, and together with the addition that comes before it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["rms_norm", "rms_norm_kernel"]


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, C, eps, BLOCK: tl.constexpr):
    """Program number `row` normalises one row: it is read once and written once.

    A program works on blocks of numbers. BLOCK, a power of two of at least C, is the width of this
    one; the mask keeps what lies beyond column C from being read and written. Such places hold 0,
    which adds nothing to the sum of squares.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < C
    x = tl.load(x_ptr + row * C + column, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / C + eps)
    normed = (wide * scale).to(x.dtype).to(tl.float32)  # rounded as the reference does
    tl.store(out_ptr + row * C + column, normed * weight, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector by the inverse of its root mean square, in one kernel.

    y = x / sqrt(mean(x²) + eps) · weight, over the last dimension, as `minillm.layers.norm` has
    it: float32 inside, and x / rms rounded to x's dtype before the weight.

    x: (..., C), C up to 16,384. weight: (C,), any floating dtype, the offset that some models
    have added already. Returns (..., C) in x's dtype. Bytes: x and the result, once each, where
    PyTorch's separate operations move several copies of x in float32.
    Raises ValueError for a weight that does not fit x.
    """
    C = x.shape[-1]
    if weight.shape != (C,) or not 0 < C <= 16_384:
        raise ValueError(
            f"x has {C} columns and the weight shape {tuple(weight.shape)}; the weight needs "
            "(C,), with C from 1 to 16384"
        )
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    if rows := x.numel() // C:
        block = triton.next_power_of_2(C)
        warps = min(max(block // 512, 1), 16)  # of 32 threads each
        rms_norm_kernel[(rows,)](x, weight, out, C, eps, BLOCK=block, num_warps=warps)
    return out


@triton.jit
def add_rms_norm_kernel(x_ptr, r_ptr, weight_ptr, out_ptr, sum_ptr, C, eps, BLOCK: tl.constexpr):
    """As `rms_norm_kernel`, but the row is x + residual, which is written as well."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask, place = column < C, row * C + column
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    residual = tl.load(r_ptr + place, mask=mask, other=0.0)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0).to(tl.float32)
    total = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / C + eps)
    normed = (wide * scale).to(x.dtype).to(tl.float32)
    tl.store(out_ptr + place, normed * weight, mask=mask)
    tl.store(sum_ptr + place, total, mask=mask)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The end of one sublayer and the beginning of the next: rms_norm(x + residual), and the sum.

    x, residual: (..., C), of the same dtype, in which the sum is rounded before it is normalised.
    weight, eps: as of `rms_norm`. Returns normed and sum, (..., C) each, in x's dtype.
    Raises ValueError for a weight or a residual that does not fit x.
    """
    C = x.shape[-1]
    if weight.shape != (C,) or not 0 < C <= 16_384:
        raise ValueError(
            f"x has {C} columns and the weight shape {tuple(weight.shape)}; the weight needs "
            "(C,), with C from 1 to 16384"
        )
    if residual.shape != x.shape or residual.dtype != x.dtype:
        raise ValueError(
            f"the residual is {residual.dtype} {tuple(residual.shape)}, x {x.dtype} "
            f"{tuple(x.shape)}; they have to be alike"
        )
    x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
    out, total = torch.empty_like(x), torch.empty_like(x)
    if rows := x.numel() // C:
        block = triton.next_power_of_2(C)
        warps = min(max(block // 512, 1), 16)
        add_rms_norm_kernel[(rows,)](
            x, residual, weight, out, total, C, eps, BLOCK=block, num_warps=warps
        )
    return out, total
