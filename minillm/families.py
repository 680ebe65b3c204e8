"""Model families: what each one's config.json leaves unsaid, and how its tensors are named.

A family is one row of `FAMILIES`: what its code fixes and its files leave unsaid. Nothing else in
minillm knows a family's name: `minillm.hf_config` makes a `ModelConfig` of features with it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from minillm.config import ExpertsConfig, RopeType

Settings = Mapping[str, Any]
"""The contents of a config.json."""

Tensor = TypeVar("Tensor")

FULL, SLIDING = "full_attention", "sliding_attention"

ROPE_TYPES = {name: name for name in get_args(RopeType)}
# Models that see images too, and what their text part is by itself.
TEXT_PARTS = {"gemma3": {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}}
SHARED_KEYS = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")


@dataclass(frozen=True, slots=True)
class Family:
    """What a model family's code fixes and its config.json leaves unsaid.

    defaults: values of keys that a config.json may lack.
    features: fields of `ModelConfig`, computed from the settings.
    layer_type: FULL or SLIDING for a layer where the settings have no `layer_types`.
    layer_types: whether the settings may have one; otherwise all layers are alike.
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
    layer_types: bool = False
    window_flag: bool = False
    has_rope: Callable[[Settings, int], bool] = lambda settings, index: True
    activation: str = "hidden_act"
    rope_types: Mapping[str, str] = field(default_factory=lambda: ROPE_TYPES)
    rope_by_layer_type: bool = False
    partial_rotary: bool = False
    experts: Callable[[Settings, int], ExpertsConfig | None] = lambda settings, index: None
    names: tuple[tuple[str, str], ...] = ()


def or_default(settings: Settings, key: str, default: Any) -> Any:
    """What the settings say, or the default where they say nothing or null."""
    value = settings.get(key)
    return default if value is None else value


def count(settings: Settings, key: str, most: int = 2**31 - 1) -> int:
    """A whole number that must be there; ValueError where it is not, or out of range."""
    value = settings.get(key)
    if value is None:
        raise ValueError(f"config.json has no {key!r}")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{key} is {value!r:.200}; a whole number from 1 to {most:,} is needed")
    return value


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
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        path = name.removeprefix("model.")
        if path.startswith("language_model."):
            path = path.removeprefix("language_model.")
            if path in found:
                raise ValueError(f"weights do not fit: {name} stands there under two names")
            found[path] = tensor
    return found


def _all_sliding(settings: Settings, index: int) -> str:
    return FULL if settings.get("sliding_window") is None else SLIDING


def _qwen_layer_type(settings: Settings, index: int) -> str:
    first = or_default(settings, "max_window_layers", 0)
    if isinstance(first, bool) or not isinstance(first, int):
        raise ValueError(f"max_window_layers is {first!r}; a whole number is needed")
    return _all_sliding(settings, index) if index >= first else FULL


def _gemma_layer_type(settings: Settings, index: int) -> str:
    """Each sixth layer sees everything, the others a window."""
    return FULL if (index + 1) % count(settings, "sliding_window_pattern") == 0 else SLIDING


def _gemma_features(settings: Settings) -> dict[str, Any]:
    return {
        "embedding_scale": math.sqrt(settings["hidden_size"]),
        "query_pre_attn_scalar": count(settings, "query_pre_attn_scalar"),
        "norms": "both",
        "norm_offset": 1.0,
        "qk_norm": "head",
    }


def _smollm3_has_rope(settings: Settings, index: int) -> bool:
    listed = settings.get("no_rope_layers")  # 1 for a layer that has it
    if listed is None:
        return (index + 1) % count(settings, "no_rope_layer_interval") != 0
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
    return count(settings, name)


def _mixtral_experts(settings: Settings, index: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=_num_experts(settings),
        num_experts_per_tok=settings["num_experts_per_tok"],
        intermediate_size=settings["intermediate_size"],
    )


def _qwen3_moe_experts(settings: Settings, index: int) -> ExpertsConfig | None:
    step = count(settings, "decoder_sparse_step")
    dense = or_default(settings, "mlp_only_layers", [])
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
        layer_types=True,
        window_flag=True,
    ),
    "qwen3": Family(
        defaults={"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        features=lambda settings: {"qk_norm": "head"},
        layer_type=_qwen_layer_type,
        layer_types=True,
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
        layer_types=True,
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
        layer_types=True,
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
