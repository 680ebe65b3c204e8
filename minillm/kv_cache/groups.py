"""Keys and values as small whole numbers: groups that share a scale and a minimum.

Keys and values differ in what they need. A few channels of the keys are far larger than the others,
at every token: with one scale per token they would set the step of all channels, so each channel
has its own. The channels of values are more alike, and there each token has its own scales.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from minillm.kernels.reference import unpack_nibbles
from minillm.quantization.int4 import pack_nibbles

__all__ = ["quantize_kv"]


class KVGroups(NamedTuple):
    """Keys or values as whole numbers: x ≈ code · scale + minimum, the two shared by a group.

    codes: (…, T, D), uint8; for 4 bits (…, T, D/2), two codes in each byte.
    scales, minima: (…, T/t, D/c), bfloat16, where a group is t tokens × c channels.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor


def channels_per_group(head_dim: int) -> int:
    """Channels that share a scale where each token has its own: 32, or fewer that divide D.

    >>> [channels_per_group(head_dim) for head_dim in (8, 16, 48, 64, 80, 128)]
    [8, 16, 24, 32, 20, 32]
    """
    return next(size for size in range(32, 0, -1) if head_dim % size == 0)


def rounded_up(x: Tensor) -> Tensor:
    """The least bfloat16 number that is not below x (float32, any shape).

    >>> rounded_up(torch.tensor([1.001, 1.0, -1.001])).tolist()
    [1.0078125, 1.0, -1.0]
    """
    nearest = x.to(torch.bfloat16)
    # The next number has the next bit pattern; the pattern of a negative one grows with its size.
    bits = nearest.view(torch.int16)
    above = torch.where(nearest < 0, bits - 1, bits + 1).view(torch.bfloat16)
    return torch.where(nearest < x, above, nearest)


def quantize_kv(x: Tensor, group: tuple[int, int], bits: int) -> KVGroups:
    """Round to 2^bits values, spaced evenly from the least to the largest of each group.

    scale = (max - min) / (2^bits - 1), code = round((x - min) / scale): no value is off by more
    than half a scale. The minimum is a number of its own, not a zero point (the code of 0.0): that
    one would stretch the range to 0, and the range of a key channel is often far from it.
    Both are bfloat16, which has float32's range. The minimum is rounded down and the scale up, so
    that all values stay between the end points.

    x: (…, T, D), floating point. group: tokens and channels that share a scale, divisors of T and
    D. bits: 4, for an even D, or 8. Bits per value: bits + 32 / (size of a group).
    A NaN, an infinity, or a range beyond 3.3e38 makes its whole group NaN or infinite: that shows
    in the logits, instead of passing for a number.
    Source: KIVI, Liu et al. 2024, arXiv 2402.02750, section 3.
    """
    *lead, T, D = x.shape
    (tokens, channels), top = group, 2**bits - 1
    groups = x.float().reshape(*lead, T // tokens, tokens, D // channels, channels)
    minima = -rounded_up(-groups.amin(dim=(-3, -1)))  # (…, T/t, D/c)
    above = groups - minima.float()[..., :, None, :, None]
    scales = rounded_up(above.amax(dim=(-3, -1)) / top)
    steps = (above / scales.float()[..., :, None, :, None]).round().clamp(0, top)
    # A step is NaN where all values are equal (0 / 0) or one is NaN: whatever the code, scale and
    # minimum say it all.
    codes = steps.nan_to_num().to(torch.uint8).view(x.shape)
    return KVGroups(pack_nibbles(codes) if bits == 4 else codes, scales, minima)


def dequantize_kv(groups: KVGroups, bits: int) -> Tensor:
    """What the codes stand for: code · scale + minimum. Returns (…, T, D), float32."""
    codes = unpack_nibbles(groups.codes) if bits == 4 else groups.codes
    *lead, T, D = codes.shape
    rows, columns = groups.scales.shape[-2:]
    x = codes.float().view(*lead, rows, T // rows, columns, D // columns)
    scale, low = (y.float()[..., :, None, :, None] for y in (groups.scales, groups.minima))
    return x.mul_(scale).add_(low).view(codes.shape)
