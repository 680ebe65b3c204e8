"""Root-mean-square normalisation: each vector is brought to length sqrt(C), then weighted."""

import torch
from torch import Tensor

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
