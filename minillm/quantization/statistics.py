"""What a linear layer is given: second moments of its inputs, gathered from calibration text.

Rounding a weight matrix W to Ŵ changes what the layer gives for an input x by (W - Ŵ)·x. How much
that is on average, over all inputs, follows from the means of the products x_i · x_j alone. So this
one matrix is all that GPTQ and AWQ need to know about the text.
"""

import torch
from torch import Tensor

# Tokens whose products are summed at a time: of a wide layer's inputs no large copy exists.
CHUNK = 1_024


class Statistics:
    """Running means over the inputs x (C,) that a linear layer was given.

    hessian: (C, C), float32, the mean of x·xᵀ over tokens. The second derivative of the layer's
    mean squared output error by a row of weights is twice this matrix: hence its name.
    mean_abs: (C,), float32, the mean of |x|. tokens: how many inputs there were.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        self.hessian = torch.zeros(width, width, device=device)
        self.mean_abs = torch.zeros(width, device=device)
        self.tokens = 0

    def add(self, x: Tensor) -> None:
        """Take in more inputs. The order in which they come changes nothing but rounding.

        mean ← mean · n/(n + m) + (Σ of the m new products) / (n + m): what is kept is the mean and
        not the sum, so that it does not grow with the text.

        x: (..., C), any dtype. 2·C² FLOPs per token. Raises ValueError for another width.
        """
        width = len(self.mean_abs)
        if x.shape[-1] != width:
            raise ValueError(f"inputs of {x.shape[-1]} values, for a layer that takes {width}")
        for rows in torch.split(x.detach().reshape(-1, width), CHUNK):
            before, self.tokens = self.tokens, self.tokens + len(rows)
            kept, new = before / max(self.tokens, 1), rows.float()
            # Each factor gets half of the division, so that no product is larger than need be.
            scaled = new * max(self.tokens, 1) ** -0.5
            self.hessian.addmm_(scaled.T, scaled, beta=kept)
            self.mean_abs.mul_(kept).add_(new.abs().sum(dim=0) / max(self.tokens, 1))


def output_error(change: Tensor, hessian: Tensor) -> float:
    """Mean squared error of a layer's outputs, over tokens and outputs, for changed weights.

    mean |ΔW·x|² / N = tr(ΔW·H·ΔWᵀ) / N, with H = mean x·xᵀ: exact for the tokens behind H.

    change: ΔW (N, C), new weights minus old ones. hessian: (C, C). 2·N·C² FLOPs.
    Source: Frantar et al. 2022, arXiv 2210.17323, equation 1.
    """
    change = change.float()
    return max(float((change @ hessian).mul_(change).sum()) / len(change), 0.0)
