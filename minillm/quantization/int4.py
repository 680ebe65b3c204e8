"""Rounding to few bits: groups of weights, each with a scale and a zero point, packed in bytes."""

from typing import NamedTuple

import torch
from torch import Tensor

from minillm.kernels.reference import dequantize
from minillm.quantization.scheme import check_bits, check_group_size

__all__ = ["group_grid", "nearest_codes", "pack_nibbles", "quantize_groups"]


class Quantized(NamedTuple):
    """A weight matrix as whole numbers: w[n, c] ≈ (codes[n, c] - zeros[n, g]) · scales[n, g].

    Column c of the codes is in group g = c // (C/G).
    codes: (N, C), uint8, values from 0 to 2^bits - 1, unpacked.
    scales: (N, G), float16 and positive; other tools' files may hold other types and signs.
    zeros: (N, G), uint8: the code of 0.0.
    bits: 2 to 8.
    order: (C,), int64: column c of the codes is column order[c] of the weight; None: they agree.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    bits: int
    order: Tensor | None = None

    @property
    def group_size(self) -> int:
        """Columns that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def dequantize(self) -> Tensor:
        """The weights that the codes stand for, (N, C), float32, columns in the weight's order."""
        weight = dequantize(self.codes, self.scales, self.zeros)
        return weight if self.order is None else weight[:, self.order.argsort()]


def stored_scales(scales: Tensor) -> Tensor:
    """Scales as float16, rounded up, so that the largest weight of a group still has a code.

    A scale of 0 (a group of zeros) becomes 1: its codes all stand for 0 then.
    scales: any shape, float32, at least 0. Raises ValueError for one beyond float16's 65,504.
    """
    if not bool((scales <= 65_504).all()):
        raise ValueError(f"a scale is {scales.max():g}; at most 65504 fits in float16")
    stored = scales.to(torch.float16)
    # The next float16 is the next bit pattern, also below the smallest normal number.
    above = (stored.view(torch.int16) + 1).view(torch.float16)
    stored = torch.where(stored.float() < scales, above, stored)
    return torch.where(scales == 0, torch.ones_like(stored), stored)


def quantize_groups(
    weight: Tensor, group_size: int = 64, *, bits: int = 4, symmetric: bool = False
) -> Quantized:
    """Round each weight to the nearest of 2^bits values, spaced evenly over its group's range.

    Asymmetric: scale = (max - min) / (2^bits - 1), zero = round(-min / scale), with min at most 0
    and max at least 0, so that 0.0 has a code of its own.
    Symmetric: scale = max |w| / (2^(bits-1) - 1), zero = 2^(bits-1); the code 0 stays unused.
    code = round(w / scale) + zero, so that no weight is off by more than half a scale.

    weight: (N, C), floating point. group_size: columns that share a scale, a divisor of C; -1 is
    all of them. bits: 2 to 8. Bits per weight: bits + 24 / group_size.
    Raises ValueError for a group size that does not fit, NaN or infinite weights, and weights so
    large that the scale leaves float16.
    """
    groups = split_groups(weight, group_size)  # (N, G, group_size)
    scales, zeros = group_grid(groups, bits, symmetric)
    codes = nearest_codes(groups, scales[..., None], zeros[..., None], bits)
    return Quantized(codes.flatten(1), scales, zeros, bits)


def group_grid(groups: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Scale and zero point of each group of weights: the formulas of `quantize_groups`.

    groups: (..., size), float32. Returns scales (...), float16, and zeros (...), uint8.
    Raises ValueError for bits outside 2 … 8, and for weights whose scale leaves float16.
    """
    check_bits(bits)
    top = 2**bits - 1
    if symmetric:
        scales = stored_scales(groups.abs().amax(dim=-1) / (top // 2))
        return scales, torch.full_like(scales, (top + 1) // 2, dtype=torch.uint8)
    low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
    scales = stored_scales((high - low) / top)
    return scales, (-low / scales.float()).round().to(torch.uint8)


def nearest_codes(weight: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> Tensor:
    """The code of the nearest value that a grid has: round(w / scale) + zero, from 0 to 2^bits - 1.

    weight: any shape, float32. scales, zeros: of a shape that broadcasts to it. Returns uint8.
    """
    steps = (weight / scales.float()).round() + zeros
    return steps.clamp(0, 2**bits - 1).to(torch.uint8)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes in each byte: the first in the low four bits, the second in the high four.

    codes: (..., n), uint8, values from 0 to 15, n even. Returns (..., n/2), uint8.
    Raises ValueError for an odd n or a code above 15.

    >>> pack_nibbles(torch.tensor([1, 2, 3, 4], dtype=torch.uint8)).tolist() == [0x21, 0x43]
    True
    """
    check_nibbles(codes)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def split_groups(weight: Tensor, group_size: int) -> Tensor:
    """The weights (N, C) as (N, G, C/G), float32, without their gradient; -1: one group per row.

    Raises ValueError for what is not a matrix of finite numbers, and a size that does not divide C.
    """
    check_weight(weight)
    N, C = weight.shape
    size = C if group_size == -1 else group_size
    check_group_size(size, C)
    return weight.detach().float().reshape(N, -1, size).contiguous()


def check_nibbles(codes: Tensor) -> None:
    """ValueError for codes that do not fill bytes in pairs."""
    if codes.dtype != torch.uint8:
        raise ValueError(f"codes are {codes.dtype}; torch.uint8 is needed")
    if codes.shape[-1] % 2:
        raise ValueError(f"{codes.shape[-1]} codes a row; an even number fills whole bytes")
    if codes.numel() and int(codes.max()) > 15:
        raise ValueError(f"a code is {int(codes.max())}; four bits hold 0 to 15")


def check_weight(weight: Tensor) -> None:
    """ValueError for what is not a matrix of finite floating-point numbers."""
    if weight.ndim != 2 or not weight.numel():
        raise ValueError(f"the weight has shape {tuple(weight.shape)}; a matrix (N, C) is needed")
    check_finite(weight)


def check_finite(x: Tensor, name: str = "weight") -> None:
    """ValueError for numbers that are not floating point, or not finite in float32."""
    if not x.is_floating_point():
        raise ValueError(f"the {name} is {x.dtype}; floating-point numbers are needed")
    finite = x.detach().float().isfinite()
    if not bool(finite.all()):
        place = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f"the {name} at {place} is {x[tuple(place)].item()}; only numbers that are finite in "
            "float32 can be quantized"
        )
