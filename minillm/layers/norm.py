"""Root-mean-square normalisation: each vector is brought to length sqrt(C), then weighted."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from minillm.config import ModelConfig

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
    """`rms_norm` with its weight (size,), which is stored as the difference from `offset`."""

    def __init__(self, size: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """x: (..., n·size). Each group of `size` values is normalised by itself."""
        groups = torch.unflatten(x, -1, (-1, len(self.weight)))
        weight: Tensor = self.weight
        if self.offset:  # in bfloat16 the sum would lose what the small difference says
            weight = weight.float() + self.offset
        return ops.rms_norm(groups, weight, self.eps).to(x.dtype).flatten(-2)


class Unchanged(nn.Module):
    """Stands where a model has no norm."""

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """Returns x."""
        return x


def norm_layer(
    config: ModelConfig, size: int, place: Literal["before", "after"] | None = None
) -> nn.Module:
    """The model's norm over `size` values; none for 0, or at a place where the model has none."""
    if not size or (place and config.norms not in (place, "both")):
        return Unchanged()
    return RMSNorm(size, config.rms_norm_eps, config.norm_offset)
