"""Open the weights of a Hugging Face model folder without copying or running anything.

A safetensors file is: 8 bytes (length n of the header, little endian), n bytes of JSON that give
each tensor's dtype, shape and byte range, then the bytes. Opening one maps the file into memory:
the tensors are views of the file's pages, and a page is read when a value on it is first used.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from minillm.weights.file_tensor import FileTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# The Hub refuses longer headers too; 100,000 tensors need about 15 MB.
MAX_HEADER_BYTES = 25_000_000
LFS_POINTER = b"version https://git-lfs"
PICKLED = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


def open_weights(folder: str | Path) -> dict[str, torch.Tensor]:
    """Open all tensors of a model folder as read-on-demand views of its files.

    Returns: name -> CPU tensor in the file's dtype and shape. Writing to a tensor changes this
        process's copy of the page, never the file. Only a tensor that the file places at an
        address unfit for its dtype is copied.
    Files and errors: as of `open_tensors`.
    """
    return {name: tensor.view() for name, tensor in open_tensors(folder).items()}


def open_tensors(folder: str | Path) -> dict[str, FileTensor]:
    """Open all tensors of a model folder, to be placed one by one on a device in some dtype.

    Reads model.safetensors.index.json and the shards that it names, else model.safetensors. Where
    there is an index, other weight files in the folder are ignored.

    Args: `folder`, which must not be changed while its tensors are in use.
    Raises: FileNotFoundError for a folder without weights or a shard that is not there (before
        anything is opened); ValueError, naming the file and the fault, for anything else.
    Source: the safetensors format, https://github.com/huggingface/safetensors#format
    """
    folder = Path(folder)
    if (folder / INDEX_FILE).exists():
        return _open_shards(folder)
    if (folder / SINGLE_FILE).exists():
        return _open_file(folder / SINGLE_FILE)
    raise _no_weights(folder)


def _open_shards(folder: Path) -> dict[str, FileTensor]:
    index = folder / INDEX_FILE
    promised: dict[str, set[str]] = {}
    for name, shard in read_weight_map(index).items():
        promised.setdefault(shard, set()).add(name)
    missing = [shard for shard in sorted(promised) if not (folder / shard).is_file()]
    if missing:
        raise FileNotFoundError(f"{index}: it names shards that are not there: {_list(missing)}")
    weights: dict[str, FileTensor] = {}
    for shard, names in sorted(promised.items()):
        tensors = _open_file(folder / shard)
        if lacking := names - tensors.keys():
            raise ValueError(
                f"{folder / shard}: lacks tensors that the index promises: {_list(lacking)}"
            )
        if extra := tensors.keys() - names:
            raise ValueError(
                f"{folder / shard}: holds tensors that the index does not place there:"
                f" {_list(extra)}"
            )
        weights.update(tensors)
    return weights


def read_weight_map(index: Path) -> dict[str, str]:
    """The index's map from a tensor's name to the name of its shard, checked."""
    _refuse_pointer(index)
    if index.stat().st_size > MAX_HEADER_BYTES:
        raise ValueError(f"{index}: larger than {MAX_HEADER_BYTES:,} bytes")
    content = _parse_json(index, index.read_bytes())
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index}: 'weight_map' must be a non-empty object")
    for name, shard in weight_map.items():
        # A name from outside must not lead out of the folder, on any operating system.
        plain = isinstance(shard, str) and not set("/\\:\0") & set(shard)
        if not plain or not shard.endswith(".safetensors"):
            raise ValueError(
                f"{index}: {name!r} is said to be in {shard!r}; the plain name of a "
                ".safetensors file in the same folder is needed"
            )
    return weight_map


def _open_file(path: Path) -> dict[str, FileTensor]:
    if not path.is_file():
        raise ValueError(f"{path}: not a regular file")
    _refuse_pointer(path)
    header, start = _read_header(path)
    try:
        # The library checks every dtype, shape and range against the file's size, then maps it.
        with safe_open(path, framework="pt", device="cpu") as file:
            return {
                name: FileTensor(
                    path, start + header[name]["data_offsets"][0], file.get_tensor(name)
                )
                for name in file.keys()  # noqa: SIM118
            }
    except (SafetensorError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
        raise ValueError(f"{path}: broken safetensors file ({reason})") from error


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the data after it begins, in bytes.

    Refused are an impossible length, and a tensor named twice (the library keeps one).
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        room = path.stat().st_size - 8
        if len(prefix) < 8 or length > room:
            raise ValueError(
                f"{path}: cut short, or not a safetensors file (its header would have "
                f"{length:,} bytes, the file has {max(room, 0):,} for it)"
            )
        if length > MAX_HEADER_BYTES:
            raise ValueError(
                f"{path}: a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read"
            )
        return _parse_json(path, file.read(length)), 8 + length


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(
                f"{path}: a Git LFS pointer, not the file itself; "
                "fetch the content with `git lfs pull`"
            )


def _parse_json(path: Path, text: bytes) -> dict[str, Any]:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            times = Counter(name for name, _ in pairs)
            raise ValueError(f"named twice: {_list(name for name in times if times[name] > 1)}")
        return found

    try:
        # As text: of bytes, json would also take what is UTF-16.
        found = json.loads(text.decode("utf-8"), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: broken JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: a JSON object is needed, found {type(found).__name__}")
    return found


def _no_weights(folder: Path) -> OSError | ValueError:
    """The error for a folder without readable weights: what is there instead, and what to do."""
    if not folder.is_dir():
        return FileNotFoundError(f"{folder}: no such folder")
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    if other := [name for name in files if name.endswith(".safetensors")]:
        return FileNotFoundError(
            f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE}; "
            f"{_list(other)} cannot be placed without an index"
        )
    if pickled := [name for name in files if Path(name).suffix in PICKLED]:
        return ValueError(
            f"{folder}: only pickled weights ({_list(pickled)}). Unpickling can run "
            "any code, so minillm never does it; convert a model that you trust with "
            "transformers: AutoModelForCausalLM.from_pretrained(folder)"
            ".save_pretrained(new_folder), and the same with AutoTokenizer"
        )
    return FileNotFoundError(f"{folder}: no weights ({SINGLE_FILE} or {INDEX_FILE})")


def _list(names: Iterable[str], most: int = 5) -> str:
    """Some names for an error message, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ascii(name) for name in ordered[:most]) + more
