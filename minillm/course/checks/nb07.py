"""Exercises of notebook 07: scales, packing, zero points, and one column of GPTQ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks.kit import Exercise, Value
from minillm.quantization.int4 import pack_nibbles
from minillm.quantization.int8 import quantize_absmax

# --- 07.absmax and 07.outlier. The largest of the eight is 3.81, so that the scale is 0.03.

EIGHT = (0.4, -1.2, 0.05, 2.3, -3.81, 0.8, -0.5, 1.3)
SPIKED = (0.4, -1.2, 0.05, 38.1, -3.81, 0.8, -0.5, 1.3)


# --- 07.int8

Int8 = tuple[Tensor, Tensor]


def int8_rows(weight: Tensor) -> Int8:
    """Codes from -127 to 127, and a scale for each row."""
    return quantize_absmax(weight, dim=-1)


def _int8(weight: Tensor, largest: Tensor, levels: int = 127) -> Int8:
    scales = torch.where(largest == 0, 1.0, largest / levels)
    return (weight / scales).round().clamp(-128, 127).to(torch.int8), scales


def _by_column(weight: Tensor) -> Int8:
    return _int8(weight, weight.abs().amax(dim=0, keepdim=True))


def _by_column_flat(weight: Tensor) -> Int8:
    codes, scales = _by_column(weight)
    return codes, scales.flatten()


def _one_scale(weight: Tensor) -> Int8:
    return _int8(weight, weight.abs().amax())


def _one_scale_for_each_row(weight: Tensor) -> Int8:
    codes, scale = _one_scale(weight)
    return codes, scale.expand(len(weight), 1)


def _divides_by_128(weight: Tensor) -> Int8:
    return _int8(weight, weight.abs().amax(dim=1, keepdim=True), 128)


def _wraps_at_128(weight: Tensor) -> Int8:
    _, scales = _divides_by_128(weight)
    return (weight / scales).round().to(torch.int16).to(torch.int8), scales


def _no_guard(weight: Tensor) -> Int8:
    codes, scales = int8_rows(weight)
    return codes, torch.where(weight.any(dim=1, keepdim=True), scales, 0.0)


def _toward_zero(weight: Tensor) -> Int8:
    _, scales = int8_rows(weight)
    return (weight / scales).to(torch.int8), scales


def _flat_scales(weight: Tensor) -> Int8:
    codes, scales = int8_rows(weight)
    return codes, scales.flatten()


def _signed_only(weight: Tensor) -> Int8:
    """The largest weight in place of the largest magnitude."""
    return _int8(weight, weight.amax(dim=1, keepdim=True).clamp(min=0))


def run_int8(answer: Callable[..., Any], weight: Tensor) -> dict[str, Any]:
    """Codes, their type, and the scales; a row of zeros may have any positive scale."""
    codes, scales = answer(weight)
    if isinstance(scales, Tensor) and tuple(scales.shape) == (len(weight), 1):
        zero_row = ~weight.any(dim=1, keepdim=True)
        scales = torch.where(zero_row & (scales > 0) & scales.isfinite(), 1.0, scales)
        if isinstance(codes, Tensor) and codes.shape == weight.shape:
            # NaN as a whole number is another one on each machine; the scale of 0 is the fault.
            codes = torch.where(zero_row & (scales == 0), torch.zeros_like(codes), codes)
    return {"codes": codes, "codes.dtype": str(getattr(codes, "dtype", "")), "scales": scales}


# --- 07.pack


def _packed(low: Tensor, high: Tensor) -> Tensor:
    return low & 15 | (high & 15) << 4


def _unmasked_signs(codes: Tensor) -> Tensor:
    signed = codes.to(torch.int16) - 8
    return (signed[0::2] | signed[1::2] << 4).bitwise_and(255).to(torch.uint8)


def run_pack(answer: Callable[..., Any], codes: list[int]) -> dict[str, Any]:
    """The bytes and their type."""
    packed = answer(torch.tensor(codes, dtype=torch.uint8))
    return {"bytes": packed, "dtype": str(getattr(packed, "dtype", ""))}


# --- 07.zero_point

Grid = tuple[float, float]


def zero_point(low: float, high: float) -> Grid:
    """Scale and zero point of 16 codes over a range that takes in 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 15
    return scale, round(-low / scale)


def _from_grid(change: Callable[[float, float, int], Grid]) -> Callable[[float, float], Grid]:
    """A variant: low (at most 0), the scale and the right zero point in, its own pair out."""
    return lambda low, high: change(min(low, 0.0), *_whole(zero_point(low, high)))


def _whole(grid: Grid) -> tuple[float, int]:
    return grid[0], int(grid[1])


def _range_without_zero(low: float, high: float) -> Grid:
    scale = (high - low) / 15
    return scale, round(-low / scale)


def _range_without_zero_clamped(low: float, high: float) -> Grid:
    scale, zero = _range_without_zero(low, high)
    return scale, min(max(zero, 0), 15)


def _sixteen_steps(low: float, high: float) -> Grid:
    scale = (max(high, 0.0) - min(low, 0.0)) / 16
    return scale, round(-min(low, 0.0) / scale)


