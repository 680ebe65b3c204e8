"""The meaning of each kernel in plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["dequantize", "int8_linear", "quantized_linear", "unpack_nibbles"]


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Two codes out of each byte: the low four bits are the first, the high four the second.

    packed: (..., n), uint8. Returns (..., 2·n), uint8, values from 0 to 15.

    >>> unpack_nibbles(torch.tensor([0x21, 0x43], dtype=torch.uint8)).tolist()
    [1, 2, 3, 4]
    """
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def dequantize(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """What codes stand for: w[n, c] = (codes[n, c] - zeros[n, g]) · scales[n, g].

    Column c is in group g = c // (C/G).
    codes: (N, C), uint8. scales: (N, G), floating point. zeros: (N, G), uint8.
    Returns (N, C), float32.
    """
    N, G = scales.shape
    grouped = codes.view(N, G, -1).float() - zeros[..., None].float()  # (N, G, C/G)
    return (grouped * scales[..., None].float()).view(N, -1)


def quantized_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int
) -> Tensor:
    """A linear layer over quantized weights: x · dequantize(codes)ᵀ + bias.

    x: (..., C). codes: (N, C) of 8 bits, or (N, C/2) bytes of two 4-bit codes each.
    scales, zeros: (N, G). Returns (..., N) in x's dtype, to which the weights are rounded first.
    """
    unpacked = unpack_nibbles(codes) if bits == 4 else codes
    weight = dequantize(unpacked, scales, zeros).to(x.dtype)
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


def int8_linear(
    x_codes: Tensor, x_scales: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """A linear layer on whole numbers: y[t, n] = x_scales[t] · scales[n] · Σ_c x[t, c] · w[n, c].

    The sum is exact: one scale per token and one per output stand outside it. A product of two
    codes is up to 16,129, so that float32, exact to 2^24, would do for 1,040 columns only; float64
    is exact to 2^53.

    x_codes: (..., C), int8. x_scales: (..., 1), float32. codes: (N, C), int8. scales: (N, 1),
    float32. bias: (N,). Returns (..., N), float32.
    """
    sums = x_codes.double() @ codes.double().T
    y = sums * x_scales.double() * scales[:, 0].double()
    return (y if bias is None else y + bias).float()


def quantize_blocks(x: Tensor) -> tuple[Tensor, Tensor]:
    """Activations as whole numbers, 32 columns at a time: code = round(x / scale).

    scale = max |x| / 127 of the 32 values. A scale for all of a token would be set by its few large
    columns, and leave the others too coarse: 3.0 % more perplexity on the first 1,024 tokens of
    data/corpus.txt with SmolLM2's blocks, against 0.24 % for these.
    Rounding is to nearest, halves to even; a block of zeros has scale 0 and codes 0.

    x: (..., C), C a multiple of 32. Returns codes (..., C), int8, from -127 to 127, and scales
    (..., C/32), float32. NaN and infinity make their block's scale NaN or infinite.
    """
    groups = torch.unflatten(x.float(), -1, (-1, 32))
    scales = groups.abs().amax(-1) / 127
    steps = (groups / scales[..., None]).round().clamp(-127, 127)
    return steps.nan_to_num().to(torch.int8).flatten(-2), scales


def dequantize_blocks(codes: Tensor, scales: Tensor) -> Tensor:
    """What `quantize_blocks` gave stands for: (..., C), float32."""
    groups = torch.unflatten(codes.float(), -1, (-1, 32))
    return (groups * scales[..., None]).flatten(-2)
