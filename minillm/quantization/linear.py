"""`QuantizedLinear`: a linear layer whose weights stay whole numbers in memory."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from minillm.kernels import reference
from minillm.quantization.int4 import Quantized, pack_nibbles

__all__ = ["QuantizedLinear"]


class QuantizedLinear(nn.Module):
    """A linear layer on quantized weights, in place of an `nn.Linear`.

    codes: (N, C) bytes of 8 bits each, or (N, C/2) bytes of two 4-bit codes each (for up to 4 bits
    and an even C). Bytes: N·C·bits/8, and N·G·3 for scales and zeros.
    kernel: computes the product; `reference.quantized_linear` unless a backend replaces it.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    order: Tensor | None
    bias: Tensor | None

    def __init__(self, quantized: Quantized, bias: Tensor | None = None) -> None:
        super().__init__()
        N, C = quantized.codes.shape
        self.out_features, self.in_features = N, C
        self.bits = 4 if quantized.bits <= 4 and C % 2 == 0 else 8
        codes = quantized.codes
        self.register_buffer("codes", pack_nibbles(codes) if self.bits == 4 else codes)
        self.register_buffer("scales", quantized.scales)
        self.register_buffer("zeros", quantized.zeros)
        self.register_buffer("order", quantized.order)
        self.register_buffer("bias", bias)
        self.code_bits = quantized.bits
        self.kernel: Callable[..., Tensor] = reference.quantized_linear

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C). Returns (..., N) in x's dtype."""
        if self.order is not None:
            x = x[..., self.order]
        return self.kernel(x, self.codes, self.scales, self.zeros, self.bias, self.bits)

    @property
    def quantized(self) -> Quantized:
        """The weights, unpacked."""
        codes = reference.unpack_nibbles(self.codes) if self.bits == 4 else self.codes
        return Quantized(codes, self.scales, self.zeros, self.code_bits, self.order)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zeros, order and bias."""
        return sum(buffer.nbytes for buffer in self.buffers())

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, quantize: Callable[[Tensor], Quantized]
    ) -> "QuantizedLinear":
        """The layer with its weights quantized by a function such as `quantize_groups`."""
        bias = None if linear.bias is None else linear.bias.detach()
        with torch.no_grad():
            return cls(quantize(linear.weight), bias)


def quantizable(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers whose weights may be quantized, by name: all but routers and the head.

    A router's few weights decide which experts run, and the head is often the embedding itself.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head" and not name.endswith("mlp.gate")
    }


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    """Set the submodule of this dotted name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)
