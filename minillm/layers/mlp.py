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


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """Gate one projection by another: gelu(gate) · up, gelu in its tanh approximation.

    gelu(z) = z/2 · (1 + tanh(sqrt(2/π) · (z + 0.044715·z³))).
    gate, up: (B, T, F). Returns (B, T, F). Source: Shazeer 2020, arXiv 2002.05202, equation 6.
    """
    return F.gelu(gate, approximate="tanh") * up


class MLP(nn.Module):
    """Gated feed-forward network: down(activation(gate(x), up(x))), by default `swiglu`.

    Three matrices of C·F weights each: 6·C·F FLOPs per token.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, bias: bool = False, gating: str = "swiglu"
    ) -> None:
        super().__init__()
        self.gating = gating  # the name of a function in Ops
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """x: (B, T, C). Returns (B, T, C)."""
        hidden = getattr(ops, self.gating)(self.gate_proj(x), self.up_proj(x))  # (B, T, F)
        out: Tensor = self.down_proj(hidden)
        return out
