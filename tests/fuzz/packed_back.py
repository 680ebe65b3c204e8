"""Folders of packed weights as folders of plain ones, which transformers reads, without minillm.

`tests.weights.packing.meaning` says what the words stand for; here is what config.json says of
them. `WrongError` names what nothing in the files explains.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.fuzz.tables import Stored, WrongError, folder_tensors
from tests.weights.packing import meaning

PARTS = ("qweight", "qzeros", "scales", "g_idx")
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16}
TYPES |= {"BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
TYPES |= {"I32": torch.int32}
# The writers of these names subtract 1 from the zero points of a word as from one number.
WHOLE_WORDS = ("gptqmodel", "auto-round")


def is_packed(folder: Path) -> bool:
    """Whether a folder holds packed weights."""
    return any(name.endswith(".qweight") for name in folder_tensors(folder))


def plain_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of `folder`; packed ones are float32."""
    config = json.loads((folder / "config.json").read_bytes()).get("quantization_config")
    tensors = {name: _tensor(stored) for name, stored in folder_tensors(folder).items()}
    return unpacked(tensors, config)


def unpacked(tensors: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    """These tensors with the parts of each packed weight X as X.weight, float32.

    config: what config.json calls quantization_config.
    """
    if not isinstance(config, dict):
        raise WrongError(f"packed weights, and quantization_config is {config!r:.200}")
    found: dict[str, Tensor] = {}
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part in PARTS:
            layers.setdefault(layer, {})[part] = tensor
        else:
            found[name] = tensor
    for layer, parts in layers.items():
        if f"{layer}.weight" in found:
            raise WrongError(f"{layer} is there twice")
        found[f"{layer}.weight"] = plain_weight(layer, parts, config)
    return found


def plain_weight(layer: str, parts: dict[str, Tensor], config: dict[str, Any]) -> Tensor:
    """The weight of a layer, (N, C), float32."""
    method = str(config["quant_method"]).lower()
    packing = str(config.get("packing_format") or "auto_round:auto_gptq").lower()
    awq = method == "awq" or (method == "auto-round" and "awq" in packing)
    layout: dict[str, Any] = {"quant_method": "awq" if awq else "gptq"}
    G, N = parts["scales"].shape
    layout["bits"] = bits = 32 * parts["qzeros"].shape[1] // N
    C = len(parts["qweight"]) * (1 if awq else 32 // bits)
    layout["group_size"] = C // G
    size = 128 if config.get("group_size") is None else config["group_size"]
    sizes = (C,) if size == -1 else (min(size, C),)
    told = config.get("dynamic") or config.get("extra_config")  # layers differ
    if not told and (bits != config["bits"] or C // G not in sizes):
        raise WrongError(f"{layer} has {bits} bits and groups of {C // G}: {config!r:.500}")
    if awq and bits == 8:
        return _awq_octets(parts)
    return meaning(*_zeros_as_they_are(parts, layout, config))


def _awq_octets(parts: dict[str, Tensor]) -> Tensor:
    """8 bits in AWQ's layout, in which GPTQModel keeps the outputs of a word in order."""
    codes, zeros = (parts[part].numpy().view(np.uint8) for part in ("qweight", "qzeros"))
    groups = np.arange(len(codes)) * len(zeros) // len(codes)
    if "g_idx" in parts:
        groups = parts["g_idx"].numpy()
    weight = (codes.astype(np.float64) - zeros[groups]) * parts["scales"].double().numpy()[groups]
    return torch.tensor(weight.T).float().contiguous()


def _zeros_as_they_are(
    parts: dict[str, Tensor], layout: dict[str, Any], config: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Arguments of `meaning`: the last one is what is added to each stored zero point."""
    bits = layout["bits"]
    if layout["quant_method"] == "awq" or _second_version(config):
        return parts, layout, 0
    words = [word & 0xFFFFFFFF for word in parts["qzeros"].flatten().tolist()]
    ones = sum(1 << place for place in range(0, 32, bits))
    if config.get("sym") is True and all(word == ones << (bits - 1) for word in words):
        return parts, layout, 0  # the second version under the first one's name
    if any(name in json.dumps(config).lower() for name in WHOLE_WORDS):
        whole = [word + ones & 0xFFFFFFFF for word in words]
        signed = torch.tensor([w if w < 2**31 else w - 2**32 for w in whole])
        return parts | {"qzeros": signed.int().view(parts["qzeros"].shape)}, layout, 0
    return parts, layout, 1


def _second_version(config: dict[str, Any]) -> bool:
    """Whether zero points are stored as they are."""
    if str(config["quant_method"]).lower() == "auto-round":
        packing = str(config.get("packing_format") or "auto_round:auto_gptq").lower()
        return "gptqmodel" in packing or "gptq" not in packing
    named = [config.get("checkpoint_format"), config.get("format")]
    return any(str(name).lower() == "gptq_v2" for name in named)


def _tensor(stored: Stored) -> Tensor:
    values = torch.frombuffer(bytearray(stored.data), dtype=torch.uint8)
    return values.view(TYPES[stored.kind]).view(stored.shape)
