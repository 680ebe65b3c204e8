"""What llama.cpp's architectures are in Hugging Face's terms: one row of data for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minillm.weights.gguf_metadata import Metadata
from minillm.weights.gguf_names import (
    ATTENTION,
    ATTENTION_BIAS,
    ATTN_NORM,
    FFN_NORM,
    MLP,
    MLP_BIAS,
    POST_NORMS,
    QK_NORMS,
    QKV_BIAS,
    Block,
    experts,
)

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: how an architecture of llama.cpp is written as a Hugging Face checkpoint.

    model_type, model_class: as in config.json. block: the tensors of each block.
    optional: settings that are true where these tensors are there.
    settings, activation: what is always so.
    more: settings that the metadata keys in `keys` decide, given those of every architecture.
    permuted: the rows of q and k stand in the order of rotated neighbours.
    norm_offset: what llama.cpp adds to every norm's weights.
    partial_rotary: only a part of each head may be rotated. rope_tensors: factors it may have.
    """

    model_type: str
    model_class: str
    block: Block
    optional: Mapping[str, Block] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    activation: Settings = field(default_factory=lambda: {"hidden_act": "silu"})
    more: Callable[[Metadata, Settings], dict[str, Any]] = lambda metadata, settings: {}
    keys: frozenset[str] = frozenset()
    permuted: bool = False
    norm_offset: float = 0.0
    partial_rotary: bool = False
    rope_tensors: frozenset[str] = frozenset()


def _mixtral(metadata: Metadata, settings: Settings) -> dict[str, Any]:
    total, used = _expert_counts(metadata)
    return {"num_local_experts": total, "num_experts_per_tok": used, "sliding_window": None}


def _qwen3_moe(metadata: Metadata, settings: Settings) -> dict[str, Any]:
    total, used = _expert_counts(metadata)
    return {
        "num_local_experts": total,
        "num_experts_per_tok": used,
        "moe_intermediate_size": metadata.size("expert_feed_forward_length"),
        # llama.cpp always scales the chosen experts' weights to a sum of 1.
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _expert_counts(metadata: Metadata) -> tuple[int, int]:
    total, used = metadata.size("expert_count"), metadata.size("expert_used_count")
    if used > total:
        raise ValueError(f"{metadata.architecture}.expert_used_count is {used}, of {total} experts")
    return total, used


def _smollm3(metadata: Metadata, settings: Settings) -> dict[str, Any]:
    """Every fourth layer is without RoPE: llama.cpp's code knows it, its file does not say it."""
    rotated = [int((layer + 1) % 4 != 0) for layer in range(settings["num_hidden_layers"])]
    return {"no_rope_layers": rotated, "no_rope_layer_interval": 4}


def _phi3(metadata: Metadata, settings: Settings) -> dict[str, Any]:
    trained = metadata.size(
        "rope.scaling.original_context_length", settings["max_position_embeddings"]
    )
    return {"sliding_window": _window(metadata), "original_max_position_embeddings": trained}


def _window(metadata: Metadata) -> int | None:
    """The window in tokens; 0 in the file stands for none."""
    return metadata.size("attention.sliding_window", 0, least=0) or None


def _gemma3(metadata: Metadata, settings: Settings) -> dict[str, Any]:
    """Windows, the RoPE of layers that have one, and the scale of the queries."""
    layers = settings["num_hidden_layers"]
    window = _window(metadata)
    local = [False] * layers if window is None else _local_layers(metadata, layers)
    names = {True: "sliding_attention", False: "full_attention"}
    softcap = metadata.get("final_logit_softcapping", 0.0)
    return {
        # Of all sizes only the 27B, with its 62 layers, does not scale by the head width.
        "query_pre_attn_scalar": settings["hidden_size"] // settings["num_attention_heads"]
        if layers == 62
        else settings["head_dim"],
        "sliding_window": window,
        "layer_types": [names[is_local] for is_local in local],
        "rope_parameters": {
            "full_attention": settings["rope_parameters"],
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": metadata.decimal("rope.freq_base_swa", 10_000.0),
            },
        },
        "attn_logit_softcapping": None,
        "final_logit_softcapping": metadata.decimal("final_logit_softcapping") if softcap else None,
    }


def _local_layers(metadata: Metadata, layers: int) -> list[bool]:
    """Which layers have a window: as listed, or all but each n-th (6 where nothing is said)."""
    pattern = metadata.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(isinstance(entry, bool) for entry in pattern):
            raise ValueError(
                f"{metadata.architecture}.attention.sliding_window_pattern is not a list of "
                f"{layers} truth values"
            )
        return pattern
    every = metadata.size("attention.sliding_window_pattern", 6)
    return [(layer + 1) % every != 0 for layer in range(layers)]


