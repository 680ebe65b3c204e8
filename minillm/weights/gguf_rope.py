"""The RoPE of a GGUF file as the `rope_parameters` of a Hugging Face config.json."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from minillm.weights.gguf_metadata import Metadata, shortest
from minillm.weights.gguf_tensor import Array, GGUFTensor

KEYS = {
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
}
# The tensors that divide the frequencies: at every length; up to the trained length, and beyond.
ALWAYS, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"


def rope_parameters(
    metadata: Metadata, tensors: Mapping[str, GGUFTensor], rotary: int
) -> dict[str, Any]:
    """Base and rescaling of the frequencies, in the spelling of transformers 5.

    Args: `tensors`, those of the file, among them perhaps factors. `rotary`, the number of a head's
        dimensions that are rotated.
    Raises: ValueError for a kind of rescaling that config.json could not express.
    """
    base = {"rope_theta": metadata.decimal("rope.freq_base", 10_000.0)}
    factors = {
        name: _factors(name, tensors[name], rotary // 2)
        for name in (ALWAYS, SHORT, LONG)
        if name in tensors
    }
    kind = metadata.get("rope.scaling.type", "longrope" if LONG in factors else "linear")
    if ALWAYS in factors and _stretch(metadata) == 1:
        kind = "factors"
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise ValueError(
            f"{metadata.architecture}.rope.scaling.type is {kind!r:.80}; known are none, linear, "
            "yarn and longrope"
        )
    attention = metadata.decimal("rope.scaling.attn_factor", 1.0)
    if attention != 1 and kind not in ("yarn", "longrope"):
        raise ValueError(
            f"{metadata.architecture}.rope.scaling.attn_factor is {attention}; without yarn or "
            "longrope it cannot be carried over"
        )
    return SCALINGS[kind](metadata, base, factors)


def _factors(name: str, tensor: GGUFTensor, number: int) -> Array:
    if tensor.shape != (number,):
        raise ValueError(f"{name} is {list(tensor.shape)}; {[number]} is needed")
    values: Array = tensor.to(dtype=torch.float32).numpy()
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{name} has values that are not above 0")
    return values


def _stretch(metadata: Metadata) -> float:
    """How many times longer than trained; an older key counts where the newer one is absent."""
    return metadata.decimal("rope.scaling.factor", metadata.get("rope.scale_linear", 1.0))


def _unscaled(_: Metadata, base: dict[str, Any], factors: Mapping[str, Array]) -> dict[str, Any]:
    if factors:
        raise ValueError(f"{', '.join(factors)} without a rope.scaling.type that uses them")
    return {"rope_type": "default"} | base


def _linear(
    metadata: Metadata, base: dict[str, Any], factors: Mapping[str, Array]
) -> dict[str, Any]:
    if (factor := _stretch(metadata)) == 1:
        return _unscaled(metadata, base, factors)
    return _unscaled(metadata, base, factors) | {"rope_type": "linear", "factor": factor}


def _yarn(metadata: Metadata, base: dict[str, Any], factors: Mapping[str, Array]) -> dict[str, Any]:
    """YaRN. llama.cpp multiplies cosine and sine by (0.1 ln(factor) + 1) · attn_factor."""
    factor = _stretch(metadata)
    if (mix := metadata.get("rope.scaling.yarn_ext_factor", 1.0)) != 1:
        raise ValueError(
            f"{metadata.architecture}.rope.scaling.yarn_ext_factor is {mix!r:.80}; supported is 1"
        )
    found = _unscaled(metadata, base, factors) | {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": _trained_length(metadata),
    }
    for key in ("beta_fast", "beta_slow"):
        if metadata.get(f"rope.scaling.yarn_{key}") is not None:
            found[key] = metadata.decimal(f"rope.scaling.yarn_{key}")
    # The converter writes Hugging Face's attention_factor, the whole product, as yarn_attn_factor.
    if metadata.get("rope.scaling.yarn_attn_factor") is not None:
        found["attention_factor"] = metadata.decimal("rope.scaling.yarn_attn_factor")
    elif (more := metadata.decimal("rope.scaling.attn_factor", 1.0)) != 1:
        found["attention_factor"] = more * (0.1 * math.log(factor) + 1 if factor > 1 else 1)
    return found


def _longrope(
    metadata: Metadata, base: dict[str, Any], factors: Mapping[str, Array]
) -> dict[str, Any]:
    if factors.keys() != {SHORT, LONG}:
        raise ValueError(f"longrope needs the tensors {SHORT} and {LONG}")
    return base | {
        "rope_type": "longrope",
        "short_factor": _decimals(factors[SHORT]),
        "long_factor": _decimals(factors[LONG]),
        "original_max_position_embeddings": _trained_length(metadata),
        "attention_factor": metadata.decimal("rope.scaling.attn_factor", 1.0),
    }


def _always(
    metadata: Metadata, base: dict[str, Any], factors: Mapping[str, Array]
) -> dict[str, Any]:
    """Llama 3.1's rescaling, which a GGUF file gives as factors alone: find what they came from.

    Meta uses low and high frequency factors of 1 and 4 and trained on a power of 2 of tokens. Other
    factors become a longrope whose long and short factors are the same.
    """
    if factors.keys() != {ALWAYS}:
        raise ValueError(f"{ALWAYS} beside other RoPE factors")
    values = factors[ALWAYS]
    if (values == 1).all():
        return {"rope_type": "default"} | base
    stretch = float(f"{values.max():.6g}")
    frequencies = base["rope_theta"] ** (-np.arange(len(values)) / len(values))
    for length in (2**power for power in range(4, 18)):
        blend = np.clip((length * frequencies / math.tau - 1) / (4 - 1), 0, 1)
        if np.allclose(values, 1 / ((1 - blend) / stretch + blend), rtol=1e-5):
            return base | {
                "rope_type": "llama3",
                "factor": stretch,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": length,
            }
    return base | {
        "rope_type": "longrope",
        "short_factor": _decimals(values),
        "long_factor": _decimals(values),
        "original_max_position_embeddings": _trained_length(metadata),
        "attention_factor": 1.0,
    }


def _trained_length(metadata: Metadata) -> int:
    trained = metadata.size("context_length")
    return metadata.size("rope.scaling.original_context_length", trained)


def _decimals(values: Array) -> list[float]:
    return [shortest(value) for value in values]


SCALINGS = {
    "none": _unscaled,
    "linear": _linear,
    "yarn": _yarn,
    "longrope": _longrope,
    "factors": _always,
}
