"""Model families: how each one's config.json is read, and how its tensors are named.

A family is one row of `FAMILIES`: what its code fixes and its files leave unsaid. Nothing else in
minillm knows a family's name; what comes out is a `ModelConfig`, made of features.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_args

from minillm.config import (
    MAX_LAYERS,
    ExpertsConfig,
    LayerConfig,
    ModelConfig,
    RopeConfig,
    RopeType,
)

Settings = Mapping[str, Any]
"""The contents of a config.json."""

Tensor = TypeVar("Tensor")

FULL, SLIDING = "full_attention", "sliding_attention"

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu"}
ROPE_TYPES = {name: name for name in get_args(RopeType)}
# "finetuned" says how it came about, and changes nothing.
ROPE_KEYS = ("type", "finetuned", *(feature.name for feature in fields(RopeConfig)))
# Models that see images too, and what their text part is by itself.
TEXT_PARTS = {"gemma3": {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}}
SHARED_KEYS = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
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
    "quantization_config": (None,),
    "residual_multiplier": (None, 1.0),
    "shared_expert_intermediate_size": (None, 0),
    "text_config": (None,),
    "use_bidirectional_attention": (None, False),
    "vision_config": (None,),
}


@dataclass(frozen=True, slots=True)
class Family:
    """What a model family's code fixes and its config.json leaves unsaid.

    defaults: values of keys that a config.json may lack.
    features: fields of `ModelConfig`, computed from the settings.
    layer_type: FULL or SLIDING for a layer where the settings have no `layer_types`.
    window_flag: `sliding_window` counts only where `use_sliding_window` is true.
    has_rope: whether a layer has position information.
    activation: the key that names it.
    rope_types: the names of RoPE types that its files may use, and what they mean.
    rope_by_layer_type: `rope_parameters` may hold one object for each layer type.
    partial_rotary: `partial_rotary_factor` counts; the code of other families knows nothing of it.
    experts: a layer's experts.
    names: how a tensor's name differs from Llama's: replacements, made one after the other. Where
    several of our tensors get one name, the file holds them as one, stacked by rows in our order.
    """

    defaults: Settings = field(default_factory=dict)
    features: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    layer_type: Callable[[Settings, int], str] = lambda settings, index: FULL
    window_flag: bool = False
    has_rope: Callable[[Settings, int], bool] = lambda settings, index: True
    activation: str = "hidden_act"
    rope_types: Mapping[str, str] = field(default_factory=lambda: ROPE_TYPES)
    rope_by_layer_type: bool = False
    partial_rotary: bool = False
    experts: Callable[[Settings, int], ExpertsConfig | None] = lambda settings, index: None
    names: tuple[tuple[str, str], ...] = ()


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
    activation = _or_default(settings, family.activation, "silu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"{family.activation} is {activation!r:.200}; supported are {known}")
    hidden, heads = _count(settings, "hidden_size"), _count(settings, "num_attention_heads")
    num_layers = _count(settings, "num_hidden_layers", MAX_LAYERS)
    biased = _or_default(settings, "attention_bias", False)
    described: dict[str, Any] = {
        "vocab_size": _count(settings, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _count(settings, "intermediate_size"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        # Absent means multi-head attention: as many key/value heads as query heads.
        "num_key_value_heads": _or_default(settings, "num_key_value_heads", heads),
        "head_dim": _or_default(settings, "head_dim", hidden // heads),
        "max_position_embeddings": _count(settings, "max_position_embeddings"),
        "layers": tuple(_layer(settings, family, index) for index in range(num_layers)),
        "rms_norm_eps": _or_default(settings, "rms_norm_eps", 1e-6),
        "tie_word_embeddings": _or_default(settings, "tie_word_embeddings", False),
        "attention_bias": biased,
        "attention_output_bias": biased,
        "mlp_bias": _or_default(settings, "mlp_bias", False),
        "activation": ACTIVATIONS[activation],
    }
    return ModelConfig(**(described | family.features(settings)))


def family_of(settings: Settings) -> Family:
    """The row of `model_type`; ValueError where there is none."""
    model_type = settings.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type is {model_type!r:.200}; known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def checkpoint_names(model_type: str, names: Iterable[str]) -> dict[str, list[str]]:
    """For each tensor of a checkpoint, the tensors of our model that it holds, in order.

    names: those of our `Transformer`, in its order.

    >>> checkpoint_names("phi3", ["layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight"])
    {'model.layers.0.mlp.gate_up_proj.weight': ['layers.0.mlp.gate_proj.weight', \
'layers.0.mlp.up_proj.weight']}
    """
    held: dict[str, list[str]] = {}
    for name in names:
        stored = name if name.startswith("lm_head.") else f"model.{name}"
        for ours, theirs in FAMILIES[model_type].names:
            stored = stored.replace(ours, theirs)
        held.setdefault(stored, []).append(name)
    return held


def text_part(settings: Settings) -> dict[str, Any]:
    """The settings of the text part of a model that sees images too; any others as they are."""
    text = settings.get("text_config")
    if str(settings.get("model_type")) not in TEXT_PARTS or not isinstance(text, Mapping):
        return dict(settings)
    kept = {k: v for k, v in settings.items() if k.endswith("_token_id") or k in SHARED_KEYS}
    return {**text, **kept, **TEXT_PARTS[settings["model_type"]]}


def text_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of such a model's text part, named as in a model of text alone."""
    return {
        name.removeprefix("model.").removeprefix("language_model."): tensor
        for name, tensor in tensors.items()
        if name.removeprefix("model.").startswith("language_model.")
    }


