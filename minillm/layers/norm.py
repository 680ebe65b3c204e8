"""Root-mean-square normalisation: each vector is brought to length sqrt(C), then weighted."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from minillm.ops import Ops

__all__ = ["rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector by the inverse of its root mean square.

    y = x / sqrt(mean(x²) + eps) · weight, over the last dimension.

    The mean of squares is taken in float32 whatever the input: in float16 anything above 255
    overflows when squared (65,504 is the largest float16), and the whole vector would become 0.

    x: (..., C), any floating dtype. weight: (C,). eps: added to the mean of squares.
    Returns (..., C) in x's dtype. Source: Zhang and Sennrich 2019, arXiv 1910.07467, equation 4.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


class RMSNorm(nn.Module):
    """A weight (size,) for `rms_norm`, stored as its difference from `offset`."""

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """x: (..., size). Returns the same shape and dtype."""
        if not self.offset:
            return ops.rms_norm(x, self.weight, self.eps)
        # In bfloat16 the sum would lose what the small difference says.
        return ops.rms_norm(x, self.weight.float() + self.offset, self.eps).to(x.dtype)


class Unchanged(nn.Module):
    """Stands where a model has no norm."""

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """Returns x."""
        return x
