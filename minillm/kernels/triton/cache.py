"""Rotary embedding and the write into the KV cache, in one pass over queries, keys and values."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def ring_place(positions, RING: tl.constexpr, SINKS: tl.constexpr):
    """Where a token is stored, as `kv_cache.sliding.ring_place`; RING 0: at its position."""
    if RING > 0:
        positions = tl.where(positions < SINKS, positions, SINKS + (positions - SINKS) % RING)
    return positions


@triton.jit
def turn(x_ptr, out_ptr, cos_ptr, sin_ptr, read, write, D, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Copy one head, its pairs (x[i], x[i + HALF]) turned by their angles; HALF 0: as it is.

    read, write: scalars; a head that is not read counts as zeros.
    """
    pair = tl.arange(0, BLOCK)
    if HALF > 0:
        here = pair < HALF
        a = tl.load(x_ptr + pair, mask=here & read, other=0.0)
        b = tl.load(x_ptr + HALF + pair, mask=here & read, other=0.0)
        cos = tl.load(cos_ptr + pair, mask=here & read, other=0.0)
        sin = tl.load(sin_ptr + pair, mask=here & read, other=0.0)
        # In float32, and rounded to x's dtype also where the cache has another one.
        turned_a = (a * cos - b * sin).to(a.dtype).to(tl.float32)
        turned_b = (a * sin + b * cos).to(a.dtype).to(tl.float32)
        tl.store(out_ptr + pair, turned_a, mask=here & write)
        tl.store(out_ptr + HALF + pair, turned_b, mask=here & write)
    rest = (pair >= 2 * HALF) & (pair < D)
    x = tl.load(x_ptr + pair, mask=rest & read, other=0.0).to(tl.float32)
    tl.store(out_ptr + pair, x, mask=rest & write)