def _all_sliding(settings: Settings, index: int) -> str:
    return FULL if settings.get("sliding_window") is None else SLIDING


def _qwen_layer_type(settings: Settings, index: int) -> str:
    first = _or_default(settings, "max_window_layers", 0)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ValueError(f"max_window_layers is {first!r}; a whole number is needed")
    return _all_sliding(settings, index) if index >= first else FULL


def _gemma_layer_type(settings: Settings, index: int) -> str:
    """Each sixth layer sees everything, the others a window."""
    return FULL if (index + 1) % _count(settings, "sliding_window_pattern") == 0 else SLIDING


def _gemma_features(settings: Settings) -> dict[str, Any]:
    return {
        "embedding_scale": math.sqrt(settings["hidden_size"]),
        "query_pre_attn_scalar": settings["query_pre_attn_scalar"],
        "norms": "both",
        "norm_offset": 1.0,
        "qk_norm": "head",
    }


def _smollm3_has_rope(settings: Settings, index: int) -> bool:
    listed = settings.get("no_rope_layers")  # 1 for a layer that has it
    if listed is None:
        return (index + 1) % _count(settings, "no_rope_layer_interval") != 0
    if not isinstance(listed, list) or len(listed) < settings["num_hidden_layers"]:
        raise ValueError(f"no_rope_layers is {listed!r:.200}; one number per layer is needed")
    if listed[index] not in (0, 1):
        raise ValueError(f"no_rope_layers[{index}] is {listed[index]!r}; 0 or 1 is needed")
    return bool(listed[index])


def _smollm3_layer_type(settings: Settings, index: int) -> str:
    return FULL if _smollm3_has_rope(settings, index) else _all_sliding(settings, index)


def _num_experts(settings: Settings) -> int:
    """Under the name of Mixtral, which transformers 5 writes for all, or of Qwen."""
    name = "num_experts" if settings.get("num_local_experts") is None else "num_local_experts"
    return _count(settings, name)


def _mixtral_experts(settings: Settings, index: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=_num_experts(settings),
        num_experts_per_tok=settings["num_experts_per_tok"],
        intermediate_size=settings["intermediate_size"],
    )