def _symmetric(low: float, high: float) -> Grid:
    return max(abs(low), abs(high)) / 7, 8


# --- 07.gptq_column


def gptq_column(weights: Tensor, factor: Tensor, j: int, rounded: Tensor) -> Tensor:
    """Column j rounded, its error made up for in the later columns."""
    return _corrected(weights, rounded, j, factor[j] / factor[j, j])


def _corrected(weights: Tensor, rounded: Tensor, j: int, per_error: Tensor) -> Tensor:
    """Each later column minus the rounding error of column j times its entry of `per_error`."""
    new = weights.clone()
    new[:, j + 1 :] -= (weights[:, j] - rounded)[:, None] * per_error[j + 1 :]
    new[:, j] = rounded
    return new


def _inverse(factor: Tensor) -> Tensor:
    return factor.T @ factor


def _all_columns(weights: Tensor, factor: Tensor, j: int, rounded: Tensor) -> Tensor:
    row = _inverse(factor)[j]
    new = weights - (weights[:, j] - rounded)[:, None] * (row / row[j])
    new[:, j] = rounded
    return new


def _column_of_the_factor(weights: Tensor, factor: Tensor, j: int, rounded: Tensor) -> Tensor:
    column = factor[:, j]
    return weights - (weights[:, j] - rounded)[:, None] * (column / column[j])


def _keeps_column_j(weights: Tensor, factor: Tensor, j: int, rounded: Tensor) -> Tensor:
    new = gptq_column(weights, factor, j, rounded)
    new[:, j] = weights[:, j]
    return new


