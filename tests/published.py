"""The configurations of well-known models: what their config.json files say, and how big they are.

Keys that change nothing (dropout, token ids, names) are left out. The spelling is that of the
published file, mostly transformers 4's.
"""

from typing import Any

Settings = dict[str, Any]


def _sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: int, kv: int, context: int
) -> Settings:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": context,
    }


def _llama3(factor: float) -> Settings:
    return {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


_LLAMA = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "pretraining_tp": 1}
_QWEN = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": False}
_GEMMA = {
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10_000,
    "rope_scaling": None,
    "rope_theta": 1_000_000,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window_pattern": 6,
}
_PHI = {
    "model_type": "phi3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 4096,
}

# name → (config.json, number of parameters, a tied head counted once)
PUBLISHED: dict[str, tuple[Settings, int]] = {
    "Llama-2-7b": (
        _LLAMA | _sizes(32_000, 4096, 11_008, 32, 32, 32, 4096) | {"rope_scaling": None},
        6_738_415_616,
    ),
    "Llama-3.1-8B": (
        _LLAMA
        | _sizes(128_256, 4096, 14_336, 32, 32, 8, 131_072)
        | {"rope_theta": 500_000.0, "rope_scaling": _llama3(8.0), "mlp_bias": False},
        8_030_261_248,
    ),
    "Llama-3.2-1B": (
        _LLAMA
        | _sizes(128_256, 2048, 8192, 16, 32, 8, 131_072)
        | {"rope_theta": 500_000.0, "rope_scaling": _llama3(32.0), "head_dim": 64}
        | {"tie_word_embeddings": True},
        1_235_814_400,
    ),
    "TinyLlama-1.1B": (_LLAMA | _sizes(32_000, 2048, 5632, 22, 32, 4, 2048), 1_100_048_384),
    "SmolLM2-135M": (
        _LLAMA
        | _sizes(49_152, 576, 1536, 30, 9, 3, 8192)
        | {"rope_theta": 100_000, "rope_interleaved": False, "tie_word_embeddings": True},
        134_515_008,
    ),
    "SmolLM3-3B": (
        {"model_type": "smollm3", "hidden_act": "silu", "rms_norm_eps": 1e-6}
        | _sizes(128_256, 2048, 11_008, 36, 16, 4, 65_536)
        | {"rope_theta": 5_000_000.0, "no_rope_layer_interval": 4, "use_sliding_window": False}
        | {"no_rope_layers": [1, 1, 1, 0] * 9, "layer_types": ["full_attention"] * 36},
        3_075_098_624,
    ),
    "Mistral-7B-v0.1": (
        {"model_type": "mistral", "hidden_act": "silu", "rms_norm_eps": 1e-5}
        | _sizes(32_000, 4096, 14_336, 32, 32, 8, 32_768)
        | {"rope_theta": 10_000.0, "sliding_window": 4096},
        7_241_732_096,
    ),
    "Mistral-Nemo": (
        {"model_type": "mistral", "hidden_act": "silu", "rms_norm_eps": 1e-5, "head_dim": 128}
        | _sizes(131_072, 5120, 14_336, 40, 32, 8, 131_072)
        | {"rope_theta": 1_000_000.0, "sliding_window": None},
        12_247_782_400,
    ),
    "Qwen2.5-0.5B": (
        {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1_000_000.0}
        | _QWEN
        | _sizes(151_936, 896, 4864, 24, 14, 2, 32_768)
        | {"sliding_window": 32_768, "max_window_layers": 24},
        494_032_768,
    ),
    "Qwen3-4B": (
        {"model_type": "qwen3", "tie_word_embeddings": True, "rope_theta": 1_000_000}
        | _QWEN
        | _sizes(151_936, 2560, 9728, 36, 32, 8, 40_960)
        | {"head_dim": 128, "attention_bias": False, "sliding_window": None},
        4_022_468_096,
    ),
    "Qwen3-30B-A3B": (
        {"model_type": "qwen3_moe", "rope_theta": 1_000_000.0, "head_dim": 128}
        | _QWEN
        | _sizes(151_936, 2048, 6144, 48, 32, 4, 40_960)
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
        | {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
        30_532_122_624,
    ),
    "gemma-3-270m": (
        _GEMMA | _sizes(262_144, 640, 2048, 18, 4, 1, 32_768) | {"sliding_window": 512},
        268_098_176,
    ),
    "gemma-3-1b": (
        _GEMMA | _sizes(262_144, 1152, 6912, 26, 4, 1, 32_768) | {"sliding_window": 512},
        999_885_952,
    ),
    "OLMo-2-7B": (
        {"model_type": "olmo2", "hidden_act": "silu", "rms_norm_eps": 1e-6}
        | _sizes(100_352, 4096, 11_008, 32, 32, 32, 4096)
        | {"rope_theta": 500_000, "attention_bias": False},
        7_298_617_344,
    ),
    "Phi-3-mini-4k": (
        _PHI | _sizes(32_064, 3072, 8192, 32, 32, 32, 4096) | {"sliding_window": 2047},
        3_821_079_552,
    ),
    "Phi-3-mini-128k": (
        _PHI
        | _sizes(32_064, 3072, 8192, 32, 32, 32, 131_072)
        | {"sliding_window": 262_144}
        | {"rope_scaling": {"type": "su", "short_factor": [1.05] * 48, "long_factor": [8.0] * 48}},
        3_821_079_552,
    ),
    "Phi-4-mini": (
        _PHI
        | _sizes(200_064, 3072, 8192, 32, 24, 8, 131_072)
        | {"partial_rotary_factor": 0.75, "sliding_window": 262_144, "tie_word_embeddings": True}
        | {
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 48,
                "long_factor": [8.0] * 48,
            }
        },
        3_836_021_760,
    ),
    "Mixtral-8x7B": (
        {"model_type": "mixtral", "hidden_act": "silu", "rms_norm_eps": 1e-5}
        | _sizes(32_000, 4096, 14_336, 32, 32, 8, 32_768)
        | {"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6}
        | {"sliding_window": None},
        46_702_792_704,
    ),
}
