"""Read the header of a GGUF file (llama.cpp's format): metadata and the table of tensors.

A GGUF file is: `GGUF`, a version, the number of tensors and of metadata entries; the entries (key,
type, value); one record per tensor (name, sizes, type, offset); then, from the next multiple of the
alignment on, the tensors. All numbers are little endian; a string is its length and its bytes.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minillm.weights.gguf_header import Header
from minillm.weights.gguf_tensor import Array, GGUFTensor, block_of
from minillm.weights.safetensors import LFS_POINTER

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Elements of 8 bytes stay aligned in memory, and the padding stays small.
ALIGNMENTS = [2**power for power in range(3, 17)]


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The contents of a GGUF file: metadata values as Python's, tensors by their GGUF name."""

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path, *, vocabulary: bool = True) -> GGUFFile:
    """Read the header of a GGUF file of version 2 or 3 and map its tensors into memory.

    vocabulary: False passes over arrays of strings, which then are empty: half of the time.

    Tensors of integers and of types that the `gguf` package cannot turn into numbers are refused.

    Raises: ValueError, naming the file and the fault, for anything but a whole and sound file.
    Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with path.open("rb") as file:
        start = file.read(24)
        if start.startswith(LFS_POINTER):
            raise ValueError(
                f"{path}: a Git LFS pointer, not the file itself; "
                "fetch the content with `git lfs pull`"
            )
        if not start.startswith(MAGIC):
            raise ValueError(f"{path}: not a GGUF file (it begins with {start[:4]!r})")
        # ACCESS_COPY: a write would go to this process's copy of a page, never to the file.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        return _read(Header(content, vocabulary))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read(header: Header) -> GGUFFile:
    header.take(len(MAGIC), "the magic number")
    version = header.number(4, "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise ValueError("big-endian GGUF files are not supported")
        raise ValueError(f"GGUF version {version}; supported are 2 and 3")
    num_tensors = header.number(8, "the number of tensors")
    metadata = header.metadata(header.number(8, "the number of metadata entries"))
    alignment = metadata.get("general.alignment", 32)
    if alignment not in ALIGNMENTS:
        raise ValueError(
            f"general.alignment is {alignment!r:.80}; a power of 2 from 8 to {ALIGNMENTS[-1]} is "
            "needed"
        )
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise ValueError(
            f"one of {parts!r:.80} files that make the model; join them with llama.cpp's "
            "`llama-gguf-split --merge`"
        )
    records = header.records(num_tensors)
    data = np.frombuffer(header.content, np.uint8)
    return GGUFFile(metadata, _tensors(data, records, header.at, alignment))


def _tensors(
    data: Array,
    records: dict[str, tuple[tuple[int, ...], int, int]],
    header_end: int,
    alignment: int,
) -> dict[str, GGUFTensor]:
    """Find each tensor's bytes. They must follow each other, padded, as llama.cpp demands too."""
    begin, expected = -(-header_end // alignment) * alignment, 0
    found = {}
    for name, (shape, number, offset) in records.items():
        try:
            kind, values, size = block_of(number)
        except ValueError as error:
            raise ValueError(f"{name} has the {error}") from None
        if min(shape) < 1 or shape[-1] % values:
            raise ValueError(
                f"{name} is {list(shape)}; {kind} needs rows of a multiple of {values} values, and "
                "sizes from 1"
            )
        row_bytes = shape[-1] // values * size
        num_bytes = math.prod(shape[:-1]) * row_bytes
        if offset != expected:
            raise ValueError(f"{name} begins at offset {offset:,}; {expected:,} is next")
        if begin + offset + num_bytes > len(data):
            raise ValueError(
                f"cut short or broken: {name} {list(shape)} needs {num_bytes:,} bytes at "
                f"{begin + offset:,}, the file has {len(data):,} in all"
            )
        part = data[begin + offset : begin + offset + num_bytes]
        found[name] = GGUFTensor(kind, shape, part.reshape(-1, row_bytes))
        expected = -(-(offset + num_bytes) // alignment) * alignment
    if (spare := len(data) - begin - expected) > 0:
        raise ValueError(f"broken: {spare:,} bytes more than its tensors take")
    return found