def _qwen3_moe_experts(settings: Settings, index: int) -> ExpertsConfig | None:
    step = _count(settings, "decoder_sparse_step")
    dense = _or_default(settings, "mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ValueError(f"mlp_only_layers is {dense!r:.200}; a list of layers is needed")
    if index in dense or (index + 1) % step:
        return None
    return ExpertsConfig(
        num_experts=_num_experts(settings),
        num_experts_per_tok=settings["num_experts_per_tok"],
        intermediate_size=settings["moe_intermediate_size"],
        norm_topk_prob=settings["norm_topk_prob"],
    )


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(defaults={"sliding_window": 4096}, layer_type=_all_sliding),
    "qwen2": Family(
        defaults={"sliding_window": 4096, "max_window_layers": 28},
        features=lambda settings: {"attention_bias": True, "attention_output_bias": False},
        layer_type=_qwen_layer_type,
        window_flag=True,
    ),
    "qwen3": Family(
        defaults={"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        features=lambda settings: {"qk_norm": "head"},
        layer_type=_qwen_layer_type,
        window_flag=True,
    ),
    "qwen3_moe": Family(
        defaults={
            "sliding_window": 4096,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        features=lambda settings: {"qk_norm": "head"},
        layer_type=_all_sliding,
        window_flag=True,
        experts=_qwen3_moe_experts,
    ),
    "smollm3": Family(
        defaults={
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        layer_type=_smollm3_layer_type,
        window_flag=True,
        has_rope=_smollm3_has_rope,
    ),
    "gemma3_text": Family(
        defaults={
            "vocab_size": 262_208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "head_dim": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
            "query_pre_attn_scalar": 256,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        features=_gemma_features,
        layer_type=_gemma_layer_type,
        activation="hidden_activation",
        rope_by_layer_type=True,
        names=(
            ("post_attention_layernorm", "pre_feedforward_layernorm"),
            ("post_self_attn_layernorm", "post_attention_layernorm"),
            ("post_mlp_layernorm", "post_feedforward_layernorm"),
        ),
    ),
    "olmo2": Family(
        defaults={"rms_norm_eps": 1e-5},
        features=lambda settings: {"qk_norm": "whole", "norms": "after"},
        names=(
            ("post_self_attn_layernorm", "post_attention_layernorm"),
            ("post_mlp_layernorm", "post_feedforward_layernorm"),
        ),
    ),
    "phi3": Family(
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
        layer_type=_all_sliding,
        # Early files call it by other names.
        rope_types={"default": "default"} | dict.fromkeys(("longrope", "su", "yarn"), "longrope"),
        partial_rotary=True,
        names=(
            (".q_proj", ".qkv_proj"),
            (".k_proj", ".qkv_proj"),
            (".v_proj", ".qkv_proj"),
            (".gate_proj", ".gate_up_proj"),
            (".up_proj", ".gate_up_proj"),
        ),
    ),
    "mixtral": Family(
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "num_experts_per_tok": 2,
        },
        layer_type=_all_sliding,
        experts=_mixtral_experts,
        names=(
            (".mlp.", ".block_sparse_moe."),
            (".gate_proj", ".w1"),
            (".down_proj", ".w2"),
            (".up_proj", ".w3"),
        ),
    ),
}


def _or_default(settings: Settings, key: str, default: Any) -> Any:
    value = settings.get(key)
    return default if value is None else value


def _count(settings: Settings, key: str, most: int = 2**31 - 1) -> int:
    """A whole number that must be there."""
    value = settings.get(key)
    if value is None:
        raise ValueError(f"config.json has no {key!r}")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{key} is {value!r:.200}; a whole number from 1 to {most:,} is needed")
    return value


def _layer(settings: Settings, family: Family, index: int) -> LayerConfig:
    """What layer `index` has: a window, RoPE, experts."""
    window = settings.get("sliding_window")
    windowed = _or_default(settings, "use_sliding_window", False)
    if not isinstance(windowed, bool):
        raise ValueError(f"use_sliding_window is {windowed!r:.200}; true or false is needed")
    if family.window_flag and not windowed:
        window = None
    layer_types = settings.get("layer_types")
    if layer_types is None:
        layer_type = family.layer_type({**settings, "sliding_window": window}, index)
    elif isinstance(layer_types, list) and len(layer_types) == settings["num_hidden_layers"]:
        layer_type = layer_types[index]
    else:
        raise ValueError("layer_types must be a list with one entry per layer")
    if layer_type not in (FULL, SLIDING):
        raise ValueError(
            f"layer_types[{index}] is {layer_type!r:.200}; supported are {FULL} and {SLIDING}"
        )
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
    trained = _trained_length(settings, values, rope_type)
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
    values["rope_theta"] = _or_default(settings, "rope_theta", 10_000.0)
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


def _trained_length(settings: Settings, values: Settings, rope_type: object) -> Any:
    """The length before stretching, in the place where transformers looks for it."""
    if rope_type == "dynamic":
        return settings["max_position_embeddings"]
    # Phi-3 keeps it beside the RoPE, where it wins.
    name = "original_max_position_embeddings"
    found = _or_default(settings, name, values.get(name))
    if found is None and rope_type in ("yarn", "longrope"):
        return settings["max_position_embeddings"]
    return found