def _gptq_cases() -> list[tuple[Tensor, Tensor, int, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    x[:, 1:] += 0.7 * x[:, :-1]  # neighbours go together: otherwise nothing can be made up for
    hessian = x.T @ x / len(x)
    factor = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    weights = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return [(weights, factor, j, weights[:, j].round()) for j in (2, 0, 3, 4)]


EXERCISES = {
    "07.absmax": Value(
        3.81 / 127,
        tolerance=0.004,
        wrong=[
            ("it looks for the largest number; -3.81 has the largest magnitude", 2.3 / 127),
            ("it divides by 128; the codes run from -127 to 127", 3.81 / 128),
            ("it divides by 255, the codes of both signs together", 3.81 / 255),
            ("it spreads the codes over the range from least to largest", (2.3 + 3.81) / 255),
            ("it is the other way round: a weight is divided by the scale", 127 / 3.81),
            ("it is the largest magnitude itself, not yet divided by 127", 3.81),
        ],
    ),
    "07.outlier": Value(
        (38.1 / 127, 1.2),
        tolerance=0.004,
        wrong=[
            ("the scale is the one without the outlier", (3.81 / 127, 1.29)),
            ("4 is the code; what comes back is the code times the scale", (38.1 / 127, 4)),
            ("it rounds up; 1.3 / 0.3 is nearer to 4 than to 5", (38.1 / 127, 1.5)),
            ("1.3 goes in unrounded; only whole numbers are stored", (38.1 / 127, 1.3)),
            ("the scale has changed, but 1.3 was rounded with the old one", (38.1 / 127, 1.29)),
        ],
    ),
    "07.int8": Exercise(
        int8_rows,
        cases=[
            (torch.tensor([[0.4, -1.2, 2.3, 0.05], [0.02, 0.08, -0.127, 0.1], [0.0] * 4]),),
            (torch.tensor([[1.0, -3.1], [-8.0, 0.7], [5.0, 2.6]]),),
        ],
        drive=run_int8,
        wrong=[
            (
                "the scale runs over the wrong axis: each row, an output channel, has one, so the "
                "maximum is taken along dim 1",
                _by_column,
            ),
            (
                "the scale runs over the wrong axis: each row, an output channel, has one, so the "
                "maximum is taken along dim 1",
                _by_column_flat,
            ),
            ("there is one scale for the whole tensor; each row has its own", _one_scale),
            (
                "there is one scale for the whole tensor; each row has its own",
                _one_scale_for_each_row,
            ),
            (
                "it divides by 128; then the largest weight needs the code 128, which int8 lacks",
                _divides_by_128,
            ),
            (
                "the code 128 has become -128: int8 ends at 127, so divide by 127",
                _wraps_at_128,
            ),
            (
                "a row of zeros has the scale 0, and 0 / 0 is NaN; give it any positive scale",
                _no_guard,
            ),
            ("it rounds toward zero: `.to(torch.int8)` cuts, `.round()` comes first", _toward_zero),
            (
                "the scales lack their second axis: (N, 1) divides row by row, (N,) would divide "
                "column by column",
                _flat_scales,
            ),
            (
                "it takes the largest weight of a row, not the largest magnitude",
                _signed_only,
            ),
        ],
    ),
    "07.pack": Exercise(
        pack_nibbles,
        cases=[([1, 2, 3, 4],), ([15, 0, 7, 8, 9, 10],), ([12, 5],)],
        drive=run_pack,
        wrong=[
            (
                "the order within a byte: the first code goes into the low four bits",
                lambda codes: _packed(codes[1::2], codes[0::2]),
            ),
            (
                "the codes were made signed, and the sign bits of the first spill over the second; "
                "codes are 0 … 15 as they are",
                _unmasked_signs,
            ),
            (
                "8 is added (or subtracted) on the way; the zero point is stored by itself",
                lambda codes: _packed(codes[0::2] + 8, codes[1::2] + 8),
            ),
            (
                "it packs the first half with the second; neighbours share a byte",
                lambda codes: _packed(*codes.view(2, -1)),
            ),
            (
                "the second code is not shifted, so that both lie in the same four bits",
                lambda codes: codes[0::2] | codes[1::2],
            ),
        ],
    ),
    "07.zero_point": Exercise(
        zero_point,
        cases=[(-0.4, 1.1), (-1.0, 2.0), (0.2, 0.8), (-0.9, -0.3), (-0.31, 0.47)],
        wrong=[
            (
                "it is off by one: older GPTQ files store zero - 1, but what is asked for is the "
                "code of 0.0",
                _from_grid(lambda low, scale, zero: (scale, zero - 1)),
            ),
            (
                "it is off by one: the lowest code is 0, not 1",
                _from_grid(lambda low, scale, zero: (scale, zero + 1)),
            ),
            (
                "it clamps to 0 … 15 before it shifts: low / scale is negative, so nothing is left",
                _from_grid(lambda low, scale, zero: (scale, 0)),
            ),
            (
                "it keeps the minimum as a float; then 0.0 has no code of its own",
                _from_grid(lambda low, scale, zero: (scale, low)),
            ),
            (
                "the zero point is not rounded; it has to be a code",
                _from_grid(lambda low, scale, zero: (scale, -low / scale)),
            ),
            (
                "the sign: zero = round(-low / scale) is positive, as a code has to be",
                _from_grid(lambda low, scale, zero: (scale, -zero)),
            ),
            (
                "the range leaves out 0: low is at most 0, and high at least 0",
                _range_without_zero,
            ),
            (
                "the range leaves out 0: low is at most 0, and high at least 0",
                _range_without_zero_clamped,
            ),
            (
                "it divides by 16: from the first of 16 codes to the last are 15 steps",
                _sixteen_steps,
            ),
            ("it is the symmetric grid; this one follows low and high", _symmetric),
        ],
    ),
    "07.bits_per_weight": Exercise(
        lambda group_size: 4 + (16 + 8) / group_size,
        cases=[(32,), (64,), (128,), (576,)],
        wrong=[
            ("it forgets the zero point, 8 bits per group", lambda g: 4 + 16 / g),
            ("it forgets the scale, 16 bits per group", lambda g: 4 + 8 / g),
            ("it counts the scale as float32; it is stored in 16 bits", lambda g: 4 + 40 / g),
            (
                "the codes are divided too: each weight has 4 bits of its own",
                lambda g: (4 + 16 + 8) / g,
            ),
            (
                "it is upside down: a group's 24 bits are shared by its weights, 24 / size",
                lambda g: 4 + g / 24,
            ),
            ("every weight pays for the whole scale and zero point", lambda g: 4 + 16 + 8),
            ("it counts the codes only", lambda g: 4),
            (
                "it gives the bits of a whole group, not yet divided by its size",
                lambda g: 4 * g + 24,
            ),
        ],
    ),
    "07.gptq_column": Exercise(
        gptq_column,
        cases=_gptq_cases(),
        tolerance=1e-4,
        wrong=[
            (
                "the error is not divided by the diagonal entry `factor[j, j]`",
                lambda w, factor, j, rounded: _corrected(w, rounded, j, factor[j]),
            ),
            (
                "it corrects columns that are already rounded; only those after j may change",
                _all_columns,
            ),
            (
                "it takes column j of the factor, which belongs to the columns before j; the later "
                "ones are in row j",
                _column_of_the_factor,
            ),
            (
                "it uses the inverse Hessian itself, which still counts on the columns that are "
                "done; its Cholesky factor does not",
                lambda w, factor, j, rounded: _corrected(
                    w, rounded, j, _inverse(factor)[j] / _inverse(factor)[j, j]
                ),
            ),
            (
                "the sign: the later columns move against the error, weights - error · factor",
                lambda w, factor, j, rounded: _corrected(w, rounded, j, -factor[j] / factor[j, j]),
            ),
            ("column j itself is not replaced by the rounded one", _keeps_column_j),
        ],
    ),
    # Per layer q, k, v, o, gate and up have 576 columns, which 128 does not divide; down has 1,536.
    "07.group_fault": Value(
        6 * 30,
        wrong=[
            ("these are the ones that are quantized", 30),
            (
                "it looks at the rows, the outputs; groups run along the columns, the inputs",
                5 * 30,
            ),
            ("that is one layer; there are 30", 6),
            ("it counts attention only; gate and up have 576 columns too", 4 * 30),
            ("it counts the MLP only; q, k, v and o have 576 columns too", 2 * 30),
            ("it counts all linears; 128 divides the 1,536 columns of down", 210),
            ("576 / 128 is 4.5, so a group would be cut in half", 0),
        ],
    ),
}
