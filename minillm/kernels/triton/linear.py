"""Triton as a backend for the products of `minillm.kernels.reference`: which kernel takes which."""

import math

from torch import Tensor

from minillm.kernels import reference
from minillm.kernels.triton.few_tokens import TOKENS, few_tokens_linear, int8_product
from minillm.kernels.triton.matvec import quantized_matvec

# A sum of so many products of two 8-bit codes stays below 2^31.
MOST_COLUMNS = (2**31 - 1) // 128**2


def quantized_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int
) -> Tensor:
    """A linear layer over quantized weights: x · dequantize(codes)ᵀ + bias.

    One token and up to 16 have a kernel each. For more, which share the work of decoding, the
    weights are decoded first and the product is left to PyTorch; so it is done too for 4-bit codes
    in groups of an odd number of columns, which share bytes.

    Arguments and result: as of `minillm.kernels.reference.quantized_linear`. Raises ValueError for
    parts that do not fit together.
    """
    C, (N, G) = x.shape[-1], scales.shape
    if bits not in (4, 8) or codes.shape != (N, C * bits // 8) or zeros.shape != scales.shape:
        raise ValueError(
            f"codes {tuple(codes.shape)} of {bits} bits, scales {tuple(scales.shape)} and zeros "
            f"{tuple(zeros.shape)} do not fit inputs of {C} columns"
        )
    M = math.prod(x.shape[:-1])
    if not 0 < M <= TOKENS or (bits == 4 and C // G % 2):
        return reference.quantized_linear(x, codes, scales, zeros, bias, bits)
    if M == 1:
        return quantized_matvec(x, codes, scales, zeros, bias, bits).view(*x.shape[:-1], N)
    rows = x.reshape(M, C)
    return few_tokens_linear(rows, codes, scales, zeros, bias, bits).view(*x.shape[:-1], N)


def int8_linear(
    x_codes: Tensor, x_scales: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """A linear layer on whole numbers: y[t, n] = x_scales[t] · scales[n] · Σ_c x[t, c] · w[n, c].

    Arguments and result: as of `minillm.kernels.reference.int8_linear`, which also takes what is
    wider than 131,071 columns. Raises ValueError for parts that do not fit together.
    """
    C, N = x_codes.shape[-1], len(codes)
    if codes.shape != (N, C) or scales.shape != (N, 1):
        raise ValueError(
            f"codes {tuple(codes.shape)} and scales {tuple(scales.shape)} do not fit inputs of "
            f"{C} columns"
        )
    M = math.prod(x_codes.shape[:-1])
    if M == 0 or C > MOST_COLUMNS:
        return reference.int8_linear(x_codes, x_scales, codes, scales, bias)
    rows = x_codes.reshape(M, C), x_scales.reshape(M)
    return int8_product(*rows, codes, scales[:, 0], bias).view(*x_codes.shape[:-1], N)
