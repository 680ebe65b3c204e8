"""What a step of the model needs: floating-point operations, and bytes of memory.

Counted, not measured, and no implementation's habits in it: the least that any must do.

- Weights are read once per step, whatever the batch; of a mixture of experts those that are chosen.
- The cache is read and written per row.
- A head is read where a position is scored. With tied embeddings that is the whole table; of a
  table of its own an embedding takes one row per token.
- Activations are left out: they are small, and stay in caches where a kernel is good. So are the
  FLOPs of norms, RoPE, softmax and the feed-forward gate, under 1 % of a large model's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from minillm.bench.counts import at_least
from minillm.config import LayerConfig, ModelConfig
from minillm.kv_cache.quantized import BLOCK, QuantizedKVCache

if TYPE_CHECKING:
    from minillm.llm import LLM


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step, or several, take. cache_bytes: those read, and those written."""

    flops: float
    weight_bytes: float
    cache_bytes: float

    @property
    def bytes(self) -> float:
        """All that passes between memory and processor."""
        return self.weight_bytes + self.cache_bytes

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.weight_bytes + other.weight_bytes,
            self.cache_bytes + other.cache_bytes,
        )


def step_cost(
    model: "LLM | ModelConfig",
    batch: int = 1,
    new_tokens: int = 1,
    context: int = 0,
    *,
    scored: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Cost:
    """What one forward pass needs: `new_tokens` per row on top of `context` tokens in the cache.

    FLOPs: 2 per weight and token, 4·H·D per layer, query and key seen, 2·C·V per position scored.
    A decode step is new_tokens = 1; a prefill is context = 0.

    model: an `LLM`, whose weights and cache count by the bytes that they have here, quantized or
    not; or a `ModelConfig`, for a model in `dtype` altogether. scored: positions per row that are
    projected to the vocabulary. Raises ValueError for counts below 1 (context, scored: below 0).
    """
    at_least(1, batch=batch, new_tokens=new_tokens)
    at_least(0, context=context, scored=scored)
    config = model if isinstance(model, ModelConfig) else model.config
    tokens = batch * new_tokens
    if isinstance(model, ModelConfig):
        weights = _plain_weights(model, dtype)
    else:
        weights = _real_weights(model)
    stored = _stored(model, dtype)
    weight_bytes = weights.shared + weights.head * bool(scored) + weights.row * tokens
    flops = 2 * config.hidden_size * config.vocab_size * batch * scored
    cache_bytes = 0.0
    for layer, expert_bytes in zip(config.layers, weights.experts, strict=True):
        weight_bytes += expert_bytes * _share_of_experts(layer, tokens)
        flops += 2 * _weights_at_work(config, layer) * tokens
        pairs = batch * keys_seen(layer, new_tokens, context)
        flops += 4 * config.num_attention_heads * config.head_dim * pairs
        cache_bytes += batch * stored.traffic(layer, new_tokens, context)
    return Cost(flops, weight_bytes, cache_bytes)


def prefill_cost(model: "LLM", batch: int, prompt_tokens: int) -> Cost:
    """What reading prompts takes: steps of `LLM.chunk_size`, and one position scored per row.

    Raises ValueError for counts below 1.
    """
    at_least(1, batch=batch, prompt_tokens=prompt_tokens)
    size, total = model.chunk_size(batch), Cost(0, 0, 0)
    for start in range(0, prompt_tokens, size):
        count = min(size, prompt_tokens - start)
        last = start + count == prompt_tokens
        total += step_cost(model, batch, count, start, scored=int(last))
    return total


def keys_seen(layer: LayerConfig, new_tokens: int, context: int) -> int:
    """Pairs of a query and a key that it sees, in one row and one head of a layer.

    Query i sees context + i + 1 tokens, or of a window with sinks at most as many as those hold.
    """
    most = _reach(layer)
    first, last = context + 1, context + new_tokens
    if most is None or last <= most:
        return new_tokens * (first + last) // 2
    growing = max(most - context, 0)  # queries that still see everything
    return growing * (first + context + growing) // 2 + (new_tokens - growing) * most


class _Weights(NamedTuple):
    """Bytes: of what every step reads, of the head, of a row of the embedding, of each layer's
    experts. A row is 0 where the head is the embedding: it is read whole."""

    shared: float
    head: float
    row: float
    experts: Sequence[float]


class _Stored(NamedTuple):
    """Bytes of the cache in one layer and row: of a token as it is, and of a full block of codes.

    block: None where all tokens are as they are; else bytes of `BLOCK` tokens.
    """

    token: float
    block: float | None

    def traffic(self, layer: LayerConfig, new_tokens: int, context: int) -> float:
        """Bytes of the keys and values that a step reads and writes in one row.

        Old ones that any query sees are read, new ones written. New ones are not read: a query gets
        them as activations.
        """
        most = _reach(layer)
        old, new = context, new_tokens
        if most is not None:
            old, new = min(context, most - 1), min(new_tokens, most)
        if self.block is None:
            return (old + new) * self.token
        # The last context % 32 tokens are exact, in the open block. A block that gets full is
        # written as codes, and only what is left after the last such block is exact again.
        after = context + new_tokens
        filled = after // BLOCK - context // BLOCK
        exact = min(context % BLOCK, old) + (after % BLOCK if filled else new_tokens)
        codes = (old - min(context % BLOCK, old)) / BLOCK + filled
        return exact * self.token + codes * self.block


def _reach(layer: LayerConfig) -> int | None:
    """The most tokens that a query of this layer sees; None where it sees all."""
    return None if layer.sliding_window is None else layer.sliding_window + layer.sinks


def _weights_at_work(config: ModelConfig, layer: LayerConfig) -> int:
    """Weights of a layer's matrices that one token is multiplied with."""
    C, D = config.hidden_size, config.head_dim
    attention = 2 * C * D * (config.num_attention_heads + config.num_key_value_heads)
    if layer.experts is None:
        return attention + 3 * C * config.intermediate_size
    chosen = layer.experts.num_experts_per_tok * 3 * C * layer.experts.intermediate_size
    return attention + chosen + C * layer.experts.num_experts


def _share_of_experts(layer: LayerConfig, tokens: int) -> float:
    """How much of a layer's experts is read, where no two tokens choose the same ones."""
    if layer.experts is None:
        return 0
    return min(1, tokens * layer.experts.num_experts_per_tok / layer.experts.num_experts)


def _plain_weights(config: ModelConfig, dtype: torch.dtype) -> _Weights:
    """Of a model with all weights in one dtype."""
    size, C = dtype.itemsize, config.hidden_size
    table = config.vocab_size * C * size
    experts = [
        3 * C * x.experts.intermediate_size * x.experts.num_experts * size if x.experts else 0.0
        for x in config.layers
    ]
    tied = config.tie_word_embeddings
    rest = config.num_parameters() * size - table * (1 if tied else 2) - sum(experts)
    return _Weights(rest, table, 0 if tied else C * size, experts)


def _real_weights(llm: "LLM") -> _Weights:
    """Of a model that is there: parameters and buffers as they are stored."""
    model = llm.model
    experts = [_nbytes(getattr(block.mlp, "experts", None)) for block in model.layers]
    shared = _nbytes(model.layers) + _nbytes(model.norm) - sum(experts)
    table = _nbytes(model.embed_tokens)
    if not hasattr(model, "lm_head"):
        return _Weights(shared, table, 0, experts)
    # A head on the embedding's own blocks holds the same table.
    tied = llm.config.tie_word_embeddings
    row = 0 if tied else table / llm.config.vocab_size
    return _Weights(shared, _nbytes(model.lm_head), row, experts)


def _nbytes(module: nn.Module | None) -> int:
    """Bytes of all parameters and buffers, each once."""
    if module is None:
        return 0
    return sum(x.nbytes for x in [*module.parameters(), *module.buffers()])


def _stored(model: "LLM | ModelConfig", dtype: torch.dtype) -> _Stored:
    """What the cache takes, asked of small ones: with no full block, and with one."""
    if isinstance(model, ModelConfig):
        return _Stored(model.cache_bytes_per_token(dtype.itemsize) / len(model.layers), None)
    layers = len(model.config.layers)
    one, block = (model.new_cache(1, capacity) for capacity in (1, BLOCK))
    if isinstance(one, QuantizedKVCache):
        return _Stored(one.nbytes / layers / BLOCK, (block.nbytes - one.nbytes) / layers)
    return _Stored(one.nbytes / layers, None)
