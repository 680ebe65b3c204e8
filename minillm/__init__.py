"""minillm: from a prompt to streamed text, in code that can be read in an evening.

Notation, used everywhere:

| letter | meaning | letter | meaning |
| --- | --- | --- | --- |
| `B` | batch | `D` | head dim |
| `T` | query length (new tokens) | `C` | model width |
| `S` | key length (tokens seen) | `F` | feed-forward width |
| `H` | query heads | `V` | vocabulary |
| `K` | key/value heads | `L` | layers |

Tensors in attention are `(B, H, T, D)`; everywhere else `(B, T, C)`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.config import ModelConfig
    from minillm.generate import decode, prefill
    from minillm.kv_cache.dense import DenseKVCache
    from minillm.kv_cache.quantized import QuantizedKVCache
    from minillm.kv_cache.sliding import SlidingKVCache
    from minillm.llm import LLM
    from minillm.model import Transformer
    from minillm.ops import Ops
    from minillm.sampling import SamplingParams
    from minillm.tokenizer import Tokenizer

__version__ = "0.1.0"

_HOMES = {
    "LLM": "minillm.llm",
    "SamplingParams": "minillm.sampling",
    "Tokenizer": "minillm.tokenizer",
    "ModelConfig": "minillm.config",
    "Transformer": "minillm.model",
    "Ops": "minillm.ops",
    "DenseKVCache": "minillm.kv_cache.dense",
    "QuantizedKVCache": "minillm.kv_cache.quantized",
    "SlidingKVCache": "minillm.kv_cache.sliding",
    "prefill": "minillm.generate",
    "decode": "minillm.generate",
}

__all__ = [
    "LLM",
    "DenseKVCache",
    "ModelConfig",
    "Ops",
    "QuantizedKVCache",
    "SamplingParams",
    "SlidingKVCache",
    "Tokenizer",
    "Transformer",
    "decode",
    "prefill",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: `import minillm` alone, `minillm pull` and `minillm tokenize` need no
    # torch, which takes seconds to load.
    if name not in _HOMES:
        raise AttributeError(f"module 'minillm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
