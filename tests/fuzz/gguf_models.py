"""Small GGUF files, whole and right: what the fuzzer damages.

Each holds the model of a folder that transformers wrote: the same weights under llama.cpp's names.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from tests.fuzz import tokenizers
from tests.fuzz.folders import TEMPLATE, Base, write_model

Kind: TypeAlias = gguf.GGMLQuantizationType

BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GEMMA = BLOCK | QK_NORMS | {"ffn_norm": "pre_feedforward_layernorm"}
GEMMA |= {"post_attention_norm": "post_attention_layernorm"}
GEMMA |= {"post_ffw_norm": "post_feedforward_layernorm"}
OLMO2 = {key: BLOCK[key] for key in BLOCK if "norm" not in key} | QK_NORMS
OLMO2 |= {key: GEMMA[key] for key in ("post_attention_norm", "post_ffw_norm")}
PHI3 = {key: BLOCK[key] for key in ("attn_norm", "attn_output", "ffn_norm", "ffn_down")}
PHI3 |= {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
EXPERTS = {"ffn_gate_inp": "mlp.gate"}
EXPERTS |= {f"ffn_{part}_exps": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

# Metadata key, without the architecture → config.json key.
KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "rope.dimension_count": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}


@dataclass(frozen=True, slots=True)
class GGUFBase:
    """A GGUF file to damage.

    keys: metadata key → config.json key, beside KEYS. kinds: the types of its matrices, in turn.
    permuted, norm_offset: what llama.cpp's converter does to q and k, and adds to every norm.
    """

    architecture: str
    folder: Base
    names: dict[str, str]
    tokenizer: Literal["gpt2", "llama"]
    pre: str = "default"
    keys: dict[str, str] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = (Kind.F32,)
    permuted: bool = False
    norm_offset: float = 0.0


WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
TIED = WIDE | {"tie_word_embeddings": True}
UNTIED = WIDE | {"tie_word_embeddings": False}
MOE = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MOE |= {"norm_topk_prob": True}
BASES = {
    "gguf_llama": GGUFBase(
        "llama",
        Base("llama", UNTIED),
        BLOCK,
        "gpt2",
        "smollm",
        kinds=(Kind.F32, Kind.F16, Kind.BF16),
        permuted=True,
    ),
    "gguf_llama2": GGUFBase(
        "llama",
        Base("llama", TIED),
        BLOCK,
        "llama",
        kinds=(Kind.Q8_0, Kind.Q4_0, Kind.Q5_1),
        permuted=True,
    ),
    "gguf_qwen2": GGUFBase("qwen2", Base("qwen2", TIED), BLOCK, "gpt2", "qwen2"),
    "gguf_gemma3": GGUFBase(
        "gemma3",
        Base(
            "gemma3_text",
            WIDE
            | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9}
            | {"query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6},
        ),
        GEMMA,
        "llama",
        keys={"attention.sliding_window": "sliding_window"},
        kinds=(Kind.F32, Kind.Q4_1),
        norm_offset=1.0,
    ),
    "gguf_olmo2": GGUFBase("olmo2", Base("olmo2", UNTIED), OLMO2, "gpt2", "gpt-2"),
    "gguf_phi3": GGUFBase(
        "phi3",
        Base("phi3", UNTIED | {"sliding_window": 9}),
        PHI3,
        "llama",
        keys={"attention.sliding_window": "sliding_window"},
        kinds=(Kind.BF16, Kind.Q8_0),
    ),
    "gguf_qwen3moe": GGUFBase(
        "qwen3moe",
        Base("qwen3_moe", UNTIED | MOE),
        {key: BLOCK[key] for key in BLOCK if not key.startswith("ffn") or key == "ffn_norm"}
        | QK_NORMS
        | EXPERTS,
        "gpt2",
        "qwen2",
        keys={
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
    ),
}


def source_of(base: Path) -> Path:
    """The folder that transformers wrote, for the folder of a GGUF file."""
    return base.parent.with_name(f"{base.parent.name}-sources") / base.name


def build(root: Path, name: str) -> None:
    """Write model.gguf for one of BASES under `root`, and beside `root` what it was made of."""
    base, source = BASES[name], source_of(root / name)
    (root / name).mkdir(parents=True)
    source.mkdir(parents=True)
    tokens = tokenizers.gguf_tokens(base.tokenizer, source)
    write_model(source, base.folder, len(tokens["tokens"]))
    _write(root / name / "model.gguf", base, source, tokens)


def _write(path: Path, base: GGUFBase, source: Path, tokens: dict[str, Any]) -> None:
    config = json.loads((source / "config.json").read_text())
    config |= flat_rope(config)
    writer = gguf.GGUFWriter(path, base.architecture)
    for key, hf_key in (KEYS | base.keys).items():
        add = writer.add_float32 if isinstance(config[hf_key], float) else writer.add_uint32
        add(f"{base.architecture}.{key}", config[hf_key])
    writer.add_name("tiny")
    writer.add_tokenizer_model(base.tokenizer)
    writer.add_tokenizer_pre(base.pre)
    writer.add_token_list(tokens["tokens"])
    writer.add_token_types(tokens["types"])
    if base.tokenizer == "llama":
        writer.add_token_scores(tokens["scores"])
        writer.add_add_bos_token(True)
        writer.add_add_space_prefix(base.architecture == "llama")
    else:
        writer.add_token_merges(tokens["merges"])
        writer.add_add_bos_token(False)
    writer.add_bos_token_id(tokens["bos"])
    writer.add_eos_token_id(tokens["eos"])
    writer.add_chat_template(TEMPLATE)
    weights = load_file(source / "model.safetensors")
    for i, (name, hf_names) in enumerate(sorted(tensor_names(base, weights).items())):
        tensor = torch.stack([weights[hf_name] for hf_name in hf_names]).numpy()
        values = tensor if "_exps" in name else tensor[0]
        if base.permuted and (".attn_q." in name or ".attn_k." in name):
            heads = config["num_attention_heads" if "_q" in name else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2)
            values = np.ascontiguousarray(values).reshape(tensor[0].shape)
        values = values + base.norm_offset * ("norm" in name)
        kind = base.kinds[i % len(base.kinds)] if values.ndim > 1 else Kind.F32
        packed = gguf.quants.quantize(values.astype(np.float32), kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensor_names(base: GGUFBase, hf_names: Any) -> dict[str, list[str]]:
    """GGUF name → the names in a folder of what it holds: one tensor, or one for each expert."""
    patterns = {hf_name: name for name, hf_name in base.names.items()}
    found: dict[str, list[str]] = {}
    for full in sorted(hf_names):
        stem, _, end = full.rpartition(".")
        if top := [name for name, hf_name in TOP.items() if hf_name == stem]:
            found[f"{top[0]}.{end}"] = [full]
            continue
        _, _, layer, inner = stem.split(".", 3)
        parts = inner.split(".")
        generic = ".".join("*" if part.isdecimal() else part for part in parts)
        found.setdefault(f"blk.{layer}.{patterns[generic]}.{end}", []).append(full)
    return found


def flat_rope(config: dict[str, Any]) -> dict[str, Any]:
    """rope_theta, out of wherever transformers 5 wrote it."""
    rope = config["rope_parameters"]
    return {"rope_theta": rope.get("full_attention", rope)["rope_theta"]}
