"""Damage to config.json and generation_config.json, of every family."""

import random
from pathlib import Path
from typing import Any

from tests.fuzz.damage.values import HOSTILE, near, read_json, show, write_json

FAMILIES = [
    *("llama", "mistral", "qwen2", "qwen3", "smollm3"),
    *("gemma3_text", "olmo2", "phi3", "mixtral", "qwen3_moe"),
]
# Keys that change the result in one family or another, known to minillm or not.
CONFIG_KEYS = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_local_base_freq",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "hidden_activation",
    "layer_types",
    "sliding_window",
    "sliding_window_pattern",
    "use_sliding_window",
    "max_window_layers",
    "no_rope_layers",
    "no_rope_layer_interval",
    "quantization_config",
    "partial_rotary_factor",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
    "norm_topk_prob",
    "router_jitter_noise",
    "clip_qkv",
    "pretraining_tp",
    "eos_token_id",
    "dtype",
]
ROPE_KEYS = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "truncate",
    "mscale",
    "partial_rotary_factor",
    "short_factor",
    "long_factor",
    "full_attention",
    "sliding_attention",
]
ROPE_TYPES = ["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]
# Values that mean something: each is a model that some program could have written.
PLAUSIBLE: dict[str, list[Any]] = {
    "model_type": FAMILIES,
    "hidden_act": ["gelu", "gelu_pytorch_tanh", "relu", "swish", "silu", "SiLU"],
    "hidden_activation": ["gelu", "gelu_pytorch_tanh", "silu", None],
    "layer_types": [
        ["full_attention"],
        ["full_attention"] * 2,
        ["sliding_attention"] * 2,
        ["sliding_attention", "full_attention"],
        ["full_attention", "chunked_attention"],
        ["full_attention"] * 3,
        ["linear_attention", "full_attention"],
    ],
    "sliding_window": [1, 4, 9, 64, 4096, None],
    "no_rope_layers": [[0, 1], [1, 1], [0, 0], [1], [1, 2], [True, False]],
    "mlp_only_layers": [[0], [0, 1], [5], []],
    "quantization_config": [{"quant_method": "awq"}, {"quant_method": "fp8"}, {}],
    "partial_rotary_factor": [0.25, 0.5, 0.75, 1.0],
    "attn_logit_softcapping": [50.0],
    "final_logit_softcapping": [30.0],
    "dtype": ["bfloat16", "float16", "float64", "torch.float32"],
    "rope_theta": [1e4, 1e6, 500],
    "short_factor": [[1.0, 1.0], [1.0] * 4, [1.0, 2.0, 3.0]],
    "long_factor": [[1.0, 1.0], [4.0] * 4],
    "attention_factor": [1.5],
    "factor": [1.0, 2.0, 4, 8.0],
    "norm_topk_prob": [True, False],
    "clip_qkv": [8.0],
    "pretraining_tp": [1, 2],
}


def config_value(folder: Path, rng: random.Random) -> str:
    """Give keys of config.json values that they must not have, or take them away."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        return "config.json is no object any more"
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        key = rng.choice([*CONFIG_KEYS, *config])
        if rng.random() < 0.15:
            config.pop(key, None)
            done.append(f"no {key}")
            continue
        likely = [*near(config.get(key)), *PLAUSIBLE.get(key, [])]
        config[key] = rng.choice(likely if likely and rng.random() < 0.6 else HOSTILE)
        done.append(f"{key} = {show(config[key])}")
    write_json(path, config, rng)
    return ", ".join(done)


def rope_value(folder: Path, rng: random.Random) -> str:
    """A hostile entry in rope_scaling or rope_parameters, old or new spelling."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        return "config.json is no object any more"
    where = rng.choice(["rope_scaling", "rope_parameters"])
    base = {"rope_type": rng.choice(ROPE_TYPES), "factor": 2.0, "rope_theta": 1e4}
    base["original_max_position_embeddings"] = 32
    rope = config.get(where) if rng.random() < 0.5 else base
    rope = dict(rope) if isinstance(rope, dict) else base
    layered = [kind for kind in rope.values() if isinstance(kind, dict)]
    inner = rng.choice(layered) if layered and rng.random() < 0.8 else rope
    for _ in range(rng.choice([1, 1, 2])):
        key = rng.choice(ROPE_KEYS)
        likely = [
            *near(inner.get(key)),
            *PLAUSIBLE.get(key, []),
            *ROPE_TYPES[: 7 * ("type" in key)],
        ]
        hostile = [*HOSTILE, 1.0000001, 1e-9, 1e300, 10**18]
        inner[key] = rng.choice(likely if likely and rng.random() < 0.6 else hostile)
    config[where] = {"full_attention": rope} if rng.random() < 0.1 else rope
    if rng.random() < 0.3:
        config.pop("rope_parameters" if where == "rope_scaling" else "rope_scaling", None)
    write_json(path, config, rng)
    return f"{where} = {show(config[where])}"


def other_family(folder: Path, rng: random.Random) -> str:
    """A config.json of another model than the weights: another family or other sizes."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        return "config.json is no object any more"
    sizes = [key for key, value in config.items() if type(value) is int and value > 1]
    if len(sizes) > 1 and rng.random() < 0.4:
        one, other = rng.sample(sizes, 2)
        config[one], config[other] = config[other], config[one]
        done = f"{one} = {config[one]}, {other} = {config[other]}"
    else:
        config["model_type"] = rng.choice(FAMILIES)
        done = f"model_type = {config['model_type']}"
    if rng.random() < 0.3:
        config.pop("architectures", None)
    write_json(path, config, rng)
    return done


def end_tokens(folder: Path, rng: random.Random) -> str:
    """A hostile eos_token_id in generation_config.json."""
    path = folder / "generation_config.json"
    value = rng.choice([*HOSTILE, [True], [0, "1"], [-1], 299, 300, [10**12]])
    write_json(path, {"eos_token_id": value}, rng)
    return f"eos_token_id = {show(value)}"
