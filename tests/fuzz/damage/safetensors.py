"""Damage to safetensors files and to the index of their shards."""

import json
import math
import random
import struct
from pathlib import Path
from typing import Any, TypeAlias

from tests.fuzz.damage.values import HOSTILE, flip, read, read_json, show, write_json

# Type, shape and bytes of each tensor.
Tensors: TypeAlias = dict[str, tuple[str, list[int], bytes]]

DTYPES = ["F16", "BF16", "F64", "I32", "U32", "BOOL", "F4", "F8_E4M3", "f32", 7, None]


def header_bits(folder: Path, rng: random.Random) -> str:
    """Flip bits in the JSON header of a safetensors file."""
    path, data = _weights(folder, rng)
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8)
    places = [8 + rng.randrange(max(length, 1)) for _ in range(rng.choice([1, 1, 2, 8, 64]))]
    return flip(path, data, places, rng)


def length_prefix(folder: Path, rng: random.Random) -> str:
    """Change the 8 bytes that give the length of the header."""
    path, data = _weights(folder, rng)
    length = rng.choice([0, 1, 2, 7, len(data), len(data) - 8, 25_000_001, 2**31, 2**63, 2**64 - 1])
    path.write_bytes(struct.pack("<Q", length) + bytes(data[8:]))
    return f"{path.name} says that its header has {length} bytes"