NO_BIAS = {"attention_bias": False}
QWEN = {"use_sliding_window": False, "sliding_window": None}
EXPERT_KEYS = frozenset({"expert_count", "expert_used_count"})

# By general.architecture and whether there are experts.
ARCHITECTURES: dict[tuple[str, bool], Architecture] = {
    # Mistral too: without its window, llama.cpp runs it as a Llama.
    ("llama", False): Architecture(
        model_type="llama",
        model_class="LlamaForCausalLM",
        block={**ATTN_NORM, **ATTENTION, **FFN_NORM, **MLP},
        optional={"attention_bias": ATTENTION_BIAS, "mlp_bias": MLP_BIAS},
        keys=EXPERT_KEYS,
        permuted=True,
        rope_tensors=frozenset({"rope_freqs.weight"}),
    ),
    ("llama", True): Architecture(
        model_type="mixtral",
        model_class="MixtralForCausalLM",
        block={
            **ATTN_NORM,
            **ATTENTION,
            **FFN_NORM,
            **experts("block_sparse_moe", "w1", "w3", "w2", "F"),
        },
        more=_mixtral,
        keys=EXPERT_KEYS,
        permuted=True,
        rope_tensors=frozenset({"rope_freqs.weight"}),
    ),
    ("smollm3", False): Architecture(
        model_type="smollm3",
        model_class="SmolLM3ForCausalLM",
        block={**ATTN_NORM, **ATTENTION, **FFN_NORM, **MLP},
        settings={**NO_BIAS, "mlp_bias": False, **QWEN},
        more=_smollm3,
        permuted=True,
    ),
    ("qwen2", False): Architecture(
        model_type="qwen2",
        model_class="Qwen2ForCausalLM",
        block={**ATTN_NORM, **ATTENTION, **QKV_BIAS, **FFN_NORM, **MLP},
        settings=QWEN,
    ),
    ("qwen3", False): Architecture(
        model_type="qwen3",
        model_class="Qwen3ForCausalLM",
        block={**ATTN_NORM, **ATTENTION, **QK_NORMS, **FFN_NORM, **MLP},
        settings={**NO_BIAS, **QWEN},
    ),
    ("qwen3moe", True): Architecture(
        model_type="qwen3_moe",
        model_class="Qwen3MoeForCausalLM",
        block={
            **ATTN_NORM,
            **ATTENTION,
            **QK_NORMS,
            **FFN_NORM,
            **experts("mlp", "gate_proj", "up_proj", "down_proj", "X"),
        },
        settings={**NO_BIAS, **QWEN},
        more=_qwen3_moe,
        keys=EXPERT_KEYS | {"expert_feed_forward_length"},
    ),
    ("gemma3", False): Architecture(
        model_type="gemma3_text",
        model_class="Gemma3ForCausalLM",
        block={
            **ATTN_NORM,
            **ATTENTION,
            **QK_NORMS,
            "ffn_norm.weight": ("pre_feedforward_layernorm.weight", "C"),
            **MLP,
            **POST_NORMS,
        },
        settings=NO_BIAS,
        activation={"hidden_activation": "gelu_pytorch_tanh"},
        more=_gemma3,
        keys=frozenset(
            {
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "final_logit_softcapping",
                "rope.freq_base_swa",
            }
        ),
        norm_offset=1.0,
    ),
    ("olmo2", False): Architecture(
        model_type="olmo2",
        model_class="Olmo2ForCausalLM",
        block={
            **ATTENTION,
            "attn_q_norm.weight": ("self_attn.q_norm.weight", "Q"),
            "attn_k_norm.weight": ("self_attn.k_norm.weight", "K"),
            **MLP,
            **POST_NORMS,
        },
        settings=NO_BIAS,
    ),
    ("phi3", False): Architecture(
        model_type="phi3",
        model_class="Phi3ForCausalLM",
        block={
            **ATTN_NORM,
            "attn_qkv.weight": ("self_attn.qkv_proj.weight", "Q+2K C"),
            "attn_output.weight": ("self_attn.o_proj.weight", "C Q"),
            **FFN_NORM,
            "ffn_up.weight": ("mlp.gate_up_proj.weight", "2F C"),
            "ffn_down.weight": ("mlp.down_proj.weight", "C F"),
        },
        more=_phi3,
        keys=frozenset({"attention.sliding_window"}),
        partial_rotary=True,
        rope_tensors=frozenset({"rope_factors_short.weight", "rope_factors_long.weight"}),
    ),
}
