"""One token through a quantized layer: the codes are read as they are, and decoded in registers.

A product with one vector has one multiplication for each weight, so that reading the weights is
what takes the time: with 4 bits each instead of 16 there is a quarter to read.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["quantized_matvec", "quantized_matvec_kernel"]

# Outputs of a program, and its threads in warps of 32: the autotuner times these on the GPU, once
# for each shape of weights. The interpreter has nothing to time.
CONFIGS = [
    triton.Config({"BLOCK_N": rows}, num_warps=warps)
    for rows, warps in ((4, 4), (2, 2), (8, 4), (2, 4), (1, 2))
][: 1 if triton.knobs.runtime.interpret else None]


@triton.autotune(CONFIGS, key=["N", "G", "group_bytes", "BITS"], cache_results=True)
@triton.jit
def quantized_matvec_kernel(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, bias_ptr, out_ptr, N, G, group_bytes,
    BITS: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program p computes outputs p · BLOCK_N and following, each the sum over a row of weights.

    A row is G groups; a step takes BLOCK_G of them, and BLOCK bytes of each. So a block of codes
    is (BLOCK_N, BLOCK_G, BLOCK), and one of x (BLOCK_G, BLOCK columns or twice as many). The masks
    cut rows past N, groups past G, and bytes past a group: what they hide counts as 0.
    Scale and zero point are the same for all of a group, and are applied to its sum:
    Σ x · (code - zero) · scale = (Σ x · code - zero · Σ x) · scale.
    """
    per_byte: tl.constexpr = 8 // BITS
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.zeros((BLOCK_N, BLOCK_G), tl.float32)
    for first in range(0, G, BLOCK_G):
        g = first + tl.arange(0, BLOCK_G)
        place = n[:, None] * G + g[None, :]  # (BLOCK_N, BLOCK_G)
        real = (n[:, None] < N) & (g[None, :] < G)
        sums = tl.zeros((BLOCK_N, BLOCK_G), tl.float32)
        x_sums = tl.zeros((BLOCK_G,), tl.float32)
        for start in range(0, group_bytes, BLOCK):
            byte = start + tl.arange(0, BLOCK)
            codes_place = place[:, :, None] * group_bytes + byte[None, None, :]
            inside = real[:, :, None] & (byte < group_bytes)[None, None, :]
            codes = tl.load(codes_ptr + codes_place, mask=inside, other=0)
            column = start * per_byte + tl.arange(0, BLOCK * per_byte)
            known = (g[:, None] < G) & (column < group_bytes * per_byte)[None, :]
            x_place = g[:, None] * (group_bytes * per_byte) + column[None, :]
            x = tl.load(x_ptr + x_place, mask=known, other=0.0).to(tl.float32)
            x_sums += tl.sum(x, axis=1)
            if BITS == 4:  # an even column is in the low half of its byte, an odd one in the high
                even, odd = tl.split(tl.reshape(x, (BLOCK_G, BLOCK, 2)))
                products = (codes & 15).to(tl.float32) * even[None, :, :]
                products += (codes >> 4).to(tl.float32) * odd[None, :, :]
            else:
                products = codes.to(tl.float32) * x[None, :, :]
            sums += tl.sum(products, axis=2)
        scale = tl.load(scales_ptr + place, mask=real, other=0.0).to(tl.float32)
        zero = tl.load(zeros_ptr + place, mask=real, other=0).to(tl.float32)
        total += (sums - zero * x_sums[None, :]) * scale
    result = tl.sum(total, axis=1)
    if HAS_BIAS:
        result += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, result, mask=n < N)


def quantized_matvec(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int
) -> Tensor:
    """One token through a linear layer over quantized weights of 4 or 8 bits.

    y[n] = Σ_c x[c] · (codes[n, c] - zeros[n, g]) · scales[n, g] + bias[n], g the group of column c:
    `minillm.kernels.reference.quantized_linear` for one token, all of it in float32.

    x: C numbers. codes: (N, C), uint8, or (N, C/2) bytes of two 4-bit codes each, of groups of an
    even number of columns. scales, zeros: (N, G), zeros uint8. Returns (N,), in x's dtype.
    Bytes: N·C·bits/8 for the codes, and 3·N·G.
    """
    (N, G), C = scales.shape, x.numel()
    group_bytes = C // G * bits // 8
    block = min(triton.next_power_of_2(group_bytes), 512)
    groups = min(triton.next_power_of_2(G), 512 // block)
    out = torch.empty(N, dtype=x.dtype, device=x.device)
    quantized_matvec_kernel[lambda meta: (triton.cdiv(N, meta["BLOCK_N"]),)](
        x.contiguous(), codes.contiguous(), scales.contiguous(), zeros.contiguous(),
        out if bias is None else bias, out, N, G, group_bytes, BITS=bits, HAS_BIAS=bias is not None,
        BLOCK_G=groups, BLOCK=block,
    )  # fmt: skip
    return out
