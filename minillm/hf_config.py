"""Read a Hugging Face config.json, in the spelling of transformers 4 or 5."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from minillm.config import MAX_LAYERS, LayerConfig, ModelConfig, RopeConfig
from minillm.families import (
    FULL,
    SLIDING,
    Family,
    Settings,
    count,
    family_of,
    or_default,
    text_part,
)
from minillm.hf_quantization import read_packing

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu"}
# "finetuned" says how it came about, and changes nothing.
ROPE_KEYS = ("type", "finetuned", *(feature.name for feature in fields(RopeConfig)))
# Keys that change the result in a way that minillm does not compute, and the values that do not.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (None, False),
    "attention_chunk_size": (None,),
    "attention_multiplier": (None, 1.0),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "compression_config": (None,),
    "embedding_multiplier": (None, 1.0),
    "final_logit_softcapping": (None,),
    "is_causal": (None, True),
    "is_encoder_decoder": (None, False),
    "kv_lora_rank": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "n_shared_experts": (None, 0),
    "q_lora_rank": (None,),
    "residual_multiplier": (None, 1.0),
    "shared_expert_intermediate_size": (None, 0),
    "text_config": (None,),
    "use_bidirectional_attention": (None, False),
    "use_mrope": (None, False),
    "vision_config": (None,),
}


def read_config(settings: Settings) -> ModelConfig:
    """The model that the contents of a config.json describe, in transformers 4's or 5's spelling.

    Raises ValueError for a missing key, a value out of range, or a feature that minillm lacks: a
    model is refused by name, never run wrongly.
    """
    settings = text_part(settings)
    family = family_of(settings)
    settings = {**family.defaults, **settings}
    for key, neutral in NEUTRAL.items():
        if settings.get(key) not in neutral:
            raise ValueError(f"{key} is {settings[key]!r:.200}; supported is {neutral[-1]!r}")
    read_packing(settings)  # how the weights are packed changes nothing here, if it is known
    activation = or_default(settings, family.activation, "silu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{family.activation} is {activation!r:.200}; supported are {known}")
    hidden, heads = count(settings, "hidden_size"), count(settings, "num_attention_heads")
    num_layers = count(settings, "num_hidden_layers", MAX_LAYERS)
    biased = or_default(settings, "attention_bias", False)
    described: dict[str, Any] = {
        "vocab_size": count(settings, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": count(settings, "intermediate_size"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        # Absent means multi-head attention: as many key/value heads as query heads.
        "num_key_value_heads": or_default(settings, "num_key_value_heads", heads),
        "head_dim": or_default(settings, "head_dim", hidden // heads),
        "max_position_embeddings": count(settings, "max_position_embeddings"),
        "layers": tuple(_layer(settings, family, index) for index in range(num_layers)),
        "rms_norm_eps": or_default(settings, "rms_norm_eps", 1e-6),
        "tie_word_embeddings": or_default(settings, "tie_word_embeddings", False),
        "attention_bias": biased,
        "attention_output_bias": biased,
        "mlp_bias": or_default(settings, "mlp_bias", False),
        "activation": ACTIVATIONS[activation],
    }
    return ModelConfig(**(described | family.features(settings)))


def _layer(settings: Settings, family: Family, index: int) -> LayerConfig:
    """What layer `index` has: a window, RoPE, experts."""
    window = settings.get("sliding_window")
    windowed = or_default(settings, "use_sliding_window", False)
    if not isinstance(windowed, bool):
        raise ValueError(f"use_sliding_window is {windowed!r:.200}; true or false is needed")
    if family.window_flag and not windowed:
        window = None
    layer_type = family.layer_type({**settings, "sliding_window": window}, index)
    listed = settings.get("layer_types")
    if listed is not None:
        if not isinstance(listed, list) or len(listed) != settings["num_hidden_layers"]:
            raise ValueError("layer_types must be a list with one entry per layer")
        known = (FULL, SLIDING) if family.layer_types else (layer_type,)
        if listed[index] not in known:
            supported = " and ".join(known)
            raise ValueError(
                f"layer_types[{index}] is {listed[index]!r:.200}; it may be {supported}"
            )
        layer_type = listed[index]
    if layer_type == SLIDING and window is None:
        raise ValueError(f"layer_types[{index}] is {SLIDING} without a sliding_window")
    return LayerConfig(
        sliding_window=window if layer_type == SLIDING else None,
        rope=_rope(settings, family, layer_type) if family.has_rope(settings, index) else None,
        experts=family.experts(settings, index),
    )


def _rope(settings: Settings, family: Family, layer_type: str) -> RopeConfig:
    """The RoPE of a layer."""
    values = _rope_settings(settings, family, layer_type)
    # The older spelling of the key is `type`.
    rope_type = values.get("rope_type", values.get("type", "default"))
    if not isinstance(rope_type, str) or rope_type not in family.rope_types:
        known = ", ".join(family.rope_types)
        raise ValueError(f"rope_type is {rope_type!r:.200}; supported are {known}")
    rope_type = family.rope_types[rope_type]
    if values["rope_theta"] is None:
        raise ValueError("rope_theta is None; a number is needed")
    rotated = values["partial_rotary_factor"]
    if rotated not in (None, 1.0) and not family.partial_rotary:
        raise ValueError(f"partial_rotary_factor is {rotated!r:.200}; this family needs 1.0")
    for key, value in values.items():
        if value is not None and key not in ROPE_KEYS:
            raise ValueError(f"{key} of a RoPE is {value!r:.200}; known are {', '.join(ROPE_KEYS)}")
    named = {f.name: values[f.name] for f in fields(RopeConfig) if values.get(f.name) is not None}
    for key in ("short_factor", "long_factor"):
        if not isinstance(named.get(key, []), list):
            raise ValueError(f"{key} is {named[key]!r:.200}; a list of numbers is needed")
        named[key] = tuple(named.get(key, ()))
    trained = _trained_length(settings, values, family, rope_type)
    if rope_type == "longrope" and "factor" not in named and isinstance(trained, int) and trained:
        named["factor"] = max(settings["max_position_embeddings"] / trained, 1.0)
    needed = ["low_freq_factor", "high_freq_factor"] if rope_type == "llama3" else []
    needed += ["factor"] if rope_type != "default" else []
    if lacking := [key for key in needed if key not in named]:
        raise ValueError(f"rope_type {rope_type!r} needs a {' and a '.join(lacking)}")
    named |= {"rope_type": rope_type, "original_max_position_embeddings": trained}
    return RopeConfig(**named)


def _rope_settings(settings: Settings, family: Family, layer_type: str) -> dict[str, Any]:
    """What the file says of a layer's RoPE, in one object.

    It stands in `rope_parameters` (transformers 5) or in `rope_theta` and `rope_scaling` (4); in
    some families with an object per layer type, or in keys of its own for the local layers.
    """
    found, scaling = settings.get("rope_parameters"), settings.get("rope_scaling")
    for value in (found, scaling):
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(
                f"rope_parameters / rope_scaling is {value!r:.200}; an object is needed"
            )
    if found is not None and scaling is not None and found != scaling:
        raise ValueError(
            f"rope_parameters is {found!r:.200}, but rope_scaling {scaling!r:.200}: only one counts"
        )
    values: dict[str, Any] = {"partial_rotary_factor": settings.get("partial_rotary_factor")}
    values["rope_theta"] = or_default(settings, "rope_theta", 10_000.0)
    if family.rope_by_layer_type and layer_type == SLIDING:
        values["rope_theta"] = settings["rope_local_base_freq"]
    by_type = {key: (found or scaling or {}).get(key) for key in (FULL, SLIDING)}
    if any(value is not None for value in by_type.values()):
        chosen = by_type[layer_type]
        if not family.rope_by_layer_type or not isinstance(chosen, Mapping):
            raise ValueError(
                f"rope_parameters has {by_type!r:.200}; one object for each layer type is "
                f"supported only in some families, and {layer_type} needs one"
            )
        return values | dict(chosen)
    if not family.rope_by_layer_type:
        return values | dict(found or scaling or {})
    if found:
        raise ValueError(f"rope_parameters is {found!r:.200}; one object per layer type is needed")
    return values if layer_type == SLIDING else values | dict(scaling or {})


def _trained_length(settings: Settings, values: Settings, family: Family, rope_type: str) -> Any:
    """The length before stretching, in the place where transformers looks for it."""
    if rope_type == "dynamic":
        return settings["max_position_embeddings"]
    name = "original_max_position_embeddings"
    # Phi-3 keeps it beside the RoPE, where it wins. To the others it means nothing there.
    found = settings.get(name) if name in family.defaults else None
    found = values.get(name) if found is None else found
    if found is None and rope_type in ("yarn", "longrope"):
        return settings["max_position_embeddings"]
    return found
