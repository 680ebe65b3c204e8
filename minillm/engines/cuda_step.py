"""One step on a CUDA device: a token per row, or prompts from their beginnings.

Nothing in a decode step depends on the values that it works on: no tensor is read by the CPU, and
shapes depend on the number of rows and on the room of the cache only. So it can be recorded once as
a CUDA graph and replayed for every token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.config import ModelConfig, RopeConfig
from minillm.engines.cuda_coded import CodedPlaces
from minillm.engines.cuda_kernels import Kernels
from minillm.engines.cuda_weights import Layer, Norm, Weights
from minillm.kv_cache.quantized import BLOCK
from minillm.layers.attention import attention
from minillm.layers.rope import rope_tables


@dataclass(frozen=True, slots=True)
class Places:
    """Where one layer keeps its keys and values: (B, K, places, D) each.

    ring: places of the ring behind the sinks, see `ring_place`; None where a token's place is its
    position.
    """

    keys: Tensor
    values: Tensor
    ring: int | None = None


class RopeTables:
    """cos and sin of every position up to `length`, (length, R/2) each, on a device.

    A kernel looks its row up there, so that no step brings any from the CPU. The length of a text,
    on which some rotations depend, is the position + 1: that of a step of one token.
    """

    def __init__(
        self, ropes: set[RopeConfig], head_dim: int, length: int, device: torch.device
    ) -> None:
        self.length = length
        positions = torch.arange(length)[:, None]
        self.tables = {
            rope: [x.reshape(length, -1).to(device) for x in rope_tables(positions, rope, head_dim)]
            for rope in ropes
        }

    def of(self, rope: RopeConfig | None) -> tuple[Tensor | None, Tensor | None]:
        """cos and sin of a layer, None without rotation."""
        if rope is None:
            return None, None
        cos, sin = self.tables[rope]
        return cos, sin


def run_step(
    weights: Weights,
    kernels: Kernels,
    tables: RopeTables,
    cache: Sequence[Places | CodedPlaces],
    ids: Tensor,
    positions: Tensor,
) -> Tensor:
    """Run T new tokens per row through all layers, adding their keys and values to the cache.

    ids, positions: (B, T), int64, on the device; T is 1, or the rows are texts from their
    beginnings. A token at position -1 is padding: it writes nothing, and its result means nothing.
    Returns the hidden states after the last norm, (B, T, C).
    """
    layers = weights.layers
    x = weights.embedding.index_select(0, ids.flatten().clamp(min=0))  # (B·T, C)
    if weights.embedding_scale != 1:
        x = x * weights.embedding_scale
    h = _norm(x, layers[0].before_attention, kernels)
    following = [*(layer.before_attention for layer in layers[1:]), weights.norm]
    for layer, places, norm in zip(layers, cache, following, strict=True):
        h = _attend(weights.config, layer, kernels, tables, places, positions, h)
        h, x = _add(h, x, layer.after_attention, layer.before_mlp, kernels)
        h = layer.down(getattr(kernels, layer.gating)(layer.gate_up(h, kernels)), kernels)
        h, x = _add(h, x, layer.after_mlp, norm, kernels)
    return h.view(*ids.shape, -1)


def _norm(x: Tensor, norm: Norm | None, kernels: Kernels) -> Tensor:
    return x if norm is None else norm(x, kernels)


def _add(
    h: Tensor, x: Tensor, after: Norm | None, before: Norm | None, kernels: Kernels
) -> tuple[Tensor, Tensor]:
    """Add what half a layer gives, h, to the residual stream x, and normalise it for the next half.

    after: norm of h. before: norm of the sum. Returns that, and the sum.
    """
    h = _norm(h, after, kernels)
    if before is None:
        x = x + h
        return x, x
    h, x = kernels.add_rms_norm(h, x, before.weight, before.eps)
    return h, x


def _attend(
    config: ModelConfig,
    layer: Layer,
    kernels: Kernels,
    tables: RopeTables,
    places: Places | CodedPlaces,
    positions: Tensor,
    h: Tensor,
) -> Tensor:
    """The attention of one layer, (B·T, C), from its normalised input; fills the cache."""
    (B, T), D = positions.shape, config.head_dim
    H, K = config.num_attention_heads, config.num_key_value_heads
    q, k, v = torch.split(layer.qkv(h, kernels), [H * D, K * D, K * D], dim=1)
    q, k = _norm(q, layer.q_norm, kernels), _norm(k, layer.k_norm, kernels)
    q, k, v = (y.view(B, T, -1, D).transpose(1, 2) for y in (q, k, v))  # (B, heads, T, D)
    turned, scores = tables.of(layer.config.rope), (layer.scale, layer.config.sliding_window)
    sinks, held = layer.config.sinks, positions[:, 0] + 1
    if isinstance(places, CodedPlaces):
        q = kernels.rope_and_cache(q, k, v, *turned, *places.open, positions, BLOCK)
        places.round()
        out = kernels.quantized_decode_attention(q, *places.parts(), held, *scores, sinks)
    else:
        keys, values, ring = places.keys, places.values, places.ring
        q = kernels.rope_and_cache(q, k, v, *turned, keys, values, positions, ring, sinks)
        if T == 1:
            out = kernels.decode_attention(q, keys, values, held, *scores, sinks, ring)
        else:
            out = _attend_to_prompt(q, keys[:, :, :T], values[:, :, :T], layer.scale)
    return layer.out(out.transpose(1, 2).reshape(B * T, H * D), kernels)


def _attend_to_prompt(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of a prompt to itself, q (B, H, T, D), k and v (B, K, T, D).

    Padding stands behind a text, so that no token of it looks there. Two kernels of PyTorch never
    write the (T, T) scores, and the one that also takes float32 and GPUs before sm_80 does not take
    groups of heads: there keys and values are repeated.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and not _has_flash(q.device, q.dtype):
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    return attention(q, k, v, None, scale)


def _has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's flash kernel runs there; that of a CPU takes every type."""
    if device.type != "cuda":
        return True
    return dtype != torch.float32 and torch.cuda.get_device_capability(device) >= (8, 0)
