"""Three small model folders with random weights, whole and right: what the fuzzer damages."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from minillm.config import ModelConfig
from minillm.model import Transformer
from minillm.tokenizer import Tokenizer

TEXTS = ["the theme of the other hand", "hello world, hello there", "1984 and 42: ½ Grüße 🌶"] * 3
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# C differs from H·D, H from K, F from both, and a head is 8 wide: no two dimensions are the same.
SIZES = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "pad_token_id": None,
    "dtype": "float32",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# folder → (config.json, in shards?)
KINDS = {
    "single": ({"model_type": "llama", "tie_word_embeddings": True, "rope_theta": 1e4}, False),
    "sharded": (
        {"model_type": "llama", "tie_word_embeddings": False, "rope_scaling": LLAMA3}
        | {"rope_theta": 5e5, "attention_bias": False, "mlp_bias": False},
        True,
    ),
    "qwen2": (
        {"model_type": "qwen2", "tie_word_embeddings": True, "sliding_window": 9}
        | {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
        | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        False,
    ),
}


def build(root: Path) -> None:
    """Write the folders `root`/single, `root`/sharded and `root`/qwen2, always the same bytes."""
    tokenizer = Tokenizer.train(TEXTS, vocab_size=300, special_tokens=SPECIAL)
    for kind, (settings, sharded) in KINDS.items():
        folder = root / kind
        folder.mkdir(parents=True)
        tokenizer.save(folder / "tokenizer.json")
        config = {**SIZES, **settings, "vocab_size": tokenizer.vocab_size}
        _write(folder / "config.json", config)
        _write(folder / "generation_config.json", {"eos_token_id": [tokenizer.vocab_size - 1]})
        described = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
        if sharded:
            (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        else:
            described["chat_template"] = TEMPLATE
        _write(folder / "tokenizer_config.json", described)
        _write_weights(folder, ModelConfig.from_hf(config), sharded)


def _write_weights(folder: Path, config: ModelConfig, sharded: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": torch.randn(
            tensor.shape, generator=generator
        )
        for name, tensor in Transformer(config).state_dict().items()
    }
    if not sharded:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    _write(folder / "model.safetensors.index.json", index)


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
