"""Grouped-query attention after the fact: give a model fewer key/value heads, or more.

Source: Ainslie et al. 2023, arXiv 2305.13245, section 2.1.
"""

from collections.abc import Collection
from dataclasses import replace

from torch import Tensor

from minillm.model import Transformer
from minillm.weights.load import load_transformer

__all__ = ["pool_kv_heads", "repeat_kv_heads", "to_grouped"]


def pool_kv_heads(weight: Tensor, num_kv_heads: int, new_num_kv_heads: int) -> Tensor:
    """Merge neighbouring key or value heads into their mean: new head j is that of j·g … j·g + g-1.

    With g = K / K' heads merged into one, query head h, which read head h // (H/K), finds that head
    inside the one it reads now, h // (H/K').

    weight: (K·D, C) of a k or v projection, or its bias (K·D,). K' divides K.
    Returns (K'·D, C) or (K'·D,) in the weight's dtype.
    """
    if new_num_kv_heads < 1 or num_kv_heads % new_num_kv_heads:
        raise ValueError(f"{num_kv_heads} heads cannot be merged into {new_num_kv_heads}")
    group = num_kv_heads // new_num_kv_heads
    heads = weight.reshape(new_num_kv_heads, group, -1, *weight.shape[1:])  # (K', g, D, C)
    return heads.float().mean(dim=1).flatten(0, 1).to(weight.dtype)  # (K'·D, C)


def repeat_kv_heads(weight: Tensor, num_kv_heads: int, new_num_kv_heads: int) -> Tensor:
    """Write each key or value head several times in a row: 0, 0, 1, 1, not 0, 1, 0, 1.

    The model computes the same as before, because query head h reads head h // (H/K).

    weight: (K·D, C) of a k or v projection, or its bias (K·D,). K divides K'.
    Returns (K'·D, C) or (K'·D,).
    """
    if num_kv_heads < 1 or new_num_kv_heads % num_kv_heads:
        raise ValueError(f"{num_kv_heads} heads cannot be repeated to make {new_num_kv_heads}")
    heads = weight.reshape(num_kv_heads, -1, *weight.shape[1:])  # (K, D, C)
    return heads.repeat_interleave(new_num_kv_heads // num_kv_heads, dim=0).flatten(0, 1)


def to_grouped(
    model: Transformer, num_key_value_heads: int, layers: Collection[int] | None = None
) -> Transformer:
    """The model with another number of key/value heads; all other weights are shared, not copied.

    Fewer heads: each is the mean of those it replaces, another model than before. More heads: each
    is repeated, and the results stay the same.

    layers: convert these only. The model then keeps its number of heads, each pooled one written
    several times: the results of a model with fewer heads in these layers, without its savings.
    Raises ValueError for a number that does not divide, or is not divided by, the model's.
    """
    K, L = model.config.num_key_value_heads, model.config.num_hidden_layers
    chosen = range(L) if layers is None else layers
    if unknown := sorted(set(chosen) - set(range(L))):
        raise ValueError(f"layers {unknown} do not exist; the model has 0 to {L - 1}")
    regroup = pool_kv_heads if num_key_value_heads <= K else repeat_kv_heads
    weights = model.state_dict()
    for index in chosen:
        for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
            key = f"layers.{index}.self_attn.{name}"
            if key in weights:
                weights[key] = regroup(weights[key], K, num_key_value_heads)
                if layers is not None:
                    weights[key] = repeat_kv_heads(weights[key], num_key_value_heads, K)
    config = model.config
    if layers is None:
        config = replace(config, num_key_value_heads=num_key_value_heads)
    table = model.embed_tokens.weight
    grouped = load_transformer(config, weights, device=table.device, dtype=table.dtype)
    grouped.ops = model.ops
    return grouped
