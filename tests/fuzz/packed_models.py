"""Small models with quantized layers, whole and right: what the fuzzer damages.

minillm writes those in GPTQ's layout; `packed_back` reads them without it. Those in AWQ's are made
of random words.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from minillm.llm import LLM
from tests.fuzz.folders import Base, write_folder
from tests.fuzz.gguf_models import source_of
from tests.weights.packing import AWQ, random_parts
from tests.weights.quantized_models import quantize_all

# Every width is a multiple of 32, and no two that should differ are the same. The table has more
# rows than there are tokens, so that a head could be packed too.
WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "head_dim": 24}
WIDE |= {"vocab_size": 384}
ROWS: dict[str, Any] = {"bits": 8, "group_size": -1, "symmetric": True}


@dataclass(frozen=True, slots=True)
class PackedBase:
    """A model to quantize and damage.

    rounding: how its layers are rounded and written as GPTQ; None: random words in AWQ's layout.
    """

    folder: Base
    rounding: dict[str, Any] | None = None


BASES = {
    "packed_gptq": PackedBase(
        Base("llama", WIDE | {"tie_word_embeddings": False}),
        {"bits": 4, "group_size": 32, "symmetric": True},
    ),
    # Fused projections, which share the order of their inputs.
    "packed_gptq_v2": PackedBase(
        Base("phi3", WIDE | {"head_dim": None}, "llama"),
        {"bits": 4, "group_size": 32, "symmetric": False, "act_order": True},
    ),
    "packed_rows": PackedBase(Base("qwen2", WIDE | {"tie_word_embeddings": True}), ROWS),
    "packed_experts": PackedBase(
        Base(
            "qwen3_moe",
            WIDE | {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        ),
        ROWS | {"group_size": 16, "act_order": True},
    ),
    "packed_awq": PackedBase(Base("mistral", WIDE | {"sliding_window": 9}, "llama")),
}


def build(root: Path, name: str) -> None:
    """Write one of BASES under `root`, always the same bytes, and beside `root` its source."""
    base, source = BASES[name], source_of(root / name)
    write_folder(source, base.folder)
    if base.rounding is None:
        _pack(source, root / name)
        return
    llm = LLM.from_pretrained(source, device="cpu", dtype="float32")
    quantize_all(llm.model, **base.rounding)
    llm.save(root / name)


def _pack(source: Path, folder: Path) -> None:
    """Write a copy of the folder `source` with random words for the weights of its layers."""
    folder.mkdir(parents=True)
    for path in source.glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": AWQ}))
    tensors: dict[str, torch.Tensor] = {}
    for seed, (name, weight) in enumerate(sorted(load_file(source / "model.safetensors").items())):
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        for part, packed in random_parts(AWQ, *weight.shape, seed=seed).items():
            tensors[f"{name.removesuffix('weight')}{part}"] = packed
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
