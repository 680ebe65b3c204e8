"""What the parity tests and the parity table measure: logits of both sides, and their difference.

The difference of two tensors is max |a - b| / max |b|: the largest error over the largest logit.
"""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from minillm.config import read_json
from minillm.families import read_config
from minillm.generate import prefill
from minillm.kv_cache.base import KVCache
from minillm.model import Transformer
from minillm.weights.load import load_transformer
from minillm.weights.safetensors import open_weights


def difference(found: Tensor, expected: Tensor) -> float:
    """max |found - expected| / max |expected|, in float32."""
    expected = expected.float()
    return float((found.float() - expected).abs().max() / expected.abs().max())


def ours(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """Our model of a folder."""
    settings = read_json(folder / "config.json")
    weights, model_type = open_weights(folder), settings["model_type"]
    return load_transformer(read_config(settings), weights, model_type=model_type, dtype=dtype)


def _forget(model: Any, ids: Tensor) -> None:
    """Undo what a long text did: transformers keeps dynamic frequencies until a short one comes."""
    model(ids[:, :1], use_cache=False)


def reference(model: Any, ids: Tensor) -> Tensor:
    """transformers' logits (B, T, V) of whole texts, without a cache."""
    _forget(model, ids)
    logits: Tensor = model(ids, use_cache=False).logits
    return logits


def reference_steps(model: Any, ids: Tensor, prompt: int) -> Tensor:
    """transformers' logits (B, T - prompt + 1, V) over its own cache: a prompt, then single tokens.

    They differ from `reference` where the rotation depends on the length so far.
    """
    _forget(model, ids)
    # Renamed in the course of version 5.
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    cache = {name: DynamicCache(config=model.config)}
    steps = [ids[:, :prompt], *ids[:, prompt:].split(1, dim=1)]
    return torch.stack([model(step, **cache).logits[:, -1] for step in steps], dim=1)


def whole(model: Transformer, ids: Tensor, cache: KVCache) -> Tensor:
    """Our logits (B, T, V) in one pass."""
    return model.logits(model(ids, cache))


def stepwise(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    more: Tensor,
    cache: KVCache,
    chunk_size: int | None = None,
) -> Tensor:
    """Our logits (B, N + 1, V): prompts in chunks, then N tokens (B, N) one at a time."""
    found = [prefill(model, prompts, cache, chunk_size)]
    found += [model.logits(model(step, cache)[:, -1]) for step in more.split(1, dim=1)]
    return torch.stack(found, dim=1)
