"""INT8: numbers divided by the largest among them, and rounded to whole numbers up to 127."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.kernels import reference
from minillm.quantization.int4 import check_finite, check_weight
from minillm.quantization.linear import CodedLinear

__all__ = ["quantize_absmax"]


def quantize_absmax(x: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127 and their scale: code = round(x / scale).

    scale = max |x| / 127, over all of x (dim None: per tensor), or over each row (dim -1), which is
    an output channel of a weight (N, C) and a token of activations (..., C).
    codes · scales is what they stand for: off by at most half a scale. -128 stays unused, so that
    the range is as wide on both sides; rounding is to nearest, halves to even.

    x: any floating-point type; computed in float32. Returns codes, int8, in x's shape, and scales,
    float32, of a shape that broadcasts to it. Raises ValueError for NaN, infinity or no numbers.
    Source: Dettmers et al. 2022, arXiv 2208.07339, section 2.1 (per tensor) and 3.1 (per row).
    """
    check_numbers(x, dim)
    x = x.detach().float()
    largest = x.abs().max() if dim is None else x.abs().amax(dim, keepdim=True)
    # A row of zeros would be divided by zero; any other scale gives it the right codes.
    scales = (largest / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scales).round().to(torch.int8), scales


def outlier_columns(x: Tensor, threshold: float) -> Tensor:
    """The columns of x (..., C) in which some token has |x| >= threshold: (C,), bool."""
    # Written so that NaN counts as well: it then spreads as in any other layer.
    large = ~(x.abs() < threshold)
    return large.reshape(-1, x.shape[-1]).any(dim=0)


class Int8Linear(CodedLinear):
    """A linear layer that multiplies whole numbers: weights and inputs are both INT8.

    Weights have a scale per output channel. Inputs are quantized as they come, with a scale per
    token, except for columns with an outlier: next to one of those, the scale would be too coarse
    for the token's other values. They are multiplied as they are, by dequantized weights.
    Which columns these are depends on all tokens of the call, and so does a token's result, a
    little. There is no gradient.

    codes: (N, C), int8. scales: (N, 1), float32. Bytes: N·C + 4·N, and the bias.
    threshold: |x| from which on an input is an outlier; None: there are none.
    kernel: computes the product; `reference.int8_linear` unless a backend replaces it.
    Source: Dettmers et al. 2022, arXiv 2208.07339, equation 8.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, threshold: float | None = 6.0
    ) -> None:
        check_weight(weight)
        check_threshold(threshold)
        codes, scales = quantize_absmax(weight, dim=-1)
        super().__init__(codes=codes, scales=scales, bias=bias)
        self.in_features = codes.shape[1]
        self.threshold = math.inf if threshold is None else threshold
        self.kernel: Callable[..., Tensor] = reference.int8_linear

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C). Returns (..., N) in x's dtype."""
        values = x.detach().float()
        outliers = outlier_columns(values, self.threshold)
        x_codes, x_scales = quantize_absmax(values.masked_fill(outliers, 0), dim=-1)
        y = self.kernel(x_codes, x_scales, self.codes, self.scales, self.bias)
        weight = self.codes[:, outliers] * self.scales  # (N, columns with outliers)
        return (y + F.linear(values[..., outliers], weight)).to(x.dtype)

    @classmethod
    def from_linear(cls, linear: nn.Linear, threshold: float | None = 6.0) -> "Int8Linear":
        """The layer that takes the place of an `nn.Linear`."""
        return cls(linear.weight, linear.bias, threshold)


def check_numbers(x: Tensor, dim: int | None) -> None:
    """ValueError where there is nothing to take the largest of, or something that is not finite."""
    if not x.numel() if dim is None else x.ndim and not x.shape[dim]:
        raise ValueError(f"a tensor of shape {tuple(x.shape)} has no numbers to quantize")
    check_finite(x, "number")


def check_threshold(threshold: float | None) -> None:
    """ValueError for a threshold that is not a positive number."""
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if threshold is not None and not (number and threshold > 0):
        raise ValueError(f"threshold is {threshold!r}; a number above 0, or None for no outliers")
