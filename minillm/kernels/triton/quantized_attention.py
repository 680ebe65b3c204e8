"""Decode attention over a quantized cache: keys and values are decoded in registers, as needed."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton import WIDEST_HEAD_ON_CODES, CodedTokens, attention, tensor_cores
from minillm.kernels.triton.attention import HEADS, Parts, attend, dot_type, split_count

TOKENS = 32  # of a block, as in minillm.kv_cache.quantized


@triton.jit
def decoded(codes_ptr, scales_ptr, minima_ptr, token, D, BITS: tl.constexpr, TOKENS: tl.constexpr,
            SHARED: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Tokens out of their codes: code · scale + minimum, (PIECE, BLOCK_D), float32.

    token: (PIECE,), counted over all rows and heads. A scale is SHARED by the TOKENS tokens of a
    block, or each token has its own; and by CHANNELS channels. Masks: channels past D, which
    become 0.
    """
    column = tl.arange(0, BLOCK_D)
    if BITS == 4:  # an even channel is in the low half of its byte
        pair = tl.arange(0, BLOCK_D // 2)[None, :]
        packed = tl.load(codes_ptr + token[:, None] * (D // 2) + pair, mask=pair < D // 2, other=0)
        codes = tl.reshape(tl.join(packed & 15, packed >> 4), (token.shape[0], BLOCK_D))
    else:
        place = token[:, None] * D + column[None, :]
        codes = tl.load(codes_ptr + place, mask=column[None, :] < D, other=0)
    row = token // TOKENS if SHARED else token
    group = row[:, None] * (D // CHANNELS) + (column // CHANNELS)[None, :]
    scale = tl.load(scales_ptr + group, mask=column[None, :] < D, other=0.0).to(tl.float32)
    minimum = tl.load(minima_ptr + group, mask=column[None, :] < D, other=0.0).to(tl.float32)
    return codes.to(tl.float32) * scale + minimum


@triton.jit(do_not_specialize=["N"])  # it changes from request to request
def quantized_attention_kernel(
    q_ptr, k_codes, k_scales, k_minima, k_newest, v_codes, v_scales, v_minima, v_newest,
    lengths_ptr, top_ptr, total_ptr, out_ptr, q_b, q_h, scale, N, D,
    K: tl.constexpr, G: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, BITS: tl.constexpr, K_SHARED: tl.constexpr, K_CHANNELS: tl.constexpr,
    V_SHARED: tl.constexpr, V_CHANNELS: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
    PIECE: tl.constexpr, BLOCK_D: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """As `decode_attention_kernel`; what is shared out is pieces of PIECE tokens of full blocks.

    The unfinished block, which is exact, is for the last split. A window may begin and sinks may
    end within a piece: a mask hides its other tokens.
    """
    pair = tl.program_id(0)  # of row and key head
    row, kv_head = pair // K, pair % K
    split, member = tl.program_id(1), tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    token, column = tl.arange(0, PIECE), tl.arange(0, BLOCK_D)
    head = kv_head * G + member
    wide = column[None, :] < D
    real = (member[:, None] < G) & wide
    row, pair = row.to(tl.int64), pair.to(tl.int64)
    q = tl.load(q_ptr + row * q_b + head[:, None] * q_h + column[None, :], mask=real, other=0.0)
    q = q.to(DOT)
    length = tl.load(lengths_ptr + row).to(tl.int32)
    first = 0  # position from which on the window sees all
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    blocks = tl.minimum(length // TOKENS, N)
    pieces = blocks * (TOKENS // PIECE)
    sink_pieces = (SINKS + PIECE - 1) // PIECE
    skip = tl.maximum(tl.minimum(first // PIECE, pieces) - sink_pieces, 0)
    share = tl.cdiv(pieces - skip, SPLITS)
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    out = tl.zeros((HEADS, BLOCK_D), tl.float32)
    for index in range(split * share, tl.minimum((split + 1) * share, pieces - skip)):
        position = tl.where(index < sink_pieces, index, index + skip) * PIECE + token
        seen = (position >= first) | (position < SINKS)
        stored = pair * N * TOKENS + position
        k = decoded(
            k_codes, k_scales, k_minima, stored, D, BITS, TOKENS, K_SHARED, K_CHANNELS, BLOCK_D
        )
        v = decoded(
            v_codes, v_scales, v_minima, stored, D, BITS, TOKENS, V_SHARED, V_CHANNELS, BLOCK_D
        )
        top, total, out = attend(q, k.to(DOT), v.to(DOT), seen, top, total, out, scale)
    if split == SPLITS - 1:
        for start in range(length // TOKENS * TOKENS, length, PIECE):
            position = start + token
            seen = (position < length) & ((position >= first) | (position < SINKS))
            place = (pair * TOKENS + position % TOKENS)[:, None] * D + column[None, :]
            k = tl.load(k_newest + place, mask=seen[:, None] & wide, other=0.0).to(DOT)
            v = tl.load(v_newest + place, mask=seen[:, None] & wide, other=0.0).to(DOT)
            top, total, out = attend(q, k, v, seen, top, total, out, scale)
    part = (row * K * G + head) * SPLITS + split
    tl.store(top_ptr + part, top, mask=member < G)
    tl.store(total_ptr + part, total, mask=member < G)
    tl.store(out_ptr + part[:, None] * D + column[None, :], out, mask=real)


def quantized_decode_attention(
    q: Tensor,
    keys: CodedTokens,
    values: CodedTokens,
    lengths: Tensor,
    scale: float | None = None,
    window: int | None = None,
    sinks: int = 0,
) -> Tensor:
    """`decode_attention` over a cache of 8-bit or 4-bit codes.

    The same as attention to what `QuantizedKVCache.update` returns: codes decoded in float32 and
    rounded to q's dtype, then the exact tokens of the unfinished block.

    q, lengths, scale, window, sinks: as of `decode_attention`. Returns (B, H, 1, D), in q's dtype.
    Bytes: the codes of the visible tokens, their scales and minima, once; and the last block.
    Raises ValueError for shapes that do not belong together, and for float32 with D above 128.
    """
    attention.check(q, keys.newest, lengths, window, sinks)
    bits = check(q, keys)
    if check(q, values) != bits or keys.codes.shape != values.codes.shape:
        raise ValueError(
            f"codes of keys have shape {tuple(keys.codes.shape)}, those of values "
            f"{tuple(values.codes.shape)}; they have to be alike"
        )
    B, H, _, D = q.shape
    if q.dtype == torch.float32 and D > WIDEST_HEAD_ON_CODES:
        raise ValueError(
            f"q is float32 with D = {D}; {WIDEST_HEAD_ON_CODES} is the most, more spills registers"
        )
    K, N = keys.codes.shape[1:3]
    block_d = max(triton.next_power_of_2(D), 16)
    places = (N + 1) * TOKENS
    splits = split_count(B * K, min(places, (window or places) + sinks), TOKENS)
    # Larger pieces spill registers where the product is not made by tensor cores.
    piece = 32 if tensor_cores() and q.dtype != torch.float32 else 16
    parts = Parts(q, splits)
    quantized_attention_kernel[B * K, splits, triton.cdiv(H // K, HEADS)](
        q, *(x.contiguous() for x in (*keys, *values, lengths)), parts.top, parts.total, parts.out,
        *q.stride()[:2], (1 / math.sqrt(D) if scale is None else scale) * math.log2(math.e), N, D,
        K=K, G=H // K, SPLITS=splits, WINDOW=window or 0, SINKS=sinks, BITS=bits,
        K_SHARED=keys.scales.shape[3] == 1, K_CHANNELS=D // keys.scales.shape[4],
        V_SHARED=values.scales.shape[3] == 1, V_CHANNELS=D // values.scales.shape[4],
        HEADS=HEADS, TOKENS=TOKENS, PIECE=piece, BLOCK_D=block_d,
        DOT=dot_type(q.dtype),
        num_warps=min(max(block_d // 16, 4), 16), num_stages=2,
    )  # fmt: skip
    return parts.combine(q)


def check(q: Tensor, coded: CodedTokens) -> int:
    """The bits of codes that fit q; ValueError for a storage that does not."""
    B, D = q.shape[0], q.shape[3]
    codes, scales, minima, newest = coded
    K = newest.shape[1]
    lead = (B, K, codes.shape[2])
    bits = 8 if codes.shape[-1] == D else 4
    fits = newest.shape == (B, K, TOKENS, D) and codes.shape == (*lead, TOKENS, D * bits // 8)
    groups = tuple(scales.shape[3:])
    fits = fits and scales.shape == minima.shape == (*lead, *groups) and len(groups) == 2
    if not (fits and groups[0] in (1, TOKENS) and groups[1] and D % groups[1] == 0):
        shapes = [tuple(x.shape) for x in coded]
        raise ValueError(f"codes, scales, minima and newest have shapes {shapes}, and q {q.shape}")
    if codes.dtype != torch.uint8 or scales.dtype != minima.dtype:
        raise ValueError(f"codes are {codes.dtype}, scales {scales.dtype}, minima {minima.dtype}")
    return bits
