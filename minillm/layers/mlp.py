"""The gated feed-forward network: what a block does to each token on its own."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from minillm.ops import Ops

__all__ = ["MLP", "swiglu"]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Gate one projection by another: silu(gate) · up, with silu(z) = z / (1 + exp(-z)).

    gate, up: (B, T, F). Returns (B, T, F). Source: Shazeer 2020, arXiv 2002.05202, equation 6.
    """
    return F.silu(gate) * up


class MLP(nn.Module):
    """Gated feed-forward network: down(silu(gate(x)) · up(x)).

    Three matrices of C·F weights each: 6·C·F FLOPs per token.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """x: (B, T, C). Returns (B, T, C)."""
        hidden = ops.swiglu(self.gate_proj(x), self.up_proj(x))  # (B, T, F)
        out: Tensor = self.down_proj(hidden)
        return out
