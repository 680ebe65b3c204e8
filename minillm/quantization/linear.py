"""`QuantizedLinear`: a linear layer whose weights stay whole numbers in memory."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from minillm.kernels import reference
from minillm.quantization.int4 import Quantized, pack_nibbles
from minillm.quantization.scheme import check_bits

__all__ = ["QuantizedLinear"]


class CodedLinear(nn.Module):
    """What layers have in common whose weights are codes and scales: all of it in buffers."""

    codes: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, **buffers: Tensor | None) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, None if value is None else value.detach().contiguous())
        self.out_features = len(self.codes)
        if self.bias is not None and self.bias.shape != (self.out_features,):
            raise ValueError(
                f"the bias has shape {tuple(self.bias.shape)}; ({self.out_features},) is needed"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, the bias included."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `.to`, `.half` and their like call. All but the bias moves without a change of type.

        In bfloat16 a scale, and all weights of its group with it, would be off by up to 0.4 %.
        """
        before = {name: buffer for name, buffer in self.named_buffers() if name != "bias"}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            after = self.get_buffer(name)
            if after.dtype != buffer.dtype:
                setattr(self, name, buffer.to(after.device))
        return self


class QuantizedLinear(CodedLinear):
    """A linear layer on quantized weights, in place of an `nn.Linear`.

    codes: (N, C) bytes of 8 bits each, or (N, C/2) bytes of two 4-bit codes each (for up to 4 bits
    and an even C). Bytes: N·C·bits/8, N·G·3 for scales and zeros, and those of order and bias.
    kernel: computes the product; `reference.quantized_linear` unless a backend replaces it.
    """

    zeros: Tensor
    order: Tensor | None

    def __init__(self, quantized: Quantized, bias: Tensor | None = None) -> None:
        check_parts(quantized)
        codes, scales, zeros, code_bits, order = quantized
        C = codes.shape[1]
        bits = 4 if code_bits <= 4 and C % 2 == 0 else 8
        packed = pack_nibbles(codes) if bits == 4 else codes
        super().__init__(codes=packed, scales=scales, zeros=zeros, order=order, bias=bias)
        self.in_features, self.bits, self.code_bits = C, bits, code_bits
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

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, quantize: Callable[[Tensor], Quantized]
    ) -> "QuantizedLinear":
        """The layer with its weights quantized by a function such as `quantize_groups`."""
        return cls(quantize(linear.weight.detach()), linear.bias)


def check_parts(quantized: Quantized) -> None:
    """ValueError for codes, scales and zero points that do not belong together."""
    check_bits(quantized.bits)
    for name, part in (("codes", quantized.codes), ("zeros", quantized.zeros)):
        if part.dtype != torch.uint8:
            raise ValueError(f"{name} are {part.dtype}; torch.uint8 is needed")
    codes, scales, zeros = (tuple(x.shape) for x in quantized[:3])
    fit = len(codes) == len(scales) == 2 and scales == zeros and codes[0] == scales[0] > 0
    if not (fit and scales[1] and codes[1] and codes[1] % scales[1] == 0):
        raise ValueError(
            f"codes {codes}, scales {scales} and zeros {zeros} do not fit: (N, C), (N, G) and "
            "(N, G) are needed, G a divisor of C"
        )


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
