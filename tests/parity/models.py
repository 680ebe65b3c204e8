"""Tiny random checkpoints of every family, written by transformers and opened by both sides."""

import copy
import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

VOCAB = 97
WINDOW = 9  # tokens that a layer with a sliding window sees
TRAINED = 16  # the original RoPE length of stretched models, in tokens
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,  # 48 / 6 = 8 values per head: a width at which a wrong order shows
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
THETA = {"rope_theta": 10_000.0}
LINEAR = THETA | {"rope_type": "linear", "factor": 4.0}
DYNAMIC = THETA | {"rope_type": "dynamic", "factor": 2.0}
YARN = THETA | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LLAMA3 = {
    "rope_theta": 500_000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    """Phi-3's stretch: a factor per pair, one list up to the original length, one beyond it."""
    return THETA | {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.25 * i for i in range(pairs)],
        "long_factor": [1.5 + 2.0 * i for i in range(pairs)],
        "original_max_position_embeddings": TRAINED,
        **more,
    }


QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 24,  # not the width of a head
    "num_hidden_layers": 4,
    "sliding_window_pattern": 3,  # local, local, global, local
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}
PHI = {"original_max_position_embeddings": TRAINED}
MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}


@dataclass(frozen=True)
class Case:
    """One tiny model.

    family: its row of the table. kind: the first part of transformers' class names.
    settings: what its configuration adds to SIZES. trained: the original RoPE length, where the
    rotation depends on how long the text is.
    """

    family: str
    kind: str
    settings: dict[str, Any]
    trained: int | None = None

    @property
    def dynamic(self) -> bool:
        """Whether every step turns its tokens by the length so far, and stored keys stay behind."""
        rope = self.settings.get("rope_parameters") or {}
        return rope.get("rope_type") == "dynamic"

    @property
    def windowed(self) -> bool:
        """Whether a layer has a sliding window."""
        flag = self.settings.get("use_sliding_window", True)
        return flag and self.settings.get("sliding_window") is not None


def _cases(family: str, kind: str, **named: dict[str, Any]) -> dict[str, Case]:
    """The cases of a family; an underscore of a name stands for a hyphen."""
    return {name.replace("_", "-"): Case(family, kind, more) for name, more in named.items()}


