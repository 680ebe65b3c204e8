"""GPTQ and AWQ tensors of random words, and what they mean, by loops over the format's definition.

Nothing here uses minillm: a word is a Python integer, a code is four or eight of its bits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from minillm.hf_quantization import read_packing
from minillm.weights.packed import PackedTensor, packed_weights
from minillm.weights.safetensors import open_tensors

# Output that the i-th four bits of an AWQ word belong to.
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)
NAME = "model.layers.0.mlp.up_proj"
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
}


def field(word: int, place: int, bits: int) -> int:
    """The place-th code of a word, the lowest bits being the first."""
    return (word & 0xFFFFFFFF) >> (bits * place) & (2**bits - 1)


def meaning(parts: dict[str, Tensor], config: dict[str, Any], offset: int = 0) -> Tensor:
    """The weight that the tensors stand for, (N, C), float32.

    offset: added to each stored zero point, without its bits flowing over.
    """
    bits, awq = config["bits"], config["quant_method"] == "awq"
    words = {name: part.tolist() for name, part in parts.items() if name.startswith("q")}
    scales = parts["scales"].double().tolist()
    per_word = 32 // bits
    N = parts["scales"].shape[1]
    C = len(words["qweight"]) * (1 if awq else per_word)
    size = C if config["group_size"] == -1 else config["group_size"]
    group_of = parts["g_idx"].tolist() if "g_idx" in parts else [c // size for c in range(C)]
    place = [AWQ_COLUMNS.index(n) for n in range(8)] if awq else list(range(per_word))
    weight = np.zeros((N, C), dtype=np.float64)
    for n in range(N):
        word, within = n // per_word, place[n % per_word]
        for c in range(C):
            g = group_of[c]
            zero = (field(words["qzeros"][g][word], within, bits) + offset) % 2**bits
            if awq:
                code = field(words["qweight"][c][word], within, bits)
            else:
                code = field(words["qweight"][c // per_word][n], c % per_word, bits)
            weight[n, c] = (code - zero) * scales[g][n]
    return torch.tensor(weight).float()


def random_words(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.tensor(rng.integers(-(2**31), 2**31, shape), dtype=torch.int32)


def random_parts(
    config: dict[str, Any],
    N: int,
    C: int,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float16,
    mixed: bool = False,
) -> dict[str, Tensor]:
    """The tensors of a layer of any codes, zero points and scales, some of them negative.

    mixed: inputs are in groups at random, as act-order leaves them.
    """
    rng = np.random.default_rng(seed)
    per_word = 32 // config["bits"]
    size = C if config["group_size"] == -1 else config["group_size"]
    G = C // size
    words = (C, N // per_word) if config["quant_method"] == "awq" else (C // per_word, N)
    parts = {
        "qweight": random_words(rng, *words),
        "qzeros": random_words(rng, G, N // per_word),
        "scales": torch.tensor(rng.normal(size=(G, N)) / 10).to(dtype),
    }
    if mixed:
        parts["g_idx"] = torch.tensor(rng.permutation(np.arange(C) // size), dtype=torch.int32)
    return parts


def opened(folder: Path, parts: dict[str, Tensor], config: dict[str, Any]) -> PackedTensor:
    """The layer, from a file in `folder`."""
    file = folder / "model.safetensors"
    save_file({f"{NAME}.{part}": tensor for part, tensor in parts.items()}, file)
    packing = read_packing({"quantization_config": config})
    found = packed_weights(open_tensors(folder), packing)[f"{NAME}.weight"]
    assert isinstance(found, PackedTensor)
    return found
