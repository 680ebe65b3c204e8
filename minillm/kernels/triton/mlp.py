"""The gate of a feed-forward network, on the product that holds gate and up side by side."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def gate_kernel(x_ptr, out_ptr, F, GELU: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, block) writes BLOCK columns of one row: activation(gate) · up.

    Column c of the result needs column c (the gate) and column F + c (up) of the input row. The
    last block of a row may reach past F: the mask cuts it.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < F
    gate = tl.load(x_ptr + row * 2 * F + column, mask=mask, other=0.0)
    up = tl.load(x_ptr + row * 2 * F + F + column, mask=mask, other=0.0).to(tl.float32)
    z = gate.to(tl.float32)
    if GELU:
        # 1/2 · (1 + tanh(u)) is sigmoid(2u), with u = sqrt(2/π) · (z + 0.044715·z³).
        share = tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    else:
        share = tl.sigmoid(z)
    active = (z * share).to(gate.dtype).to(tl.float32)  # rounded as the reference does
    tl.store(out_ptr + row * F + column, active * up, mask=mask)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, with silu(z) = z / (1 + exp(-z)), as `minillm.layers.mlp.swiglu`.

    gate_up: (..., 2·F), the gate in the first half: the result of one product with the rows of
    both weights. Returns (..., F). Raises ValueError for an odd number of columns.
    """
    return _gate(gate_up, gelu=False)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) · up, gelu in its tanh approximation, as `minillm.layers.mlp.geglu`.

    gate_up: (..., 2·F), the gate in the first half. Returns (..., F).
    Raises ValueError for an odd number of columns.
    """
    return _gate(gate_up, gelu=True)


def _gate(gate_up: Tensor, gelu: bool) -> Tensor:
    columns = gate_up.shape[-1]
    if columns % 2 or not columns:
        raise ValueError(f"gate_up has {columns} columns; an even number, 2·F, is needed")
    F = columns // 2
    gate_up = gate_up.contiguous()
    out = gate_up.new_empty(*gate_up.shape[:-1], F)
    if rows := out.numel() // F:
        gate_kernel[rows, triton.cdiv(F, BLOCK)](gate_up, out, F, GELU=gelu, BLOCK=BLOCK)
    return out
