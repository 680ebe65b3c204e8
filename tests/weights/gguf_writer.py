"""Write a transformers checkpoint as llama.cpp's converter does, with the `gguf` package.

Tensor names come from the package's own table and metadata keys from its writer's methods, so that
what the tests compare with is not minillm's own table the other way round.
"""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.weights.helpers import byte_alphabet

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
PERMUTED = {gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.SMOLLM3}
Config = dict[str, Any]


def write_gguf(source: Any, path: Path, tensor_type: str = "F32") -> Path:
    """Write a checkpoint of any of the families as a GGUF file, and return its path.

    source: a transformers model, or the folder in which one was saved. tensor_type: ggml type of
    the matrices; vectors, and matrices whose rows its blocks don't divide, stay F32. The tokenizer
    is a small byte-level one.
    Raises ValueError for what a GGUF file cannot say: llama.cpp would run another model.
    """
    if not isinstance(source, Path):
        with tempfile.TemporaryDirectory() as folder:
            source.save_pretrained(folder)
            return write_gguf(Path(folder), path, tensor_type)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(source / "model.safetensors")
    if features := unsaid(config):
        raise ValueError(f"a GGUF file of {config['model_type']} cannot say: {features}")
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    for name, tensor in _rope_tensors(config).items():
        writer.add_tensor(name, tensor)
    _write_metadata(writer, config)
    _write_tokenizer(writer, config)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, value in _merged(tensors, config["num_hidden_layers"]).items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if arch in PERMUTED:
            value = _permuted(name, value, config)
        if arch == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
            value = value + np.float32(1)
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None, name
        kind = gguf.GGMLQuantizationType[tensor_type if value.ndim > 1 else "F32"]
        if value.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(stored_name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _head_dim(config: Config) -> int:
    heads = config["num_attention_heads"]
    return config.get("head_dim") or config["hidden_size"] // heads


def unsaid(config: Config) -> list[str]:
    """What a GGUF file cannot say of this config.json, or llama.cpp does not compute."""
    layers, kind = config["num_hidden_layers"], config["model_type"]
    rope, scale = _rope(config), config.get("query_pre_attn_scalar")
    scales = [_head_dim(config)]
    if layers == 62:  # Gemma 3 27B
        scales = [config["hidden_size"] // config["num_attention_heads"]]
    every_fourth = [int((layer + 1) % 4 != 0) for layer in range(layers)]
    windows, biases = kind in ("gemma3_text", "phi3"), kind == "llama"
    features = {
        "a dynamic RoPE": rope["rope_type"] == "dynamic",
        "a YaRN that is not truncated": rope.get("truncate", True) is not True,
        "a window": not windows and _window(config) is not None,
        "layers without RoPE": config.get("no_rope_layers", every_fourth) != every_fourth,
        "another scale of the queries": scale is not None and scale not in scales,
        "weights of experts as they are": config.get("norm_topk_prob", True) is not True,
        "dense layers": bool(config.get("mlp_only_layers"))
        or config.get("decoder_sparse_step", 1) != 1,
        "biases": not biases and bool(config.get("attention_bias") or config.get("mlp_bias")),
    }
    return [feature for feature, present in features.items() if present]


def _window(config: Config) -> int | None:
    used = config.get("use_sliding_window", True)
    return config.get("sliding_window") if used else None


def _rope(config: Config) -> Config:
    rope: Config = config["rope_parameters"]
    return rope.get("full_attention", rope)


def _write_metadata(writer: Any, config: Config) -> None:
    """As the converter: base.py (every family), then llama.py, phi.py, gemma.py, qwen.py."""
    kind, rope = config["model_type"], _rope(config)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("head_dim") is not None and kind != "phi3":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if (experts := config.get("num_local_experts")) is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }.items():
            if rope.get(key) is not None:
                add(rope[key])
    if more := MORE_METADATA.get(kind):
        more(writer, config)


def _llama(writer: Any, config: Config) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(_head_dim(config))


def _qwen3_moe(writer: Any, config: Config) -> None:
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _phi3(writer: Any, config: Config) -> None:
    rope = _rope(config)
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    writer.add_rope_dimension_count(
        int(rope.get("partial_rotary_factor", 1.0) * config["hidden_size"])
        // config["num_attention_heads"]
    )
    writer.add_sliding_window(config["sliding_window"] or 0)
    if rope["rope_type"] == "longrope":
        trained = config["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / trained
        factor = np.sqrt(1 + np.log(stretch) / np.log(trained)) if stretch > 1 else 1.0
        writer.add_rope_scaling_attn_factors(float(rope.get("attention_factor") or factor))


def _gemma3(writer: Any, config: Config) -> None:
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    local = [kind == "sliding_attention" for kind in config["layer_types"]]
    if any(local):
        writer.add_sliding_window(config["sliding_window"])
    # The converter leaves the pattern out, since it is the same in all published models.
    if local != [(layer + 1) % 6 != 0 for layer in range(len(local))]:
        writer.add_sliding_window_pattern(local)


MORE_METADATA: dict[str, Callable[[Any, Config], None]] = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "smollm3": _llama,
    "qwen3_moe": _qwen3_moe,
    "phi3": _phi3,
    "gemma3_text": _gemma3,
}


def _rope_tensors(config: Config) -> dict[str, np.ndarray]:
    rope = _rope(config)
    if rope["rope_type"] == "longrope":
        return {
            f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32)
            for name in ("long", "short")
        }
    if rope["rope_type"] != "llama3":
        return {}
    width = _head_dim(config)
    trained, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for pair in range(width // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * pair / width)
        smooth = (trained / wavelength - low) / (high - low)
        blended = 1 / ((1 - smooth) / factor + smooth)
        long, short = wavelength > trained / low, wavelength < trained / high
        factors.append(1 if short else factor if long else blended)
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def _permuted(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    for part, key in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
        if part in name:
            heads = value.reshape(config[key], 2, -1, *value.shape[1:])
            return heads.swapaxes(1, 2).reshape(value.shape)
    return value


def _merged(tensors: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """The experts' matrices of each layer as one tensor, under the converter's name for it."""
    merged = {name: value for name, value in tensors.items() if ".experts." not in name}
    by_name: dict[str, dict[int, np.ndarray]] = {}
    for name, value in tensors.items():
        if found := re.fullmatch(r"model\.layers\.(\d+)\.(\w+)\.experts\.(\d+)\.(.+)", name):
            layer, module, expert, rest = found.groups()
            prefix = f"model.layers.{layer}.mlp"
            if module == "block_sparse_moe":
                prefix = f"layers.{layer}.feed_forward"
            by_name.setdefault(f"{prefix}.experts.{rest}", {})[int(expert)] = value
    for name, experts in by_name.items():
        merged[name] = np.stack([experts[index] for index in range(len(experts))])
    return merged


def _write_tokenizer(writer: Any, config: Config) -> None:
    size = config["vocab_size"]
    tokens = ["<pad>", "<s>", "</s>", "<|end|>", "ab", *byte_alphabet()][:size]
    spare = [f"<unused{index}>" for index in range(size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + spare)
    writer.add_token_types(([3, 3, 3, 4] + [1] * size)[: len(tokens)] + [5] * len(spare))
    writer.add_token_merges(["a b"])
    for name in ("bos", "eos", "pad"):
        index = config.get(f"{name}_token_id")
        if isinstance(index, int) and index < size:
            getattr(writer, f"add_{name}_token_id")(index)
