"""Decode attention: one query per row against a long cache, the keys shared out among programs.

With one query there is little to compute and much to read, and a program per head would leave most
of the GPU idle. So the keys are split: each program attends to its share of them and leaves a
partial result, and a second kernel combines these. Source: Dao et al. 2023, "Flash-Decoding for
long-context inference"; the running softmax: Milakov and Gimelshein 2018, arXiv 1805.02867, and
Dao et al. 2022, arXiv 2205.14135, algorithm 1.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from minillm.kernels.triton import WIDEST_HEAD, interpreted
from minillm.kernels.triton.cache import check_storage, ring_place

HEADS = 16  # query heads of a program: the least number of rows that tensor cores multiply
PROGRAMS = 256  # so many, about two for each multiprocessor of a large GPU, keep all of it busy
MOST_SPLITS = 64


@triton.jit
def attend(q, k, v, seen, top, total, out, scale):
    """Take a block of S keys into a running softmax-weighted sum.

    out is Σ exp2(score - top) · v over the keys so far and total the same without v, for the
    largest score so far, top: a larger one shrinks both. Scores are in powers of two.
    q: (HEADS, D). k, v: (S, D). seen: (S,). top, total: (HEADS,). out: (HEADS, D), float32.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # (HEADS, S)
    scores = tl.where(seen[None, :], scores, float("-inf"))
    highest = tl.maximum(top, tl.max(scores, axis=1))
    base = tl.where(highest == float("-inf"), 0.0, highest)  # nothing seen yet: -inf - -inf is NaN
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, axis=1)
    mixed = tl.dot(weights.to(v.dtype), v, input_precision="ieee")  # (HEADS, D)
    return highest, total, out * shrink[:, None] + mixed


@triton.jit
def share_of(length, split, SPLITS: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
             UNIT: tl.constexpr):  # fmt: skip
    """Which of the keys that a row's query sees belong to this split: the begin-th to the end-th.

    The query is the last of `length` tokens. It sees the sinks, skips `skip` tokens, and sees the
    rest; WINDOW 0 sees all. Shares are multiples of UNIT, and as even as that allows.
    """
    skip = 0
    if WINDOW > 0:
        skip = tl.maximum(length - WINDOW - SINKS, 0)
    visible = length - skip
    share = tl.cdiv(tl.cdiv(visible, SPLITS), UNIT) * UNIT
    begin = split * share
    return skip, begin, tl.minimum(begin + share, visible)


