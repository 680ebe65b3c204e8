"""The tensors of a GGUF file: blocks of quantized numbers, turned into floats when asked for."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minillm.quantization.blocks import BLOCK_BYTES, Blocks

Array = np.ndarray[Any, np.dtype[Any]]

# Types whose bytes are the numbers themselves; PyTorch reads them as they are.
PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
# Name, values and bytes of a block of those types that need no `gguf` to run, by their number: the
# package takes a fourth of the time that the header of a file does.
COMMON = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    30: ("BF16", 1, 2),
}
# Values dequantized at a time: many enough for numpy, few enough to stay in a core's cache.
CHUNK_VALUES = 2**17
# Values copied at a time: so few PyTorch copies without waking its other threads, which costs far
# more than the copy where the cores are busy.
COPY_VALUES = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """A tensor of a GGUF file, with what makes it a Hugging Face checkpoint's tensor.

    kind: name of its ggml type, such as "Q4_K". shape: rows first, as in PyTorch.
    data: the bytes of its blocks, uint8 (number of rows, bytes per row), mapped from the file. The
    one row of a vector may be taken apart into its values.
    order: for each row of the result, which row of `data` it is; None where they are the same.
    added: what llama.cpp has added to every value, and which is taken off again.
    """

    kind: str
    shape: tuple[int, ...]
    data: Array
    order: Array | None = None
    added: float = 0.0

    def is_floating_point(self) -> bool:
        """True: other tensors are refused when the file is opened."""
        return True

    def to(
        self, *, device: torch.device | str = "cpu", dtype: torch.dtype, copy: bool = False
    ) -> Tensor:
        """The values as a tensor, a few rows at a time, so that nothing else of its size exists.

        Values that lie in the file just as they are asked for are a view of the file's pages,
        unless a copy is wanted.
        """
        if self.kind in PLAIN and self.order is None and not self.added and not copy:
            return self._values(self.data).view(self.shape).to(device=device, dtype=dtype)
        result = torch.empty(self.shape, dtype=dtype, device=device)
        rows, first = result.view(len(self.data), -1), 0
        step = max(1, COPY_VALUES // rows.shape[1])
        for values in self.chunks():
            for piece in torch.split(values, step):
                rows[first : first + len(piece)] = piece
                first += len(piece)
        return result

    def chunks(self) -> Iterator[Tensor]:
        """All rows in turn, some at a time: floats, (rows, width)."""
        step = max(1, CHUNK_VALUES * len(self.data) // math.prod(self.shape))
        for first in range(0, len(self.data), step):
            part = slice(first, first + step)
            values = self._values(self.data[part if self.order is None else self.order[part]])
            yield values - self.added if self.added else values

    def _values(self, rows: Array) -> Tensor:
        if self.kind in PLAIN:
            return torch.from_numpy(rows).view(PLAIN[self.kind])
        # As one long row, since gguf works through a table 16 rows at a time, however short.
        return torch.from_numpy(dequantize(rows.reshape(1, -1), self.kind)).view(len(rows), -1)

    def blocks(self, device: torch.device | str) -> Blocks | None:
        """The matrix as its blocks: a view of the file's pages where their order stays."""
        if self.kind not in BLOCK_BYTES or self.added or len(self.shape) != 2:
            return None
        rows = self.data if self.order is None else self.data[self.order]
        return Blocks(self.kind, torch.from_numpy(rows).to(device))

    def reordered(self, order: Array) -> "GGUFTensor":
        """`self[order]`: other rows of a matrix, other values of a vector."""
        if len(self.shape) == 1 and self.kind not in PLAIN:
            raise ValueError(f"a bias is {self.kind}; supported are {', '.join(PLAIN)}")
        return replace(self, data=self.data.reshape(len(order), -1), order=order)

    def entry(self, index: int) -> "GGUFTensor":
        """`self[index]` along the first axis: one expert of a layer's."""
        rows = math.prod(self.shape[1:-1])
        part = self.data[index * rows : (index + 1) * rows]
        return replace(self, shape=self.shape[1:], data=part)


def dequantize(blocks: Array, kind: str) -> Array:
    """The float32 values of uint8 blocks along the last axis, by the `gguf` package."""
    gguf = import_gguf()
    # A damaged file may hold infinite scales; their products are not numbers, and not a fault here.
    with np.errstate(over="ignore", invalid="ignore"):
        values: Array = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    return values


@cache
def block_of(number: int) -> tuple[str, int, int]:
    """Name of the ggml type of this number; values and bytes in one of its blocks.

    Raises: ValueError for types that are unknown or whose values `gguf` cannot work out.
    """
    if number in COMMON:
        return COMMON[number]
    gguf = import_gguf()
    try:
        kind = gguf.GGMLQuantizationType(number)
        values, size = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise ValueError(f"tensor type {number}, which is unknown") from None
    if kind.name not in PLAIN:
        try:
            dequantize(np.zeros((1, size), np.uint8), kind.name)
        except NotImplementedError:
            raise ValueError(f"tensor type {kind.name}, which holds no weights") from None
    return kind.name, values, size


def import_gguf() -> ModuleType:
    """The `gguf` package, without the OpenMP library that it would bring along.

    gguf imports sentencepiece where that is installed, which loads an OpenMP library of its own
    beside torch's. It is of no use here: it is kept out during the import.
    """
    absent = "sentencepiece" not in sys.modules
    if absent:
        sys.modules["sentencepiece"] = None  # type: ignore[assignment]
    try:
        import gguf
    finally:
        if absent:
            del sys.modules["sentencepiece"]
    module: ModuleType = gguf
    return module
