"""A few tokens through a layer of whole-number weights, on tensor cores.

Tensor cores multiply blocks of at least 16 rows, and 16 tokens cost them no more than one. A block
of weights is decoded once for all of them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton import tensor_cores
from minillm.kernels.triton.attention import PROGRAMS, dot_type

TOKENS = 16
OUTPUTS = 32  # of a program


@triton.jit(do_not_specialize=["M"])  # no other kernel for 16 tokens than for 2
def few_tokens_kernel(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, parts_ptr, M, N, G, group_bytes,
    BITS: tl.constexpr, DOT: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (p, split) sums its share of the groups for BLOCK_N outputs of all M tokens.

    Weights of a group are code - zero, whole numbers that every type represents; the group's scale
    is applied to its sums. Masks: tokens past M, rows past N, bytes past a group.
    """
    per_byte: tl.constexpr = 8 // BITS
    m = tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    split = tl.program_id(1)
    size = group_bytes * per_byte  # columns of a group
    share = tl.cdiv(G, SPLITS)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for g in range(split * share, tl.minimum((split + 1) * share, G)):
        place = n * G + g
        scale = tl.load(scales_ptr + place, mask=n < N, other=0.0).to(tl.float32)
        zero = tl.load(zeros_ptr + place, mask=n < N, other=0).to(tl.float32)
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, group_bytes, BLOCK):
            byte = start + tl.arange(0, BLOCK)
            inside = (n[None, :] < N) & (byte < group_bytes)[:, None]
            codes_place = place[None, :] * group_bytes + byte[:, None]  # (BLOCK, BLOCK_N)
            codes = tl.load(codes_ptr + codes_place, mask=inside, other=0)
            column = start * per_byte + tl.arange(0, BLOCK * per_byte)
            known = (m[:, None] < M) & (column < size)[None, :]
            x_place = m[:, None] * (G * size) + g * size + column[None, :]
            x = tl.load(x_ptr + x_place, mask=known, other=0.0).to(DOT)
            if BITS == 4:
                x, odd = tl.split(tl.reshape(x, (BLOCK_M, BLOCK, 2)))
                high = ((codes >> 4).to(tl.float32) - zero[None, :]).to(DOT)
                sums = tl.dot(odd, high, sums, input_precision="ieee")
                codes = codes & 15
            low = (codes.to(tl.float32) - zero[None, :]).to(DOT)
            sums = tl.dot(x, low, sums, input_precision="ieee")
        total += sums * scale[None, :]
    part = (split * M + m)[:, None].to(tl.int64) * N + n[None, :]
    tl.store(parts_ptr + part, total, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit(do_not_specialize=["M"])
def add_parts_kernel(
    parts_ptr, bias_ptr, out_ptr, M, N,
    HAS_BIAS: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (p, token) adds up BLOCK outputs of a token over all splits, and the bias.

    The mask cuts outputs past N.
    """
    n, m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(SPLITS):
        total += tl.load(parts_ptr + (split * M + m) * N + n, mask=n < N, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + m * N + n, total, mask=n < N)


def few_tokens_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, bias: Tensor | None, bits: int
) -> Tensor:
    """Up to 16 tokens through a linear layer over quantized weights: `reference.quantized_linear`.

    A program that computes many outputs reads x seldom, and then there are few programs: so the
    groups of a row are split among several, and their sums added up by a second kernel.

    x: (M, C). The others: as of `quantized_matvec`. Returns (M, N), in x's dtype.
    """
    (N, G), (M, C) = scales.shape, x.shape
    group_bytes = C // G * bits // 8
    block = min(max(triton.next_power_of_2(group_bytes), 16), 32)
    outputs = triton.cdiv(N, OUTPUTS)
    splits = min(triton.cdiv(PROGRAMS, outputs), G)
    parts = torch.empty((splits, M, N), dtype=torch.float32, device=x.device)
    out = torch.empty((M, N), dtype=x.dtype, device=x.device)
    few_tokens_kernel[outputs, splits](
        x.contiguous(), codes.contiguous(), scales.contiguous(), zeros.contiguous(), parts,
        M, N, G, group_bytes, BITS=bits, DOT=dot_type(x.dtype), SPLITS=splits,
        BLOCK_M=TOKENS, BLOCK_N=OUTPUTS, BLOCK=block, num_warps=4, num_stages=3,
    )  # fmt: skip
    add_parts_kernel[triton.cdiv(N, 256), M](
        parts, out if bias is None else bias, out, M, N,
        HAS_BIAS=bias is not None, SPLITS=splits, BLOCK=256, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["M"])
def int8_kernel(
    x_ptr, x_scales_ptr, codes_ptr, scales_ptr, bias_ptr, out_ptr, M, N, C,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (p, i) computes BLOCK_N outputs of BLOCK_M tokens, summing whole numbers exactly.

    The codes are multiplied as float16 numbers, for Triton does not compile a product of 8-bit
    ones for sm_75. Masks: tokens past M, rows past N, columns past C.
    """
    m = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for start in range(0, C, BLOCK):
        column = start + tl.arange(0, BLOCK)
        known = (m[:, None] < M) & (column[None, :] < C)
        x = tl.load(x_ptr + m[:, None] * C + column[None, :], mask=known, other=0)
        inside = (n[None, :] < N) & (column[:, None] < C)
        codes = tl.load(codes_ptr + n[None, :] * C + column[:, None], mask=inside, other=0)
        # float16 holds these numbers exactly, and float32 a sum of 1,040 products of two.
        part = tl.dot(x.to(tl.float16), codes.to(tl.float16), input_precision="ieee")
        sums += part.to(tl.int32)
    x_scale = tl.load(x_scales_ptr + m, mask=m < M, other=0.0)
    scale = tl.load(scales_ptr + n, mask=n < N, other=0.0)
    y = sums.to(tl.float32) * x_scale[:, None] * scale[None, :]
    if HAS_BIAS:
        y += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + m[:, None] * N + n[None, :], y, mask=(m[:, None] < M) & (n[None, :] < N))


def int8_product(
    x_codes: Tensor, x_scales: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None
) -> Tensor:
    """Any number of tokens through a linear layer on whole numbers: `reference.int8_linear`.

    x_codes: (M, C), int8. x_scales: (M,), float32. codes: (N, C), int8, C up to 131,071, so that a
    sum of C products stays below 2^31. scales: (N,), float32. Returns (M, N), float32.
    """
    (M, C), N = x_codes.shape, len(codes)
    block_m = 16 if M <= TOKENS or not tensor_cores() else 64
    out = torch.empty((M, N), dtype=torch.float32, device=x_codes.device)
    int8_kernel[triton.cdiv(N, 32), triton.cdiv(M, block_m)](
        x_codes.contiguous(), x_scales.contiguous(), codes.contiguous(), scales.contiguous(),
        out if bias is None else bias, out, M, N, C, HAS_BIAS=bias is not None,
        BLOCK_M=block_m, BLOCK_N=32, BLOCK=64 if tensor_cores() else 32, num_warps=4,
        num_stages=3,
    )  # fmt: skip
    return out
