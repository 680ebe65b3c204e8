"""Attention: each token asks, every token it may see answers, and the answers are mixed."""

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.config import LayerConfig, ModelConfig
from minillm.layers.norm import norm_layer

if TYPE_CHECKING:
    from minillm.kv_cache.base import KVCache
    from minillm.model import Step
    from minillm.ops import Ops

__all__ = ["Attention", "attention", "attention_mask", "causal_mask"]


def attention_mask(
    q_positions: Tensor, k_positions: Tensor, window: int | None = None, sinks: int = 0
) -> Tensor:
    """Which keys each query may see: 0 <= k_pos <= q_pos, and q_pos - k_pos < window.

    This one rule covers causality, padding (k_pos = -1), chunks, sliding windows and rings,
    because it compares positions and not places in memory. A window of W sees the token itself
    and the W - 1 before it; the first `sinks` tokens stay visible outside it. A padding query
    (q_pos = -1) sees everything: its result is thrown away, and seeing nothing would make its
    softmax NaN.

    q_positions: (B, T). k_positions: (B, S). Returns (B, 1, T, S), bool, True where seen.
    """
    q, k = q_positions[:, None, :, None], k_positions[:, None, None, :]
    seen = (k >= 0) & (k <= q)
    if window is not None:
        seen &= (q - k < window) | (k < sinks)
    return seen | (q < 0)


def causal_mask(T: int, S: int) -> Tensor:
    """The mask of T queries that are the last T of S tokens: each sees itself and all before it.

    Returns (1, 1, T, S), bool, True where seen.
    """
    return attention_mask(torch.arange(S - T, S)[None], torch.arange(S)[None])


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Scaled dot-product attention with grouped heads: softmax(q · kᵀ · scale) · v.

    Query head h reads key/value head h // (H/K). PyTorch's fused kernel never writes the (T, S)
    matrix of scores.

    q: (B, H, T, D). k, v: (B, K, S, D), K divides H. mask: (B, 1, T, S), True where seen; None is
    plain causal attention, the T queries being the last T of the S tokens, for which PyTorch has
    a kernel that skips the hidden half. scale: 1/sqrt(D) unless given.
    Returns (B, H, T, D). 4·B·H·T·S·D FLOPs.
    Source: Vaswani et al. 2017, arXiv 1706.03762, equation 1; grouped heads: Ainslie et al. 2023,
    arXiv 2305.13245.
    """
    B, H, T, D = q.shape
    K = k.shape[1]
    S = k.shape[2]
    scale = 1 / math.sqrt(D) if scale is None else scale
    if mask is None and 1 < T < S:
        # `is_causal` would align the mask to the first key instead of the last.
        mask = causal_mask(T, S).to(q.device)
    if T == 1:
        # One query per head: the heads of a group stand where the queries would, so that each key
        # is read once for all of them.
        grouped = q.reshape(B, K, H // K, D)
        out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale)
        return out.reshape(B, H, 1, D)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )


class Attention(nn.Module):
    """The attention layer of one block: four projections around `attention`, and the KV cache.

    Weights per layer: C·H·D for q and for the output, C·K·D for k and for v.
    """

    def __init__(self, config: ModelConfig, layer: LayerConfig, index: int) -> None:
        super().__init__()
        C, D = config.hidden_size, config.head_dim
        H, K = config.num_attention_heads, config.num_key_value_heads
        self.layer, self.index, self.head_dim = layer, index, D
        # `ops.attention` divides by sqrt(D); some models want another divisor.
        self.query_scale = math.sqrt(D / (config.query_pre_attn_scalar or D))
        self.q_proj = nn.Linear(C, H * D, bias=config.attention_bias)
        self.k_proj = nn.Linear(C, K * D, bias=config.attention_bias)
        self.v_proj = nn.Linear(C, K * D, bias=config.attention_bias)
        self.o_proj = nn.Linear(H * D, C, bias=config.attention_output_bias)
        # Each head by itself, or all of a token's heads at once.
        sizes = {"none": (0, 0), "head": (D, D), "whole": (H * D, K * D)}[config.qk_norm]
        self.q_norm, self.k_norm = (norm_layer(config, size) for size in sizes)

    def forward(self, x: Tensor, step: "Step", cache: "KVCache", ops: "Ops") -> Tensor:
        """x: (B, T, C), normalised. Returns (B, T, C); the cache gains this layer's k and v."""
        B, T, _ = x.shape
        q, k = self.q_norm(self.q_proj(x), ops), self.k_norm(self.k_proj(x), ops)
        # (B, T, heads·D) → (B, heads, T, D)
        q, k, v = (y.view(B, T, -1, self.head_dim).transpose(1, 2) for y in (q, k, self.v_proj(x)))
        if self.query_scale != 1:
            q = q * self.query_scale
        if self.layer.rope is not None:
            cos, sin = step.rope_tables(self.layer.rope)
            q, k = ops.rope(q, cos, sin), ops.rope(k, cos, sin)
        k, v, k_positions = cache.update(self.index, k, v)
        mask = step.mask(k_positions, self.layer)
        out = ops.attention(q, k, v, mask)  # (B, H, T, D)
        merged: Tensor = self.o_proj(out.transpose(1, 2).reshape(B, T, -1))
        return merged
