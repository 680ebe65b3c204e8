"""The sizes of a GGUF file as config.json, and Hugging Face's names for its tensors."""

from typing import Any

import numpy as np

# Every `llama.` key whose meaning is carried over. Another one could change the result: refused.
KNOWN_KEYS = {
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.value_length",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scaling.type",
    "llama.vocab_size",
}


def hf_config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """The config.json of a GGUF file, in the spelling of transformers 5 and (rope_theta) of 4.

    Args: `metadata`, the file's keys and values. `tied`: the output head is the embedding.
    Raises: ValueError for another architecture, and for a key that the folder could not express.
    """
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture is {architecture!r}; supported is 'llama'")
    if unknown := {key for key in metadata if key.startswith("llama.")} - KNOWN_KEYS:
        raise ValueError(f"metadata that cannot be carried over: {', '.join(sorted(unknown))}")
    if (scaling := metadata.get("llama.rope.scaling.type", "none")) != "none":
        raise ValueError(f"llama.rope.scaling.type is {scaling!r}; supported is 'none'")

    def size(key: str, default: int | None = None) -> int:
        number = metadata.get(f"llama.{key}", default)
        if not isinstance(number, int) or not 1 <= number < 2**31:
            raise ValueError(f"llama.{key} is {number!r}; a whole number from 1 is needed")
        return number

    heads, hidden = size("attention.head_count"), size("embedding_length")
    head_dim = size("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if size(key, head_dim) != head_dim or head_dim % 2:
            raise ValueError(
                f"llama.{key} is {size(key, head_dim)} and the head width is {head_dim}; "
                "they must be equal and even"
            )
    theta = _decimal(metadata, "llama.rope.freq_base", 10_000.0)
    ids = {
        f"{hf_name}_token_id": metadata[f"tokenizer.ggml.{name}_token_id"]
        for hf_name, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if f"tokenizer.ggml.{name}_token_id" in metadata
    }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size("vocab_size", len(metadata.get("tokenizer.ggml.tokens", []))),
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": size("context_length"),
        "hidden_act": "silu",
        "rms_norm_eps": _decimal(metadata, "llama.attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **ids,
    }


def _decimal(metadata: dict[str, Any], key: str, default: float | None = None) -> float:
    """A float32 as its shortest decimal: 1e-05 rather than 9.999999747378752e-06."""
    number = metadata.get(key, default)
    if not isinstance(number, float) or not 0 < number < float("inf"):
        raise ValueError(f"{key} is {number!r}; a number above 0 is needed")
    return float(str(np.float32(number)))


def hf_names(config: dict[str, Any], tensors: dict[str, Any]) -> dict[str, str]:
    """GGUF name -> Hugging Face name of every tensor that the model of this `config` has.

    Raises: ValueError that names the tensors which are missing, unexpected or of another shape.
    """
    width, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    table = [config["vocab_size"], width]
    expected: dict[str, tuple[str, list[int]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", table),
        "output_norm.weight": ("model.norm.weight", [width]),
    }
    if not config["tie_word_embeddings"]:
        expected["output.weight"] = ("lm_head.weight", table)
    for layer in range(config["num_hidden_layers"]):
        for name, hf_name, shape in (
            ("attn_norm", "input_layernorm", [width]),
            ("attn_q", "self_attn.q_proj", [queries, width]),
            ("attn_k", "self_attn.k_proj", [keys, width]),
            ("attn_v", "self_attn.v_proj", [keys, width]),
            ("attn_output", "self_attn.o_proj", [width, queries]),
            ("ffn_norm", "post_attention_layernorm", [width]),
            ("ffn_gate", "mlp.gate_proj", [inner, width]),
            ("ffn_up", "mlp.up_proj", [inner, width]),
            ("ffn_down", "mlp.down_proj", [width, inner]),
        ):
            full = f"model.layers.{layer}.{hf_name}.weight"
            expected[f"blk.{layer}.{name}.weight"] = (full, shape)
    problems = [f"missing: {name}" for name in expected.keys() - tensors.keys()]
    problems += [f"unexpected: {name}" for name in tensors.keys() - expected.keys()]
    for name in expected.keys() & tensors.keys():
        if (shape := hf_shape(tensors[name])) != expected[name][1]:
            problems.append(f"{name} is {shape}, the metadata says {expected[name][1]}")
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError("its tensors do not fit: " + "; ".join(sorted(problems)[:5]) + more)
    return {name: hf_name for name, (hf_name, _) in expected.items()}


def hf_shape(tensor: Any) -> list[int]:
    """Rows first, as in PyTorch; GGUF counts from the axis that is contiguous."""
    return [int(size) for size in reversed(tensor.shape)]
