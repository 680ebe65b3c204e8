"""The way back from a damaged GGUF file to a folder, which knows nothing of minillm.

It is what the oracle compares with: transformers computes logits from that folder.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.fuzz.gguf_format import Document, stored
from tests.fuzz.gguf_models import KEYS, GGUFBase, Kind, tensor_names
from tests.fuzz.tables import WrongError

Settings = dict[str, Any]


def to_folder(
    document: Document, base: GGUFBase, original: Document, source: Path, folder: Path
) -> None:
    """Write the folder that a damaged file describes; `WrongError` where it describes none."""
    config = _settings(document.values(), original.values(), base, source)
    config["tie_word_embeddings"] = "output.weight" not in stored(document)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(document, base, original, source, config), folder / "model.safetensors")


def _settings(values: Settings, before: Settings, base: GGUFBase, source: Path) -> Settings:
    """config.json of the undamaged model, with what the damaged metadata say otherwise."""
    config: Settings = json.loads((source / "config.json").read_text())
    if values.get("general.architecture") != base.architecture:
        raise WrongError(f"the architecture is {values.get('general.architecture')!r}")
    prefix = f"{base.architecture}."
    for full in sorted(key for key in values.keys() | before.keys() if key.startswith(prefix)):
        key, ours, old = full.removeprefix(prefix), values.get(full), before.get(full)
        if ours is None:
            ours = ABSENT.get(key)
        if ours is None or ours == old:  # what is left out must come to the same
            continue
        hf_key = (KEYS | base.keys).get(key)
        if key in RULES:
            RULES[key](config, ours)
        elif hf_key is None and key in ("expert_count", "expert_used_count") and ours == 0:
            continue
        elif hf_key is None or type(ours) is not type(old):
            raise WrongError(f"{full:.200} is {ours!r:.200}, it was {old!r:.200}")
        else:
            config[hf_key] = ours
    return config


def _theta(config: Settings, value: Any) -> None:
    _global_rope(config)["rope_theta"] = value


def _local_theta(config: Settings, value: Any) -> None:
    config["rope_parameters"]["sliding_attention"]["rope_theta"] = value


def _stretch(config: Settings, value: Any) -> None:
    if value != 1:
        _global_rope(config).update(rope_type="linear", factor=value)


def _window(config: Settings, value: Any) -> None:
    config["sliding_window"] = value
    if value == 0:  # no windows, and so no layer with the RoPE of those
        config |= {"sliding_window": 4_096, "layer_types": ["full_attention"] * 2}


def _pattern(config: Settings, value: Any) -> None:
    local = value if isinstance(value, list) else [(layer + 1) % value != 0 for layer in (0, 1)]
    names = {True: "sliding_attention", False: "full_attention"}
    config["layer_types"] = [names[is_local] for is_local in local]


def _only(*neutral: Any) -> Callable[[Settings, Any], None]:
    """A key that may have these values, which change nothing."""

    def rule(config: Settings, value: Any) -> None:
        if value not in neutral:
            raise WrongError(f"a value of {value!r:.200} counts for nothing")

    return rule


def _rotated(config: Settings, value: Any) -> None:
    """So many values of a head: Phi-3 may leave the others as they are."""
    if type(value) is not int:
        raise WrongError(f"rope.dimension_count is {value!r:.200}")
    if config["model_type"] != "phi3":
        config["head_dim"] = value
    else:
        width = config["hidden_size"] // config["num_attention_heads"]
        _global_rope(config)["partial_rotary_factor"] = value / width


def _nothing(config: Settings, value: Any) -> None:
    """A length that counts only where YaRN is on."""


RULES: dict[str, Callable[[Settings, Any], None]] = {
    "attention.sliding_window": _window,
    "attention.sliding_window_pattern": _pattern,
    "final_logit_softcapping": _only(0.0),
    "rope.dimension_count": _rotated,
    "rope.freq_base": _theta,
    "rope.freq_base_swa": _local_theta,
    "rope.scale_linear": _stretch,
    "rope.scaling.factor": _stretch,
    "rope.scaling.original_context_length": _nothing,
    "rope.scaling.type": _only("none", "linear"),
}


# What a key that is not there stands for.
ABSENT = {"attention.sliding_window": 0, "rope.freq_base": 10_000.0}


def _global_rope(config: Settings) -> Settings:
    rope: Settings = config["rope_parameters"]
    return rope.get("full_attention", rope)


def _weights(
    document: Document, base: GGUFBase, original: Document, source: Path, config: dict[str, Any]
) -> dict[str, torch.Tensor]:
    names = tensor_names(base, load_file(source / "model.safetensors"))
    names["output.weight"] = ["lm_head.weight"]  # a head may be added
    before = stored(original)
    before.setdefault("output.weight", before["token_embd.weight"])
    found: dict[str, torch.Tensor] = {}
    for name, tensor in stored(document).items():
        if name not in before or tensor.shape != before[name].shape:
            raise WrongError(f"{name} is {tensor.kind} {tensor.shape}, which was not there before")
        raw = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape[:-1], -1)
        values = torch.from_numpy(_floats(raw, tensor.kind)).view(tensor.shape)
        values = values - base.norm_offset * ("norm" in name)
        if base.permuted and (".attn_q." in name or ".attn_k." in name):
            heads = config["num_attention_heads" if "_q" in name else "num_key_value_heads"]
            split = values.view(heads, -1, 2, values.shape[-1]).transpose(1, 2)
            values = split.reshape(values.shape)
        parts = values if "_exps" in name else values[None]
        found |= {
            hf_name: part.contiguous() for hf_name, part in zip(names[name], parts, strict=True)
        }
    return found


def _floats(raw: Any, kind: str) -> Any:
    if kind == "F64":
        return raw.view(np.float64).astype(np.float32)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, getattr(Kind, kind)).copy()
