"""The Transformer: embed, L blocks of attention and MLP, a last norm, and the output head."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minillm.config import LayerConfig, ModelConfig, RopeConfig
from minillm.kv_cache.base import KVCache
from minillm.layers.attention import Attention, attention_mask, causal_mask
from minillm.layers.embedding import embed
from minillm.layers.moe import feed_forward
from minillm.layers.norm import norm_layer
from minillm.layers.rope import rope_tables
from minillm.ops import Ops

__all__ = ["Block", "Step", "Transformer"]


class Step:
    """What the layers of one forward pass share: positions, RoPE tables and masks.

    Layers with the same RoPE or the same window use the same table or mask: each is built once.
    """

    def __init__(
        self, positions: Tensor, head_dim: int, device: torch.device, lengths: Tensor | None = None
    ) -> None:
        self.positions, self.head_dim, self.device, self.lengths = (
            positions,
            head_dim,
            device,
            lengths,
        )
        self._tables: dict[RopeConfig, tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int | None, int], tuple[Tensor, Tensor | None]] = {}

    def rope_tables(self, rope: RopeConfig) -> tuple[Tensor, Tensor]:
        """cos and sin, (B, 1, T, D/2) each, for the step's positions."""
        if rope not in self._tables:
            cos, sin = rope_tables(self.positions, rope, self.head_dim, self.lengths)
            self._tables[rope] = cos.to(self.device), sin.to(self.device)
        return self._tables[rope]

    def mask(self, k_positions: Tensor, layer: LayerConfig) -> Tensor | None:
        """The mask (B, 1, T, S) over keys at these positions; None where it is plainly causal."""
        key = (id(k_positions), layer.sliding_window, layer.sinks)
        if key not in self._masks:
            seen = attention_mask(self.positions, k_positions, layer.sliding_window, layer.sinks)
            T, S = seen.shape[2:]
            # Only for these two shapes is None faster than a mask.
            plain = T in (1, S) and bool((seen == causal_mask(T, S)).all())
            mask = None if plain else seen.to(self.device)
            # The positions are kept too, so that their id is not reused within the step.
            self._masks[key] = k_positions, mask
        return self._masks[key][1]


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)).

    Some models normalise what attention and MLP give as well, or instead.
    """

    def __init__(self, config: ModelConfig, layer: LayerConfig, index: int) -> None:
        super().__init__()
        C = config.hidden_size
        self.input_layernorm = norm_layer(config, C, "before")
        self.self_attn = Attention(config, layer, index)
        self.post_self_attn_layernorm = norm_layer(config, C, "after")
        self.post_attention_layernorm = norm_layer(config, C, "before")
        self.mlp = feed_forward(config, layer)
        self.post_mlp_layernorm = norm_layer(config, C, "after")

    def forward(self, x: Tensor, step: Step, cache: KVCache, ops: Ops) -> Tensor:
        """x: (B, T, C), the residual stream. Returns (B, T, C)."""
        h = self.self_attn(self.input_layernorm(x, ops), step, cache, ops)
        x = x + self.post_self_attn_layernorm(h, ops)
        h = self.mlp(self.post_attention_layernorm(x, ops), ops)
        x = x + self.post_mlp_layernorm(h, ops)
        return x


class Transformer(nn.Module):
    """A decoder-only Transformer, made as its configuration says.

    Submodules carry the names of Llama's checkpoints without the leading `model.`.
    `ops` may be exchanged at any time for other functions of the same meaning.
    """

    def __init__(self, config: ModelConfig, ops: Ops | None = None) -> None:
        super().__init__()
        self.config, self.ops = config, ops or Ops()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        blocks = (Block(config, layer, index) for index, layer in enumerate(config.layers))
        self.layers = nn.ModuleList(blocks)
        self.norm = norm_layer(config, config.hidden_size)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        counts: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Run T new tokens per row through all layers, adding their keys and values to the cache.

        ids: (B, T), int64. counts: real tokens per row, the rest being padding on the right;
        None means that all T are real. lengths: (B,) tokens of the texts that this is a part of,
        for RoPE that depends on it. Returns the hidden states after the last norm, (B, T, C):
        hand those positions whose next token is wanted to `logits`.
        About 2 FLOPs per weight and token, and 4·H·D·S per layer and token for attention.
        """
        B, T = ids.shape
        positions = cache.advance([T] * B if counts is None else counts, T)
        step = Step(positions, self.config.head_dim, ids.device, lengths)
        x = embed(ids, self.embed_tokens.weight)  # (B, T, C)
        if self.config.embedding_scale != 1:
            x = x * x.new_tensor(self.config.embedding_scale)  # rounded to the dtype, as trained
        for block in self.layers:
            x = block(x, step, cache, self.ops)
        out: Tensor = self.norm(x, self.ops)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Project hidden states (..., C) on the vocabulary: scores (..., V), not yet probabilities.

        With tied embeddings the projection is the embedding table itself. 2·C·V FLOPs a position.
        """
        if not hasattr(self, "lm_head"):
            return nn.functional.linear(hidden, self.embed_tokens.weight)
        out: Tensor = self.lm_head(hidden)
        return out
