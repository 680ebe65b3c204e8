"""Tiny random models for the CUDA engine's tests: every feature that a dense model may have."""

from dataclasses import replace

import torch

from minillm.config import LayerConfig, ModelConfig, RopeConfig
from minillm.model import Transformer
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.linear import QuantizedLinear, put, quantizable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYERS = 3
BASE = ModelConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=LAYERS,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    layers=(LayerConfig(),) * LAYERS,
)
TRAINED = {"original_max_position_embeddings": 6}


def with_rope(**settings) -> ModelConfig:
    layers = (LayerConfig(rope=RopeConfig(**settings)),) * LAYERS
    return replace(BASE, layers=layers)


MODELS = {
    "llama": BASE,
    "tied head": replace(BASE, tie_word_embeddings=True),
    "biases": replace(BASE, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "one key head": replace(BASE, num_key_value_heads=1, num_attention_heads=5),
    "as many key heads": replace(BASE, num_key_value_heads=4),
    "odd width of a head": replace(BASE, head_dim=12),
    "norm of each head": replace(BASE, qk_norm="head"),
    "norm of all heads": replace(BASE, qk_norm="whole"),
    "norms after": replace(BASE, norms="after"),
    "gemma": replace(
        BASE,
        norms="both",
        norm_offset=1.0,
        qk_norm="head",
        activation="geglu",
        embedding_scale=5.7,
        query_pre_attn_scalar=24.0,
        tie_word_embeddings=True,
    ),
    "no rotation": replace(BASE, layers=(LayerConfig(), LayerConfig(rope=None), LayerConfig())),
    "part of a head turned": with_rope(partial_rotary_factor=0.5),
    "linear": with_rope(rope_type="linear", factor=4.0),
    "llama3": with_rope(rope_type="llama3", factor=8.0, high_freq_factor=4.0, **TRAINED),
    "yarn": with_rope(rope_type="yarn", factor=4.0, **TRAINED),
    "dynamic": with_rope(rope_type="dynamic", factor=2.0, **TRAINED),
    "longrope": with_rope(
        rope_type="longrope", short_factor=(1.0, 1.5, 2, 3), long_factor=(2.0, 4, 6, 9), **TRAINED
    ),
    "windows": BASE.with_window(5, global_every=2),
    "windows and sinks": BASE.with_window(4, sinks=2),
    "sinks and a global layer": BASE.with_window(3, sinks=1, global_every=3),
    "a window that never fills": BASE.with_window(40),
}
# Each stands for several of those above, in one layer or two.
COMPOSED = {
    "llama, biases": replace(
        MODELS["biases"],
        num_hidden_layers=2,
        layers=(LayerConfig(rope=RopeConfig(partial_rotary_factor=0.5)), LayerConfig(rope=None)),
    ),
    "gemma, windows": replace(
        MODELS["gemma"],
        head_dim=12,
        num_hidden_layers=2,
        layers=(LayerConfig(sliding_window=3, sinks=2), LayerConfig()),
    ),
    "olmo": replace(
        MODELS["yarn"],
        norms="after",
        qk_norm="whole",
        num_attention_heads=3,
        num_key_value_heads=1,
        num_hidden_layers=1,
        layers=MODELS["yarn"].layers[:1],
    ),
}
CODED = {"4 bits": (4, 8, False), "8 bits": (8, -1, True), "8 bits in groups": (8, 8, False)}


def transformer(config: ModelConfig, dtype=torch.float32, seed=0) -> Transformer:
    """Random weights, large enough for every key to matter."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = noise * 0.3 if "norm" not in name else 1 - config.norm_offset + noise * 0.2
    return model.to(DEVICE, dtype).requires_grad_(False)


def coded(config: ModelConfig, kind: str, dtype=torch.float32) -> Transformer:
    """The same model on weights of few bits."""
    bits, size, symmetric = CODED[kind]
    model = transformer(config, dtype)
    for name, linear in quantizable(model).items():
        codes = quantize_groups(linear.weight, size, bits=bits, symmetric=symmetric)
        put(model, name, QuantizedLinear(codes, linear.bias))
    return model


def prompts(lengths, config=BASE, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(config.vocab_size, (n,), generator=draw).tolist() for n in lengths]