@triton.jit(do_not_specialize=["capacity"])  # it changes from request to request
def decode_attention_kernel(
    q_ptr, keys_ptr, values_ptr, lengths_ptr, top_ptr, total_ptr, out_ptr,
    q_b, q_h, cache_b, cache_h, scale, capacity, D,
    K: tl.constexpr, G: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, RING: tl.constexpr, HEADS: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Program (row and key head, split, block of heads) reads its share of one head's keys.

    All G query heads of a group (up to HEADS at a time) use each key while it is there. Masks: of
    the last block of keys those past the share, of a head the columns past D, and of the heads
    those past G, which are not stored. DOT is the type of the numbers that are multiplied.
    """
    row, kv_head = tl.program_id(0) // K, tl.program_id(0) % K
    split, member = tl.program_id(1), tl.program_id(2) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, BLOCK_D)
    head = kv_head * G + member
    wide = column[None, :] < D
    real = (member[:, None] < G) & wide
    row, kv_head = row.to(tl.int64), kv_head.to(tl.int64)  # a cache may have more than 2^31 numbers
    q = tl.load(q_ptr + row * q_b + head[:, None] * q_h + column[None, :], mask=real, other=0.0).to(
        DOT
    )
    length = tl.load(lengths_ptr + row).to(tl.int32)
    skip, begin, end = share_of(length, split, SPLITS, WINDOW, SINKS, BLOCK_S)
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    out = tl.zeros((HEADS, BLOCK_D), tl.float32)
    cache = row * cache_b + kv_head * cache_h
    for start in range(begin, end, BLOCK_S):
        index = start + tl.arange(0, BLOCK_S)
        place = ring_place(tl.where(index < SINKS, index, index + skip), RING, SINKS)
        seen = (index < end) & (place < capacity)
        offset = cache + place[:, None] * D + column[None, :]
        k = tl.load(keys_ptr + offset, mask=seen[:, None] & wide, other=0.0).to(DOT)
        v = tl.load(values_ptr + offset, mask=seen[:, None] & wide, other=0.0).to(DOT)
        top, total, out = attend(q, k, v, seen, top, total, out, scale)
    part = (row * K * G + head) * SPLITS + split
    tl.store(top_ptr + part, top, mask=member < G)
    tl.store(total_ptr + part, total, mask=member < G)
    tl.store(out_ptr + part[:, None] * D + column[None, :], out, mask=real)


@triton.jit
def combine_kernel(
    top_ptr, total_ptr, parts_ptr, out_ptr, D, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Program (row and query head) adds up the parts, each shrunk to the largest score of all.

    A row without any key gives zeros.
    """
    head = tl.program_id(0).to(tl.int64)
    split, column = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    top = tl.load(top_ptr + head * SPLITS + split)
    highest = tl.max(top, axis=0)
    weight = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weight * tl.load(total_ptr + head * SPLITS + split), axis=0)
    place = (head * SPLITS + split)[:, None] * D + column[None, :]
    parts = tl.load(parts_ptr + place, mask=column[None, :] < D, other=0.0)
    mixed = tl.sum(parts * weight[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + head * D + column, mixed, mask=column < D)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float | None = None,
    window: int | None = None,
    sinks: int = 0,
    ring: int | None = None,
) -> Tensor:
    """Attention of the newest token of each row to all that its cache holds.

    softmax(q · kᵀ · scale) · v over the keys at positions p with 0 <= p < length, and with a window
    length - window <= p or p < sinks: `minillm.layers.attention` with `attention_mask`. Query head
    h reads key head h // (H/K), and each key is read once for all heads of its group (up to 16).

    q: (B, H, 1, D), D up to 256, with any strides but 1 in the last dimension. keys, values: (B, K,
    places, D), contiguous but for strides of rows and heads. lengths: (B,), int32 or int64, on the
    device: tokens per row, the newest included, which is stored already; 0 gives zeros. scale:
    1/sqrt(D) unless given. ring: places of a sliding cache's ring behind its sinks (see
    `ring_place`); None: a token lies at its position.
    How many ways the keys are split depends on shapes alone, and how many keys a split has on the
    length, which the kernel reads: a captured graph is right for every length.
    Returns (B, H, 1, D), contiguous, in q's dtype. Bytes: the visible keys and values, once.
    Raises ValueError for shapes that do not belong together.
    """
    check(q, keys, lengths, window, sinks)
    B, H, _, D = q.shape
    K, capacity = keys.shape[1:3]
    check_storage(keys, values, B, D)
    if ring is not None and not 0 < ring + sinks <= capacity:
        raise ValueError(f"ring is {ring} and sinks {sinks}; there are {capacity} places for both")
    block_d = max(triton.next_power_of_2(D), 16)
    # Blocks of 8 KiB: larger ones spill registers on one GPU or another (tools/triton_usage.py).
    block_s = min(max(8192 // (block_d * q.element_size()), 16), 64)
    splits = split_count(B * K, min(capacity, (window or capacity) + sinks), block_s)
    parts = Parts(q, splits)
    G = H // K
    decode_attention_kernel[B * K, splits, triton.cdiv(G, HEADS)](
        q, keys, values, lengths.contiguous(), parts.top, parts.total, parts.out,
        *q.stride()[:2], *keys.stride()[:2],
        (1 / math.sqrt(D) if scale is None else scale) * math.log2(math.e), capacity, D,
        K=K, G=G, SPLITS=splits, WINDOW=window or 0, SINKS=sinks, RING=ring or 0, HEADS=HEADS,
        BLOCK_S=block_s, BLOCK_D=block_d, DOT=dot_type(q.dtype),
        num_warps=4 if block_d <= 128 else 8, num_stages=3,
    )  # fmt: skip
    return parts.combine(q)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """The type in which numbers of this type are multiplied; sums are float32 in any case."""
    if dtype == torch.float32 or interpreted():  # which has no product of bfloat16 numbers
        return tl.float32
    return tl.float16 if dtype == torch.float16 else tl.bfloat16


class Parts:
    """The partial results of all splits: their largest scores, sums of weights, weighted values."""

    def __init__(self, q: Tensor, splits: int) -> None:
        B, H, _, D = q.shape
        self.top = torch.empty((B, H, splits), dtype=torch.float32, device=q.device)
        self.total = torch.empty_like(self.top)
        self.out = torch.empty((B, H, splits, D), dtype=torch.float32, device=q.device)

    def combine(self, q: Tensor) -> Tensor:
        """(B, H, 1, D), in q's dtype."""
        B, H, _, D = q.shape
        splits = self.top.shape[2]
        mixed = torch.empty((B, H, 1, D), dtype=q.dtype, device=q.device)
        combine_kernel[(B * H,)](
            self.top, self.total, self.out, mixed, D,
            SPLITS=splits, BLOCK_D=triton.next_power_of_2(D), num_warps=4,
        )  # fmt: skip
        return mixed


def split_count(heads: int, keys: int, block: int) -> int:
    """Into how many parts up to `keys` keys are split, for each of B·K heads: a power of two.

    >>> [split_count(heads, 4096, 64) for heads in (3, 8, 32, 512)]
    [64, 32, 8, 1]
    >>> split_count(3, 100, 64)
    2
    """
    wanted = min(triton.cdiv(PROGRAMS, heads), triton.cdiv(keys, block), MOST_SPLITS)
    return int(triton.next_power_of_2(max(wanted, 1)))


def check(q: Tensor, keys: Tensor, lengths: Tensor, window: int | None, sinks: int) -> None:
    """ValueError for a query, lengths or a window that cannot be meant."""
    B, H, T, D = q.shape
    K = keys.shape[1]
    if T != 1 or not 0 < D <= WIDEST_HEAD or H % K or q.stride(-1) != 1 or not B:
        raise ValueError(
            f"q has shape {tuple(q.shape)} for {K} key heads; (B, H, 1, D) is needed, with a "
            f"multiple of that for H, D up to {WIDEST_HEAD}, and a contiguous last dimension"
        )
    if lengths.shape != (B,) or lengths.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"lengths are {lengths.dtype} {tuple(lengths.shape)}; ({B},) whole numbers are needed"
        )
    if (window is not None and window < 1) or sinks < 0:
        raise ValueError(f"window is {window} and sinks {sinks}; at least 1 and 0 are needed")
