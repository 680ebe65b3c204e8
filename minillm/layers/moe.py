"""Mixture of experts: many feed-forward networks, of which each token passes through a few."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minillm.config import ExpertsConfig, LayerConfig, ModelConfig
from minillm.layers.mlp import MLP

if TYPE_CHECKING:
    from minillm.ops import Ops


def route(scores: Tensor, experts: ExpertsConfig) -> tuple[Tensor, Tensor]:
    """Which experts each token passes through, and with what weights their results are added.

    scores: (N, E), one per token and expert. The weights are their softmax over all E experts, in
    float32, of which the `num_experts_per_tok` largest are kept; with `norm_topk_prob` these are
    divided by their sum. Returns weights (N, k), float32, and experts' numbers (N, k).
    Source: Shazeer et al. 2017, arXiv 1701.06538, section 2.1; Jiang et al. 2024, arXiv 2401.04088.
    """
    weights, chosen = scores.float().softmax(dim=-1).topk(experts.num_experts_per_tok, dim=-1)
    if experts.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, chosen


class MoE(nn.Module):
    """A router, and E experts, each an `MLP`: y = Σ weight_e · expert_e(x) over the chosen ones.

    Of E·3·C·F weights a token reads k·3·C·F, and as many FLOPs times two are spent on it.
    """

    def __init__(self, hidden_size: int, experts: ExpertsConfig, gating: str) -> None:
        super().__init__()
        self.config = experts
        self.gate = nn.Linear(hidden_size, experts.num_experts, bias=False)
        self.experts = nn.ModuleList(
            MLP(hidden_size, experts.intermediate_size, gating=gating)
            for _ in range(experts.num_experts)
        )

    def forward(self, x: Tensor, ops: "Ops") -> Tensor:
        """x: (B, T, C). Returns (B, T, C). Each expert runs once, on all tokens that chose it."""
        tokens = x.flatten(0, 1)  # (N, C)
        weights, chosen = route(self.gate(tokens), self.config)
        out = torch.zeros_like(tokens)
        for number in set(chosen.flatten().tolist()):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            result = self.experts[number](tokens[rows], ops)
            out[rows] += (weights[rows, places, None] * result).to(x.dtype)
        return out.view_as(x)


def feed_forward(config: ModelConfig, layer: LayerConfig) -> nn.Module:
    """What a layer does to each token on its own: one network, or many experts."""
    if layer.experts is not None:
        return MoE(config.hidden_size, layer.experts, config.activation)
    sizes = config.hidden_size, config.intermediate_size
    return MLP(*sizes, bias=config.mlp_bias, gating=config.activation)