CASES: dict[str, Case] = {
    **_cases(
        "Llama 1, 2",
        "Llama",
        llama_mha={"num_key_value_heads": 6},
        llama_mha_tied={"num_key_value_heads": 6, "tie_word_embeddings": True},
        llama_mqa={"num_key_value_heads": 1},
        llama_biased={"attention_bias": True, "mlp_bias": True},
        llama_wide_heads={"head_dim": 32},
        llama_linear={"rope_parameters": LINEAR},
        llama_yarn={"rope_parameters": YARN},
        llama_yarn_untruncated={
            "head_dim": 16,
            "rope_parameters": YARN | {"truncate": False, "attention_factor": 1.25},
        },
    ),
    # Dynamic scaling measures a text against max_position_embeddings.
    "llama-dynamic": Case(
        "Llama 1, 2",
        "Llama",
        {"rope_parameters": DYNAMIC, "max_position_embeddings": TRAINED},
        TRAINED,
    ),
    **_cases("Llama 3.x", "Llama", llama3={}, llama3_rope={"rope_parameters": LLAMA3}),
    **_cases("TinyLlama, SmolLM2", "Llama", llama_tied={"tie_word_embeddings": True}),
    **_cases(
        "SmolLM3",
        "SmolLM3",
        smollm3={"num_hidden_layers": 5},
        smollm3_interval={"no_rope_layer_interval": 2},
        smollm3_list={"no_rope_layers": [0, 1, 0], "tie_word_embeddings": False},
        smollm3_window={
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "rope_parameters": YARN,
        },
    ),
    **_cases(
        "Mistral",
        "Mistral",
        mistral={"sliding_window": WINDOW},
        mistral_head_dim={"sliding_window": WINDOW, "head_dim": 16},
        mistral_no_window={"sliding_window": None},
        mistral_yarn={"sliding_window": WINDOW, "rope_parameters": YARN},
    ),
    **_cases(
        "Qwen2, Qwen2.5",
        "Qwen2",
        qwen2={},
        qwen2_tied={"tie_word_embeddings": True},
        qwen2_window=QWEN_WINDOW,
        qwen2_yarn={"rope_parameters": YARN},
    ),
    **_cases(
        "Qwen3",
        "Qwen3",
        qwen3={"head_dim": 16},
        qwen3_tied_biased={"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True},
        qwen3_window={"head_dim": 16} | QWEN_WINDOW,
    ),
    **_cases(
        "Gemma 3",
        "Gemma3",
        gemma3=GEMMA
        | {"num_hidden_layers": 7, "sliding_window_pattern": 6, "query_pre_attn_scalar": 16},
        gemma3_scaled=GEMMA,
        gemma3_linear=GEMMA
        | {
            "rope_parameters": {
                "sliding_attention": THETA | {"rope_type": "default"},
                "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            }
        },
        gemma3_untied=GEMMA | {"tie_word_embeddings": False, "attention_bias": True},
    ),
    **_cases(
        "OLMo 2",
        "Olmo2",
        olmo2={},
        olmo2_mha={"num_key_value_heads": 6},
        olmo2_biased_tied={"attention_bias": True, "tie_word_embeddings": True},
        olmo2_yarn={"rope_parameters": YARN},
    ),
    **_cases(
        "Phi-3",
        "Phi3",
        phi3={},
        phi3_mha_tied={"num_key_value_heads": 6, "tie_word_embeddings": True},
        phi3_window={"sliding_window": WINDOW},
        phi3_partial={
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "rope_parameters": THETA | {"rope_type": "default", "partial_rotary_factor": 0.75},
        },
    ),
    "phi3-longrope": Case("Phi-3", "Phi3", PHI | {"rope_parameters": longrope(4)}, TRAINED),
    "phi3-longrope-partial-window": Case(
        "Phi-3",
        "Phi3",
        PHI
        | {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "sliding_window": WINDOW,
            "rope_parameters": longrope(6, partial_rotary_factor=0.75),
        },
        TRAINED,
    ),
    "phi3-longrope-attention-factor": Case(
        "Phi-3", "Phi3", PHI | {"rope_parameters": longrope(4, attention_factor=1.3)}, TRAINED
    ),
    **_cases(
        "Mixtral",
        "Mixtral",
        mixtral={"num_local_experts": 4},
        mixtral_window={"num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": WINDOW},
        mixtral_tied={"num_local_experts": 3, "num_experts_per_tok": 1, "head_dim": 16}
        | {"tie_word_embeddings": True},
    ),
    **_cases(
        "Qwen3-MoE",
        "Qwen3Moe",
        qwen3_moe=MOE,
        qwen3_moe_normed=MOE | {"norm_topk_prob": True},
        qwen3_moe_dense_layer=MOE | {"norm_topk_prob": True, "mlp_only_layers": [1]},
        qwen3_moe_sparse_step=MOE | {"num_hidden_layers": 4, "decoder_sparse_step": 2},
        qwen3_moe_window=MOE | {"use_sliding_window": True, "sliding_window": WINDOW},
    ),
}
FAMILIES = list(dict.fromkeys(case.family for case in CASES.values()))


def settings_of(case: Case) -> Any:
    """transformers' configuration of a case."""
    # The class of Gemma 3's configuration has another first part: the other is multi-modal.
    kind = {"Gemma3": "Gemma3Text"}.get(case.kind, case.kind)
    return getattr(transformers, f"{kind}Config")(**SIZES | case.settings)


def build(case: Case) -> Any:
    """transformers' model of a case: every weight is random, the same ones each time.

    Norm weights are not all alike and biases not 0, or a fault in them would not show.
    """
    torch.manual_seed(0)
    model = getattr(transformers, f"{case.kind}ForCausalLM")(settings_of(case))
    for parameter in model.eval().requires_grad_(False).parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def save(case: Case, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a case as a model folder: config.json and model.safetensors by transformers."""
    transformers.utils.logging.disable_progress_bar()
    build(case).to(dtype).save_pretrained(folder)
    return folder


@functools.cache
def saved(name: str, dtype: torch.dtype = torch.float32) -> Path:
    """The folder of a case, written once a process; it goes when the process ends."""
    folder = Path(_scratch().name) / f"{name}-{str(dtype).removeprefix('torch.')}"
    return save(CASES[name], folder, dtype)


@functools.cache
def _scratch() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="minillm-parity-")


def theirs(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model of a folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval().requires_grad_(False)


def token_ids(rows: int, length: int, seed: int = 1) -> Tensor:
    """Random ids (rows, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (rows, length), generator=generator)


# One case of each family that uses the most of what its configuration can say.
RICHEST = {
    "llama": "llama3-rope",
    "mistral": "mistral-yarn",
    "qwen2": "qwen2-window",
    "qwen3": "qwen3-window",
    "qwen3_moe": "qwen3-moe-dense-layer",
    "smollm3": "smollm3-window",
    "gemma3_text": "gemma3-linear",
    "olmo2": "olmo2-yarn",
    "phi3": "phi3-longrope-partial-window",
    "mixtral": "mixtral-window",
}


@functools.cache
def written(name: str) -> dict[str, Any]:
    """What transformers writes as the config.json of a case."""
    found: dict[str, Any] = json.loads(settings_of(CASES[name]).to_json_string(use_diff=False))
    return found | {"dtype": "float32"}


def settings(model_type: str, **changes: Any) -> dict[str, Any]:
    """A copy of the config.json of a family's richest case, with changes."""
    return copy.deepcopy(written(RICHEST[model_type])) | changes


def old_spelling(settings: dict[str, Any], type_key: str = "rope_type") -> dict[str, Any]:
    """The configuration as transformers 4 wrote it: RoPE over several keys, rules for layers.

    type_key: "type" in the oldest files, which also called longrope by another name.
    """
    new_keys = ("rope_parameters", "dtype", "layer_types", "_sliding_window_pattern")
    old = {key: value for key, value in settings.items() if key not in new_keys}
    old |= {"torch_dtype": settings["dtype"], "transformers_version": "4.38.0"}
    rope = copy.deepcopy(settings["rope_parameters"])
    if "full_attention" in rope:  # two bases, and a stretch for the global layers only
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            old[key] = rope.pop(key)
    kind = rope.pop("rope_type")
    if kind == "longrope":
        old["original_max_position_embeddings"] = rope.pop("original_max_position_embeddings")
        kind = "su" if type_key == "type" else kind
    old["rope_scaling"] = None if kind == "default" else rope | {type_key: kind}
    if "moe_intermediate_size" in old:
        old["num_experts"] = old.pop("num_local_experts")
    if old["num_key_value_heads"] == old["num_attention_heads"]:
        del old["num_key_value_heads"]  # Llama 1 and 2
    return old