def header_entry(folder: Path, rng: random.Random) -> str:
    """Change what the header says of one tensor."""
    path, header, values = parsed(folder, rng)
    if not header:
        return f"{path.name} has no header left"
    name = rng.choice(list(header))
    entry = header[name]
    (begin, end), shape = entry["data_offsets"], entry["shape"]
    what = rng.choice(["dtype", "shape", "offsets", "key", "lose", "add", "meta", "twice"])
    if what == "dtype":
        entry["dtype"] = rng.choice(DTYPES)
    elif what == "shape":
        wrong = [shape[::-1], [*shape, 1], [1, *shape], shape[:-1], [-n for n in shape], [0], []]
        wrong += [[n * 2 for n in shape], [float(n) for n in shape], ["8"], None, [2**64], [10**30]]
        wrong += [[2**62, 4], [shape[0] * 2, *[n // 2 for n in shape[1:2]]]]
        entry["shape"] = rng.choice(wrong)
    elif what == "offsets":
        wrong = [[end, begin], [begin, end - 4], [begin + 4, end], [0, end - begin], [-8, end]]
        wrong += [[begin, 2**63], [begin], [], [begin, end, end], None, [0.0, 4.0], [2**64, 2**65]]
        wrong += [[begin + 1, end + 1], [begin + 4, end + 4], [begin, begin]]
        entry["data_offsets"] = rng.choice(wrong)
    elif what == "key":
        key = rng.choice(list(entry))
        if rng.random() < 0.5:
            del entry[key]
        else:
            entry[key] = rng.choice(HOSTILE)
    elif what == "lose":
        del header[name]
    elif what == "add":
        header[rng.choice(["extra", "", "model.layers.9.mlp.up_proj.weight", "🌶"])] = entry
    elif what == "meta":
        header["__metadata__"] = rng.choice([*HOSTILE, {"a": "b" * 1_000_000}])
    text = json.dumps(header)
    if what == "twice":
        text = text[:-1] + ", " + json.dumps({name: entry})[1:]
    write_file(path, text, values)
    return f"{what} of {name!r} in {path.name}: {show(header.get(name))}"


def weight_table(folder: Path, rng: random.Random) -> str:
    """Drop, duplicate, rename, reshape or swap whole tensors; the file itself stays well formed."""
    path, header, values = parsed(folder, rng)
    names = list(header)
    if len(names) < 2:
        return f"{path.name} has no tensors to change"
    tensors = tensors_of(header, values)
    name, other = rng.sample(names, 2)
    what = rng.choice(["drop", "duplicate", "rename", "reshape", "swap", "retype", "layer", "move"])
    dtype, shape, data = tensors[name]
    if what == "drop":
        del tensors[name]
    elif what == "duplicate":
        more = [
            f"{name}.1",
            f"model.{name}",
            name.replace(".0.", ".2."),
            name.replace("model.", ""),
        ]
        tensors[rng.choice([*more, "lm_head.weight", "model.embed_tokens.weight"])] = tensors[name]
    elif what == "rename":
        del tensors[name]
        wrong = [name.upper(), name.removesuffix(".weight"), name.replace(".0.", ".00."), "x", ""]
        tensors[rng.choice([*wrong, f"{name} ", name.replace("q_proj", "k_proj")])] = (
            dtype,
            shape,
            data,
        )
    elif what == "reshape":
        flat = [math.prod(shape)]
        tensors[name] = dtype, rng.choice([shape[::-1], flat, [1, *shape], [*shape, 1]]), data
    elif what == "swap":  # of one shape: a file as valid as before
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif what == "retype":
        half = {"F16": 2, "BF16": 2, "F64": 8, "I32": 4, "F8_E4M3": 1, "BOOL": 1}
        new = rng.choice(list(half))
        tensors[name] = new, shape, data[:1] * (math.prod(shape) * half[new])
    elif what == "layer":
        tensors = {
            key.replace(".1.", f".{rng.choice(['01', '2', '-1'])}.", 1): tensors[key]
            for key in tensors
        }
    else:
        tensors = dict(rng.sample(list(tensors.items()), len(tensors)))
    write_tensors(path, tensors)
    return f"{what} {name!r} ({other!r}) in {path.name}"


def cut_weights(folder: Path, rng: random.Random) -> str:
    """Cut a safetensors file short, or add to its end."""
    path, data = _weights(folder, rng)
    length = min(int.from_bytes(data[:8], "little"), len(data))
    size = rng.choice(
        [0, 7, 8, length // 2, 8 + length, len(data) - 1, rng.randrange(len(data) + 1)]
    )
    if rng.random() < 0.2:
        path.write_bytes(bytes(data) + bytes(rng.choice([1, 8, 4_096])))
        return f"{path.name} has bytes to spare"
    path.write_bytes(bytes(data[: max(size, 0)]))
    return f"{path.name} has {size} of {len(data)} bytes"


def weight_bytes(folder: Path, rng: random.Random) -> str:
    """Change values: flipped bits, or NaN and infinity in one place."""
    path, data = _weights(folder, rng)
    start = 8 + min(int.from_bytes(data[:8], "little"), max(len(data) - 16, 0))
    if start + 8 > len(data):
        return f"{path.name} has no values left"
    if rng.random() < 0.5:
        places = [rng.randrange(start, len(data)) for _ in range(rng.choice([1, 8, 512]))]
        return flip(path, data, places, rng)
    value = rng.choice([float("nan"), float("inf"), -float("inf"), 3e38])
    place = start + (rng.randrange(len(data) - start - 4) // 4) * 4
    data[place : place + 4] = struct.pack("<f", value)
    path.write_bytes(bytes(data))
    return f"{value} at byte {place} of {path.name}"


def weight_map(folder: Path, rng: random.Random) -> str:
    """Send a tensor of the index to a place where it is not."""
    path = folder / "model.safetensors.index.json"
    index = read_json(path)
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or len(found) < 2:
        one = "model.safetensors"
        index = {
            "weight_map": {"model.norm.weight": rng.choice([one, "no.safetensors", f"../{one}"])}
        }
        write_json(path, index, rng)
        return f"an index appears: {show(index)}"
    name, other = rng.sample(sorted(found), 2)
    places = ["../secret.safetensors", "/etc/passwd", "model-00003-of-00002.safetensors", "..", "."]
    places += ["x/y.safetensors", "a" * 300 + ".safetensors", "C:\\x.safetensors", "config.json"]
    places += ["\x00.safetensors", ".safetensors", found[other]]
    found[name] = rng.choice([*places, *places, *HOSTILE])
    if rng.random() < 0.2:
        del found[other]
    if rng.random() < 0.1:
        index["metadata"] = rng.choice(HOSTILE)
    write_json(path, index, rng)
    return f"{name} in {show(found.get(name))}"


def _weights(folder: Path, rng: random.Random) -> tuple[Path, bytearray]:
    path = rng.choice(sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"])
    return path, bytearray(read(path))


def parsed(folder: Path, rng: random.Random) -> tuple[Path, dict[str, Any], bytes]:
    """A safetensors file of the folder, its header (empty where it is none) and its data."""
    path, data = _weights(folder, rng)
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        header.pop("__metadata__", None)
        for entry in header.values():
            _ = entry["dtype"], entry["shape"][0], slice(*entry["data_offsets"])
    except (ValueError, LookupError, TypeError, AttributeError):
        header = {}
    return path, header, bytes(data[8 + length :])


def write_file(path: Path, header: str, values: bytes) -> None:
    """Write a file of this header, well formed or not."""
    encoded = header.encode("utf-8", "replace")
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + values)


def tensors_of(header: dict[str, Any], values: bytes) -> Tensors:
    """The tensors that a header describes."""
    return {
        name: (entry["dtype"], entry["shape"], values[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Write a file that is well formed."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        begin, end = end, end + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    write_file(path, json.dumps(header), b"".join(data for _, _, data in tensors.values()))
