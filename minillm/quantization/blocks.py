"""ggml's blocks: 32 weights that share a scale, as GGUF files hold them, used as they are.

Inputs of such a layer are rounded too, 32 at a time to 8 bits, so that a product is a sum of whole
numbers for each block. That is what llama.cpp does, and what a CPU multiplies fastest.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from minillm.kernels import reference

# Kinds of blocks of 32 values: bytes of a block.
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
BLOCK = 32
# So many rows are worked out at a time: all of a vocabulary's take several times the model's bytes.
ROWS = 8_192


class Blocks(NamedTuple):
    """A matrix (N, C) as blocks of 32 columns. kind: "Q4_0", "Q4_1" or "Q8_0".

    data: (N, C/32 · bytes of a block), uint8, as in the file. A block begins with its scale d
    (float16), and in Q4_1 its minimum m (float16); then come the codes.

    - Q4_0: w = d · (code - 8); byte i holds value i in its low half, value i + 16 in the high one.
    - Q4_1: w = d · code + m; codes as in Q4_0.
    - Q8_0: w = d · code; 32 signed bytes.
    """

    kind: str
    data: Tensor

    def split(self, sizes: int | list[int]) -> "list[Blocks]":
        """One for each of several matrices that are stacked by rows, as `torch.split`; views."""
        return [Blocks(self.kind, data) for data in torch.split(self.data, sizes)]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        return len(self.data), self.data.shape[1] // BLOCK_BYTES[self.kind] * BLOCK

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes (N, C), int8 (Q4: 0 to 15); scales and minima (N, C/32), float32."""
        N, C = self.shape
        blocks = self.data.view(N, C // BLOCK, -1)
        floats = 2 if self.kind == "Q4_1" else 1
        head = blocks[..., : 2 * floats].contiguous().view(torch.float16).float()
        scales = head[..., 0]
        packed = blocks[..., 2 * floats :]
        if self.kind == "Q8_0":
            return packed.reshape(N, C).view(torch.int8), scales, torch.zeros_like(scales)
        codes = torch.cat([packed & 15, packed >> 4], dim=-1).view(N, C).view(torch.int8)
        return codes, scales, head[..., 1] if self.kind == "Q4_1" else scales * -8

    def dequantize(self) -> Tensor:
        """(N, C), float32."""
        values = torch.empty(self.shape, device=self.data.device)
        for rows, part in zip(torch.split(values, ROWS), self.split(ROWS), strict=True):
            codes, scales, minima = part.parts()
            blocks = rows.view(*scales.shape, BLOCK).copy_(codes.view(*scales.shape, BLOCK))
            blocks.mul_(scales[..., None]).add_(minima[..., None])
        return values


class BlockLinear(nn.Module):
    """A linear layer on ggml's blocks. Its inputs are rounded to 8 bits per 32 columns.

    The modules' forward is the meaning, and slow: weights are worked out at every call.
    """

    data: Tensor
    bias: Tensor | None

    def __init__(self, blocks: Blocks, bias: Tensor | None = None) -> None:
        super().__init__()
        self.kind = blocks.kind
        self.out_features, self.in_features = blocks.shape
        # Not part of a checkpoint: Hugging Face's formats have no such blocks.
        self.register_buffer("data", blocks.data, persistent=False)
        self.register_buffer("bias", bias)

    @property
    def blocks(self) -> Blocks:
        """The weights."""
        return Blocks(self.kind, self.data)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C). Returns (..., N) in x's dtype."""
        codes, scales = reference.quantize_blocks(x)
        rounded = reference.dequantize_blocks(codes, scales)
        parts = (part.dequantize() for part in self.blocks.split(ROWS))
        y = torch.cat([nn.functional.linear(rounded, part) for part in parts], dim=-1)
        return (y if self.bias is None else y + self.bias).to(x.dtype)


class BlockEmbedding(nn.Module):
    """An embedding table (V, C) of ggml's blocks."""

    data: Tensor

    def __init__(self, blocks: Blocks, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind, self.dtype = blocks.kind, dtype
        self.num_embeddings, self.embedding_dim = blocks.shape
        self.register_buffer("data", blocks.data, persistent=False)

    @property
    def blocks(self) -> Blocks:
        """The table."""
        return Blocks(self.kind, self.data)

    @property
    def weight(self) -> Tensor:
        """The whole table (V, C), worked out anew at every call."""
        return self.blocks.dequantize().to(self.dtype)
