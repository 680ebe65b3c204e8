"""Damage to packed weights: their tensors, in files that stay well formed."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fuzz.damage.safetensors import Tensors, parsed, tensors_of, write_tensors
from tests.fuzz.damage.values import read_json, write_json

Array = npt.NDArray[Any]
TYPES: dict[str, type[np.generic]] = {
    "I32": np.int32,
    "I64": np.int64,
    "I16": np.int16,
    "U8": np.uint8,
    "U32": np.uint32,
    "F16": np.float16,
    "F32": np.float32,
    "F64": np.float64,
    "BOOL": np.bool_,
}
# What programs say of themselves, on which it depends how they store zero points.
WRITERS: list[dict[str, Any]] = [
    {"meta": None},
    {"meta": {"quantizer": ["gptqmodel:2.0.0"]}},
    {"meta": {"quantizer": "GPTQModel:5.0"}},
    {"provider": "auto-round"},
    {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"},
    {"quant_method": "auto-round", "packing_format": "auto_round:gptqmodel"},
    {"quant_method": "auto-round", "packing_format": "auto_round"},
    {"quant_method": "Auto-Round", "packing_format": "auto_round:gptq:exllamav2"},
]
# Words of zero points in the middle, as they are and less 1.
MIDDLE = [b"\x88" * 4, b"\x80" * 4, b"\x77" * 4, b"\x7f" * 4]
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def packed_layer(folder: Path, rng: random.Random) -> str:
    """Change the tensors of one packed layer; the file itself stays well formed."""
    path, header, values = parsed(folder, rng)
    tensors = tensors_of(header, values)
    layers = sorted(name[:-8] for name in tensors if name.endswith(".qweight"))
    if not layers:
        return f"{path.name} has no packed layers"
    layer = rng.choice(layers)
    parts = {part: _array(tensors, f"{layer}.{part}") for part in PARTS}
    present = {part: array for part, array in parts.items() if array is not None}
    how = rng.choice([_numbers, _numbers, _shape, _type, _names, _order, _groups, _wider, _other])
    done = how(present, rng)
    for part in PARTS:
        tensors.pop(f"{layer}.{part}", None)
    for part, array in present.items():
        _put(tensors, part if part.startswith("model.") else f"{layer}.{part}", array)
    if how is _wider and rng.random() < 0.5:  # which one layer may be where others are not
        config = read_json(folder / "config.json")
        config["quantization_config"]["dynamic"] = {rf"+:{layer}": {"bits": 8}}
        write_json(folder / "config.json", config, rng)
    write_tensors(path, tensors)
    return f"{done} of {layer}"


def packed_head(folder: Path, rng: random.Random) -> str:
    """A packed output head in place of the plain one, as some tools write it."""
    path, header, values = parsed(folder, rng)
    tensors = tensors_of(header, values)
    layers = sorted(name[:-8] for name in tensors if name.endswith(".qweight") and "self" in name)
    table = tensors.get("model.embed_tokens.weight")
    if not layers or table is None:
        return f"{path.name} has no packed layers"
    tensors.pop("lm_head.weight", None)
    layer = rng.choice([name for name in layers if "self_attn.o" not in name] or layers)
    for part in PARTS:
        array = _array(tensors, f"{layer}.{part}")
        if array is not None and array.ndim == 2:
            N = tensors[f"{layer}.scales"][1][1]
            array = np.resize(array, (len(array), array.shape[1] * table[1][0] // N))
        if array is not None:
            _put(tensors, f"lm_head.{part}", array)
    write_tensors(path, tensors)
    return f"the head is {layer} over and over"


def zero_points(folder: Path, rng: random.Random) -> str:
    """Zero points of any value in all layers, as one program or another would store them."""
    path, header, values = parsed(folder, rng)
    tensors = tensors_of(header, values)
    for name, (kind, shape, data) in tensors.items():
        if name.endswith(".qzeros"):
            one = rng.choice([*MIDDLE, *MIDDLE, rng.randbytes(4), b"\xff" * 4, b"\x0f\xf0\xff\x00"])
            words = one * (len(data) // 4) if rng.random() < 0.7 else rng.randbytes(len(data))
            tensors[name] = kind, shape, words
    write_tensors(path, tensors)
    config = read_json(folder / "config.json")
    said = rng.choice(WRITERS) | {"checkpoint_format": rng.choice(["gptq", "gptq_v2", None])}
    if config["quantization_config"]["quant_method"] == "gptq":
        config["quantization_config"] |= said | {"sym": rng.random() < 0.5}
        write_json(folder / "config.json", config, rng)
    return f"any zero points, {said}"


def _numbers(parts: dict[str, Array], rng: random.Random) -> str:
    """Any words, and scales and zero points at their limits."""
    part = rng.choice(list(parts))
    array = parts[part].copy()
    words = rng.choice([0, -1, 0x77777777, 0x7F7F7F7F, -0x77777778, -0x7F7F7F80, None])
    scales = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 6e-8, -0.3, 65504.0, 3e38]
    if part == "g_idx":
        return _order(parts, rng)
    with np.errstate(over="ignore"):
        number = np.array(rng.choice(scales) if part == "scales" else words or 0)
        number = number.astype(array.dtype)
    some = rng.sample(range(array.size), min(array.size, rng.choice([1, 8, array.size])))
    if part != "scales" and words is None:
        random_words = np.frombuffer(rng.randbytes(4 * len(some)), dtype=np.int32)
        array.reshape(-1)[some] = random_words.astype(array.dtype)
    else:
        array.reshape(-1)[some] = number
    parts[part] = array
    return f"{len(some)} values of {part} are {number if words is not None else 'random'}"


def _shape(parts: dict[str, Array], rng: random.Random) -> str:
    """Transposed, cut, doubled, flat, empty."""
    part = rng.choice(list(parts))
    array = parts[part]
    shapes: list[Callable[[Array], Array]] = [
        lambda x: x.T,
        lambda x: x[:-1],
        lambda x: x[..., :-1],
        lambda x: x[:0],
        lambda x: np.concatenate([x, x]),
        lambda x: np.concatenate([x, x], axis=-1),
        lambda x: x.reshape(-1),
        lambda x: x[None],
        lambda x: x[..., None],
        lambda x: x.reshape(x.shape[-1], -1),
        lambda x: x.reshape(-1)[0],
    ]
    parts[part] = rng.choice(shapes)(array)
    return f"{part} {array.shape} becomes {parts[part].shape}"


def _type(parts: dict[str, Array], rng: random.Random) -> str:
    """Another type; scales with more digits than they had."""
    part = rng.choice(["scales", *parts])
    usual = [np.float32] * 4 if part == "scales" else [np.int64]
    kind = rng.choice([*usual, *TYPES.values()])
    more = 1 + rng.random() if part == "scales" else 1
    with np.errstate(all="ignore"):
        parts[part] = (parts[part] * np.float64(more)).astype(kind)
    return f"{part} becomes {kind.__name__}"


def _names(parts: dict[str, Array], rng: random.Random) -> str:
    """A part that is gone, twice there, under another name, or beside the weight itself."""
    part = rng.choice(list(parts))
    how = rng.choice(["gone", "renamed", "twice", "weight", "bias", "other"])
    if how in ("gone", "renamed"):
        array = parts.pop(part)
    array = parts[part] if how not in ("gone", "renamed") else array
    if how == "renamed":
        parts[rng.choice([*PARTS, part.upper(), "weight", "zeros", "qscales"])] = array
    elif how == "twice":
        parts[rng.choice([*PARTS, f"{part}.{part}"])] = array
    elif how == "weight":
        parts["weight"] = np.ones((parts["scales"].shape[-1], 64), dtype=np.float32)
    elif how == "bias":
        parts["bias"] = np.ones(parts["scales"].shape[-1], dtype=np.float32)
    elif how == "other":
        parts[f"model.layers.{rng.choice(['0', '9'])}.mlp.up_proj.{part}"] = array
    return f"{part} is {how}"


def _order(parts: dict[str, Array], rng: random.Random) -> str:
    """Another assignment of inputs to groups."""
    G = len(parts["scales"])
    C = len(parts["g_idx"]) if "g_idx" in parts else G * rng.choice([16, 32])
    order = np.arange(C, dtype=np.int32) * G // C
    how = rng.choice(["mixed", "backwards", "sorted", "one", "low", "high", "unequal", "turns"])
    if how == "mixed":
        order = np.array(rng.sample(list(order), C), dtype=np.int32)
    elif how == "backwards":
        order = order[::-1]
    elif how == "turns":
        order = np.arange(C, dtype=np.int32) % G
    elif how == "one":
        order = np.zeros_like(order)
    elif how != "sorted":
        limits = {"low": [-1, -(2**31), -G], "high": [G, 2**31 - 1, 255, C]}
        order[rng.randrange(C)] = rng.choice(limits.get(how, [0, G - 1]))
    parts["g_idx"] = order
    return f"g_idx is {how}"


def _groups(parts: dict[str, Array], rng: random.Random) -> str:
    """Half as many groups, twice as many, or one."""
    how = rng.choice(["half", "twice", "one", "scales only"])
    changed = ("scales",) if how == "scales only" else ("scales", "qzeros")
    for part in changed:
        array = parts[part]
        parts[part] = {"half": array[::2], "one": array[:1]}.get(how, np.repeat(array, 2, axis=0))
    if "g_idx" in parts and how != "scales only" and rng.random() < 0.7:
        C = len(parts["g_idx"])
        parts["g_idx"] = np.arange(C, dtype=np.int32) * len(parts["scales"]) // C
    return f"{how}: {len(parts['scales'])} groups"


def _wider(parts: dict[str, Array], rng: random.Random) -> str:
    """Words of a layer with other bits, which fit each other."""
    awq = parts["qweight"].shape[1] < parts["scales"].shape[1]
    twice = parts["qzeros"].shape[1] * 8 == parts["scales"].shape[1]
    for part in ("qweight", "qzeros"):
        axis = 1 if part == "qzeros" or awq else 0
        array = parts[part]
        fewer = array[: len(array) // 2] if axis == 0 else array[:, : array.shape[1] // 2]
        parts[part] = np.concatenate([array, array], axis=axis) if twice else fewer
    return f"{'twice' if twice else 'half'} the bits"


def _other(parts: dict[str, Array], rng: random.Random) -> str:
    """A packed layer where none may be: the tensors under another name as well."""
    others = ["embed_tokens", "norm", "layers.0.input_layernorm", "layers.0.mlp.gate", "x"]
    other = rng.choice(others)
    for part in list(parts):
        parts[f"model.{other}.{part}"] = parts[part]
    return f"{other} has the tensors"


def _array(tensors: Tensors, name: str) -> Array | None:
    if name not in tensors:
        return None
    kind, shape, data = tensors[name]
    return np.frombuffer(data, dtype=TYPES[kind]).reshape(shape)


def _put(tensors: Tensors, name: str, array: Array) -> None:
    kinds = {np.dtype(value): key for key, value in TYPES.items()}
    tensors[name] = kinds[array.dtype], list(array.shape), array.tobytes()
