"""The kernels of notebook 08's exercises, each with the faults that its check knows.

FAULT says which one; 0 is the right kernel. Types are those of `triton.language`.
"""

from __future__ import annotations

from typing import Any

from minillm.course.triton_here import tl

Block = Any


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
    column = tl.arange(0, BLOCK)
    mask, place = column < C, tl.program_id(0) * C + column
    seen = mask
    if FAULT == 1:  # no mask
        seen = column < BLOCK
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
    out = wide * scale * weight
    if FAULT == 7:  # no weight
        out = wide * scale
    if FAULT == 8:  # the residual again
        out = out + residual
    tl.store(out_ptr + place, out, mask=mask)
    if FAULT != 9:  # the sum is not stored
        tl.store(sum_ptr + place, total, mask=mask)


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
    group = row * (C // GROUP) + 2 * pair // GROUP
    codes_row, scale_group = row, group
    if FAULT == 2:  # always the first row
        codes_row = row * 0
    if FAULT == 3:  # one scale for the row
        scale_group = row * (C // GROUP) + pair * 0
    byte = tl.load(codes_ptr + codes_row * (C // 2) + pair, mask=mask, other=0)
    scale = tl.load(scales_ptr + scale_group, mask=mask, other=0.0)
    zero = tl.load(zeros_ptr + group, mask=mask, other=0).to(tl.float32)
    low, high = (byte & 15).to(tl.float32), (byte >> 4).to(tl.float32)
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
    tl.store(y_ptr + row, tl.sum(parts, axis=0))
