"""Damage to the quantization_config of config.json, which says how weights are packed."""

import random
from pathlib import Path
from typing import Any

from tests.fuzz.damage.values import HOSTILE, near, read_json, show, write_json

# Values that mean something, some of them to other programs only.
PLAUSIBLE: dict[str, list[Any]] = {
    "quant_method": ["gptq", "awq", "auto-round", "GPTQ", "Auto-Round", "bitsandbytes", "fp8"],
    "bits": [2, 3, 4, 8, 16, "4"],
    "group_size": [-1, 16, 31, 32, 64, 96, 128, 160, None],
    "sym": [True, False, "true", None],
    "desc_act": [True, False, "false"],
    "checkpoint_format": ["gptq", "gptq_v2", "gemm", "marlin", "GPTQ_V2", None],
    "format": ["gptq", "gptq_v2", "gemm", None],
    "version": ["gemm", "GEMM", "gemv", "gemv_fast", "exllama", None],
    "packing_format": [
        *("auto_round", "auto_round:auto_gptq", "auto_round:gptq", "auto_round:gptqmodel"),
        *("auto_round:auto_awq", "auto_round:exllamav2", "auto_round:fp8", "AUTO_ROUND:AUTO_GPTQ"),
    ],
    "backend": ["llm-awq", "autoawq", "auto"],
    "zero_point": [True, False],
    "meta": [{"quantizer": ["gptqmodel:2.0.0"]}, {"quantizer": ["GPTQModel:5.0.0"]}, "gptqmodel"],
    "provider": ["auto-round", "gptqmodel"],
    "dynamic": [{}, {r"-:.*lm_head.*": {}}, {r"+:.*": {"bits": 8, "group_size": 16}}],
    "extra_config": [{}, {"lm_head": {"bits": 16}}],
    "pack_dtype": ["int32", "torch.int32", "int16", "int64", "int8"],
    "is_marlin_format": [True, False],
    "modules_to_not_convert": [None, ["lm_head"], ["mlp"]],
    "data_type": ["int", "mx_fp4"],
    "act_bits": [8, 16],
    "lm_head": [True, False],
}
AUTO_ROUND = {"quant_method": "auto-round", "checkpoint_format": None, "version": None}


def packing_value(folder: Path, rng: random.Random) -> str:
    """Other values in quantization_config, fewer, or another method's."""
    path = folder / "config.json"
    config = read_json(path)
    said = config.get("quantization_config") if isinstance(config, dict) else None
    if not isinstance(said, dict):
        return "there is no quantization_config any more"
    if rng.random() < 0.1:
        said |= AUTO_ROUND | {"packing_format": rng.choice(PLAUSIBLE["packing_format"])}
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        key = rng.choice([*PLAUSIBLE, *said, *said])
        if rng.random() < 0.15:
            said.pop(key, None)
            done.append(f"no {key}")
            continue
        likely = [*near(said.get(key)), *PLAUSIBLE.get(key, [])]
        said[key] = rng.choice(likely if likely and rng.random() < 0.7 else HOSTILE)
        done.append(f"{key} = {show(said[key])}")
    write_json(path, config, rng)
    return ", ".join(done)
