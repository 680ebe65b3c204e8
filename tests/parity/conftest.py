"""Tiny random models made by transformers, and the same weights in ours."""

from typing import Any

import pytest
import torch
import transformers

from minillm.config import ModelConfig
from minillm.weights.load import load_transformer

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}

# name → (transformers' class, its configuration). 48 / 6 heads = 8 per head: a width at which a
# wrong row order shows.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6}),
    "llama-gqa-tied": ("Llama", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "llama-gqa": ("Llama", {"num_key_value_heads": 2}),
    "llama-mqa-tied": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-mqa": ("Llama", {"num_key_value_heads": 1}),
    "llama-biased": (
        "Llama",
        {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-wide-heads": ("Llama", {"num_key_value_heads": 2, "head_dim": 32}),
    "llama3-rope": ("Llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "yarn": ("Llama", {"num_key_value_heads": 2, "rope_parameters": YARN}),
    "linear": (
        "Llama",
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 9}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2} | WINDOW),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
}


@pytest.fixture(params=CASES)
def pair(request):
    """(ours, theirs): two models with the same random weights."""
    return models(*CASES[request.param])


# All layers windowed; the first one global; a window under a stretched RoPE.
WINDOWED = {
    "mistral": CASES["mistral"],
    "qwen2": CASES["qwen2"],
    "mistral-yarn": (
        "Mistral",
        {"num_key_value_heads": 2, "sliding_window": 9, "rope_parameters": YARN},
    ),
}


@pytest.fixture(params=WINDOWED)
def windowed_pair(request):
    """As `pair`, for models whose layers have a window of 9."""
    return models(*WINDOWED[request.param])


def models(name, settings):
    settings = SIZES | settings
    if "rope_parameters" in settings:
        settings["rope_parameters"] = {"rope_theta": 10_000.0} | settings["rope_parameters"]
    torch.manual_seed(0)
    hf_config = getattr(transformers, f"{name}Config")(**settings)
    theirs = getattr(transformers, f"{name}ForCausalLM")(hf_config).eval().requires_grad_(False)
    for parameter in theirs.parameters():
        # Norm weights that are not all 1 and biases that are not all 0, or a fault in them hides.
        parameter.add_(torch.randn_like(parameter) * 0.2)
    weights = theirs.state_dict()
    if hf_config.tie_word_embeddings:
        del weights["lm_head.weight"]
    ours = load_transformer(ModelConfig.from_hf(hf_config.to_dict()), weights)
    return ours, theirs
