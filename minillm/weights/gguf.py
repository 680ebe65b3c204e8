"""Convert a GGUF file (llama.cpp's format) of a Llama model into a Hugging Face model folder.

GGUF holds everything in one file: metadata (sizes, vocabulary, merges, chat template), then the
tensors, often as blocks of 4 or 8 bits. The folder holds the same as config.json, tokenizer.json
and a safetensors file in float32, which can hold the value of every block format exactly.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from minillm.weights.gguf_config import hf_config, hf_names, hf_shape
from minillm.weights.gguf_tokenizer import tokenizer_files

INDEX_FILE = "gguf_index.json"

# Values dequantized at a time: 16 MB of float32, so that memory does not grow with the tensor.
CHUNK_VALUES = 2**22

Array = np.ndarray[Any, np.dtype[Any]]


def convert(
    gguf_file: Path, folder: Path, *, progress: Callable[[int, int], object] = lambda *_: None
) -> None:
    """Write `gguf_file` as a Hugging Face folder (config, tokenizer, float32 safetensors).

    Also writes gguf_index.json: the scalar metadata and, for each tensor, names, shape, ggml type,
    byte offset and byte size in the GGUF file, so that nobody has to parse that file again.

    Args: `folder`, which must exist. `progress` is called now and then with the number of
        weight bytes just written, and of all that there are to write.
    Raises: ValueError for a file that is broken, of another architecture, or with a feature that
        the folder could not express.
    Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    reader = open_gguf(gguf_file)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        config = hf_config(metadata, tied="output.weight" not in tensors)
        names = hf_names(config, tensors)
        files = tokenizer_files(metadata, config["vocab_size"])
    except ValueError as error:
        raise ValueError(f"{gguf_file}: {error}") from error
    files["config.json"] = config
    files["generation_config.json"] = {k: config[k] for k in config if k.endswith("_token_id")}
    files[INDEX_FILE] = {
        "file": gguf_file.name,
        "bytes": gguf_file.stat().st_size,
        "metadata": {
            key: value
            for key, value in metadata.items()
            if not key.startswith("tokenizer.") and not isinstance(value, list)
        },
        "tensors": [
            {
                "name": name,
                "hf_name": hf_name,
                "shape": hf_shape(tensors[name]),
                # Rows of q and k stand in GGUF's order, see unpermuted_rows; 0: as in the folder.
                "permuted_heads": _heads(config, hf_name),
                "type": tensors[name].tensor_type.name,
                "offset": int(tensors[name].data_offset),
                "bytes": int(tensors[name].n_bytes),
            }
            for name, hf_name in names.items()
        ],
    }
    for file_name, content in files.items():
        with (folder / file_name).open("w", encoding="utf-8") as file:
            # Nobody reads 100,000 lines of merges; the other files are meant to be looked at.
            indent = None if file_name == "tokenizer.json" else 2
            json.dump(content, file, ensure_ascii=False, indent=indent)
    orders = {name: _row_order(config, hf_name) for name, hf_name in names.items()}
    entries = {hf_name: (tensors[name], orders[name]) for name, hf_name in names.items()}
    _write_safetensors(folder / "model.safetensors", entries, progress)


def open_gguf(path: Path) -> Any:
    """A `gguf.GGUFReader` of the file; ValueError where it is not a whole, little-endian one."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path}: not a GGUF file (it begins with {magic!r})")
    gguf = _import_gguf()
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: cut short or broken GGUF file ({error})") from error
    if reader.byte_order != "I" or sys.byteorder != "little":
        raise ValueError(f"{path}: big-endian GGUF files are not supported")
    return reader


def _import_gguf() -> Any:
    # gguf imports sentencepiece where that is installed, which brings an OpenMP library of its own
    # into the process beside torch's. It is of no use here: keep it out during the import.
    absent = "sentencepiece" not in sys.modules
    if absent:
        sys.modules["sentencepiece"] = None  # type: ignore[assignment]
    try:
        import gguf
    finally:
        if absent:
            del sys.modules["sentencepiece"]
    return gguf


def unpermuted_rows(num_heads: int, head_dim: int) -> Array:
    """For each row of a Hugging Face q or k projection: the row of the GGUF tensor that holds it.

    GGUF's Llama rotates neighbours (rows 2i and 2i + 1 of a head), Hugging Face's rotates halves
    (rows i and i + D/2). So the stored rows of each head are taken apart: for D = 8 they are
    0 2 4 6 1 3 5 7.

    Args: `num_heads`, H for q and K for k. `head_dim`, D.
    Returns: row numbers, int64 (num_heads · D,).
    """
    rows = np.arange(num_heads * head_dim)
    return rows.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _heads(config: dict[str, Any], hf_name: str) -> int:
    """Number of heads whose rows are permuted in this tensor; 0 where none are."""
    if hf_name.endswith("q_proj.weight"):
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if hf_name.endswith("k_proj.weight") else 0


def _row_order(config: dict[str, Any], hf_name: str) -> Array | None:
    heads = _heads(config, hf_name)
    return unpermuted_rows(heads, config["head_dim"]) if heads else None


def _write_safetensors(
    path: Path,
    entries: dict[str, tuple[Any, Array | None]],
    progress: Callable[[int, int], object],
) -> None:
    """Write the tensors in float32, a few rows at a time; see minillm.weights.safetensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (tensor, _) in entries.items():
        begin, end = end, end + 4 * int(tensor.n_elements)
        header[name] = {"dtype": "F32", "shape": hf_shape(tensor), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # the data begins at a multiple of 64 bytes
    dequantize = _import_gguf().quants.dequantize
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (tensor, order) in entries.items():
            rows = tensor.data.reshape(-1, tensor.data.shape[-1])  # quantized bytes of each row
            step = max(1, CHUNK_VALUES * len(rows) // int(tensor.n_elements))
            for first in range(0, len(rows), step):
                part = slice(first, first + step)
                chunk = rows[part] if order is None else rows[order[part]]
                try:
                    values = dequantize(chunk, tensor.tensor_type)
                except NotImplementedError as error:
                    raise ValueError(
                        f"{name}: type {tensor.tensor_type.name} is unknown"
                    ) from error
                written = file.write(np.ascontiguousarray(values, dtype="<f4").data.cast("B"))
                progress(written, end)
        file.flush()
        os.fsync(file.fileno())