# Triton compiles a kernel once more for a number that is 1 or a multiple of 16. Not for these: they
# change from request to request, which would wait for that.
@triton.jit(do_not_specialize=["T", "capacity", "table"])
def rope_and_cache_kernel(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions_ptr, out_ptr, keys_ptr, values_ptr,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, cache_b, cache_h,
    T, D, capacity, table, H: tl.constexpr, K: tl.constexpr,
    HALF: tl.constexpr, RING: tl.constexpr, SINKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program (token, head) moves one head: the first H turn queries, K turn keys, K copy values.

    token is row · T + t. A name such as k_h is a stride: so many numbers lie from one head to the
    next. The masks are whole here: a program reads its head or not, and writes it or not.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    # Offsets are 64-bit numbers: a cache may have more than 2^31 of them.
    row, t, head = (token // T).to(tl.int64), (token % T).to(tl.int64), head.to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    place = ring_place(position, RING, SINKS)
    known = (position >= 0) & (position < table)
    stored = known & (place < capacity)
    cos_row, sin_row = cos_ptr + position * HALF, sin_ptr + position * HALF
    if head < H:
        q = q_ptr + row * q_b + head * q_h + t * q_t
        out = out_ptr + ((row * H + head) * T + t) * D
        turn(q, out, cos_row, sin_row, known, True, D, HALF, BLOCK)
    elif head < H + K:
        k = k_ptr + row * k_b + (head - H) * k_h + t * k_t
        place_ptr = keys_ptr + row * cache_b + (head - H) * cache_h + place * D
        turn(k, place_ptr, cos_row, sin_row, stored, stored, D, HALF, BLOCK)
    else:
        v = v_ptr + row * v_b + (head - H - K) * v_h + t * v_t
        place_ptr = values_ptr + row * cache_b + (head - H - K) * cache_h + place * D
        turn(v, place_ptr, cos_row, sin_row, stored, stored, D, 0, BLOCK)


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    ring: int | None = None,
    sinks: int = 0,
) -> Tensor:
    """Turn q and k by their positions' angles, and write k and v at their places of the cache.

    Reference: `minillm.layers.rope.apply_rope`, and `update` of the dense and the sliding cache.
    Positions are read on the device: the host neither knows nor waits for them, so that a captured
    graph may be replayed at any position.

    q: (B, H, T, D), k, v: (B, K, T, D), of one dtype, with any strides but 1 in the last dimension:
    views of one fused product will do. cos, sin: (P, R/2), float32, row p the angles of position p
    (`rope_tables` of all positions): the first R values of a head are turned; None: none are.
    keys, values: (B, K, places, D), contiguous but for strides of rows and heads; written in place.
    positions: (B, T), int32 or int64; -1 is padding: nothing is written for it, and its query
    becomes 0. So it is with a position from P on; and no place beyond the cache is written.
    ring, sinks: those of a sliding cache's layer, see `ring_place`; None: a token's place is its
    position.
    Returns the turned queries (B, H, T, D), contiguous. Raises ValueError for shapes that do not
    belong together.
    """
    check(q, k, v, cos, sin, keys, values, positions)
    if ring is not None and not (ring > 0 and sinks >= 0 and sinks + ring <= keys.shape[2]):
        raise ValueError(
            f"ring is {ring} and sinks {sinks}; the cache has {keys.shape[2]} places for both"
        )
    B, H, T, D = q.shape
    K, capacity = keys.shape[1:3]
    out = torch.empty((B, H, T, D), dtype=q.dtype, device=q.device)
    half = 0 if cos is None else cos.shape[1]
    table = torch.iinfo(torch.int64).max if cos is None else cos.shape[0]
    none = q  # stands where no table is read
    if B * T:
        rope_and_cache_kernel[B * T, H + 2 * K](
            q, k, v, none if cos is None else cos, none if sin is None else sin,
            positions.contiguous(), out, keys, values,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *keys.stride()[:2],
            T, D, capacity, table, H=H, K=K,
            HALF=half, RING=ring or 0, SINKS=sinks, BLOCK=triton.next_power_of_2(D), num_warps=1,
        )  # fmt: skip
    return out


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
) -> None:
    """ValueError for queries, keys, values, tables and storage that do not belong together."""
    B, _, T, D = q.shape
    K = keys.shape[1]
    if k.shape != (B, K, T, D) or v.shape != k.shape or not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"q is {q.dtype} {tuple(q.shape)}, k {k.dtype} {tuple(k.shape)}, v {v.dtype} "
            f"{tuple(v.shape)}; k and v need ({B}, {K}, {T}, {D}), and all one dtype"
        )
    if any(x.stride(-1) != 1 for x in (q, k, v)):
        raise ValueError("the last dimension of q, k and v has to be contiguous")
    check_storage(keys, values, B, D)
    if positions.shape != (B, T) or positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"positions are {positions.dtype} {tuple(positions.shape)}; ({B}, {T}) whole numbers "
            "are needed"
        )
    if cos is None and sin is None:
        return
    if cos is None or sin is None or cos.shape != sin.shape or cos.shape[1] * 2 > D:
        shapes = [None if x is None else tuple(x.shape) for x in (cos, sin)]
        raise ValueError(f"cos and sin have shapes {shapes}; (P, R/2) with R up to {D} is needed")
    if not (
        cos.is_contiguous() and sin.is_contiguous() and cos.dtype == sin.dtype == torch.float32
    ):
        raise ValueError(f"cos is {cos.dtype}, sin {sin.dtype}; contiguous float32 is needed")


def check_storage(keys: Tensor, values: Tensor, B: int, D: int) -> None:
    """ValueError for keys and values that are not (B, K, places, D) each, laid out alike."""
    if keys.shape != (B, *keys.shape[1:3], D) or values.shape != keys.shape:
        raise ValueError(
            f"keys are {tuple(keys.shape)} and values {tuple(values.shape)}; both need "
            f"({B}, {keys.shape[1]}, places, {D})"
        )
    if keys.stride() != values.stride() or keys.stride()[2:] != (D, 1):
        raise ValueError(f"keys have strides {keys.stride()}, values {values.stride()}")
