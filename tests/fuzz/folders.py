"""Small models with random weights, whole and right: what the fuzzer damages.

transformers writes config.json and the weights of each family; two Llama folders keep the older
spelling of config.json, and one of them has its weights in shards.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.fuzz import tokenizers

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# C differs from H·D, H from K, F from both, and a head is 8 wide: no two dimensions are the same.
SIZES = {
    "hidden_size": 42,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}
LOCAL_FIRST = ["sliding_attention", "full_attention"]


@dataclass(frozen=True, slots=True)
class Base:
    """A model to damage.

    settings: what its config.json says beside SIZES; None removes one of them.
    tokenizer: byte-level, or SentencePiece-style with a space before the text or without.
    older: config.json in the spelling of transformers 4. sharded: the weights in two files.
    """

    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    tokenizer: Literal["bytes", "llama", "gemma"] = "bytes"
    older: bool = False
    sharded: bool = False


BASES = {
    "llama": Base("llama", {"tie_word_embeddings": True, "rope_theta": 1e4}, older=True),
    "sharded": Base(
        "llama",
        {"tie_word_embeddings": False, "rope_theta": 5e5, "rope_scaling": LLAMA3},
        older=True,
        sharded=True,
    ),
    "mistral": Base("mistral", {"sliding_window": 9}, "llama"),
    "qwen2": Base(
        "qwen2",
        {
            "tie_word_embeddings": True,
            "sliding_window": 9,
            "use_sliding_window": True,
            "layer_types": LOCAL_FIRST[::-1],
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        },
    ),
    "qwen3": Base("qwen3", {"tie_word_embeddings": False}),
    "smollm3": Base("smollm3", {"no_rope_layers": [1, 0]}),
    "gemma3_text": Base(
        "gemma3_text",
        {"sliding_window": 9, "layer_types": LOCAL_FIRST, "query_pre_attn_scalar": 12},
        "gemma",
    ),
    "olmo2": Base("olmo2", {"hidden_size": 48, "head_dim": None}),
    "phi3": Base(
        "phi3",
        {"hidden_size": 48, "head_dim": None, "partial_rotary_factor": 0.5}
        | {"original_max_position_embeddings": 16, "rope_scaling": LONGROPE, "sliding_window": 64},
        "llama",
    ),
    "mixtral": Base("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2}, "llama"),
    "qwen3_moe": Base(
        "qwen3_moe",
        {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"mlp_only_layers": [1]},
    ),
}


def build(root: Path, name: str) -> None:
    """Write the folder of one of BASES under `root`, always the same bytes."""
    write_folder(root / name, BASES[name])


def write_folder(folder: Path, base: Base) -> None:
    """Write a new folder with the model, its tokenizer and its chat template."""
    folder.mkdir(parents=True)
    path = folder / "tokenizer.json"
    if base.tokenizer == "bytes":
        vocab_size = tokenizers.byte_level(path)
    else:
        vocab_size = tokenizers.sentencepiece(path, prefix=base.tokenizer == "llama")
    write_model(folder, base, vocab_size)
    _write(folder / "generation_config.json", {"eos_token_id": [vocab_size - 1]})
    described: dict[str, Any] = {"bos_token": "<|im_start|>"}
    described["eos_token"] = {"content": "<|im_end|>"}
    if base.sharded:
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    else:
        described["chat_template"] = TEMPLATE
    _write(folder / "tokenizer_config.json", described)


def write_model(folder: Path, base: Base, vocab_size: int) -> None:
    """Write config.json and the weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {**SIZES, "vocab_size": vocab_size, **base.settings}
    if settings["head_dim"] is None:
        del settings["head_dim"]
    config = AutoConfig.for_model(base.model_type, **settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    model.save_pretrained(folder, max_shard_size="70KB" if base.sharded else "5GB")
    path = folder / "config.json"
    if base.older:
        older = {"model_type": base.model_type, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
        _write(path, older | {"torch_dtype": "float32"} | settings)
    else:
        _write(path, json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
