"""KV caches: one contract (`base`), one file for each way to keep it."""

import torch

from minillm.config import ModelConfig
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.sliding import SlidingKVCache


def new_cache(
    config: ModelConfig,
    batch_size: int,
    capacity: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    kind: str | None = None,
) -> KVCache:
    """An empty cache of the kind that fits the model: sliding where a layer has a window."""
    windowed = any(layer.sliding_window is not None for layer in config.layers)
    cache = SlidingKVCache if windowed else DenseKVCache
    return cache(config, batch_size, capacity, dtype=dtype, device=device)
