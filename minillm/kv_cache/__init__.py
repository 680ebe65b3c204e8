"""KV caches: one contract (`base`), one file for each way to keep it."""

import torch

from minillm.config import ModelConfig
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.kv_cache.sliding import SlidingKVCache

# Kinds of quantized cache by name, and the bits of each.
QUANTIZED = {"int8": 8, "int4": 4}
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def new_cache(
    config: ModelConfig,
    batch_size: int,
    capacity: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    kind: str | None = None,
) -> KVCache:
    """An empty cache of the kind that fits the model: sliding where a layer has a window.

    kind: "int8" or "int4" for a `QuantizedKVCache`, which keeps every token, windows or not;
    "float16", "bfloat16" or "float32" to store keys and values in another dtype than the model's.
    Raises ValueError for any other, and for what `QuantizedKVCache` refuses.
    """
    if kind in QUANTIZED:
        bits = QUANTIZED[kind]
        return QuantizedKVCache(config, batch_size, capacity, bits=bits, dtype=dtype, device=device)
    if kind is not None:
        if kind not in DTYPES:
            known = ", ".join([*QUANTIZED, *DTYPES])
            raise ValueError(f"the kind of KV cache is {kind!r}; known are {known}")
        dtype = DTYPES[kind]
    windowed = any(layer.sliding_window is not None for layer in config.layers)
    fitting = SlidingKVCache if windowed else DenseKVCache
    return fitting(config, batch_size, capacity, dtype=dtype, device=device)
