"""Exercises of notebook 06: grouped heads, sliding windows, rings and sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from minillm.course.checks.kit import Exercise, Value
from minillm.kv_cache.sliding import held_positions
from minillm.layers.attention import attention_mask

Rows = list[list[bool]]


# --- 06.kv_head


def kv_head(h: int, num_heads: int, num_kv_heads: int) -> int:
    """Query heads that stand side by side share a key/value head."""
    return h // (num_heads // num_kv_heads)


# --- 06.mask


def window_mask(q_positions: list[int], k_positions: list[int], window: int) -> Rows:
    """`attention_mask` for one row, as lists."""
    seen = attention_mask(torch.tensor([q_positions]), torch.tensor([k_positions]), window)
    rows: Rows = seen[0, 0].tolist()
    return rows


def _mask(rule: Callable[[int, int, int], bool]) -> Callable[..., Rows]:
    return lambda queries, keys, window: [[rule(q, k, window) for k in keys] for q in queries]


def _by_place(queries: list[int], keys: list[int], window: int) -> Rows:
    first = len(keys) - len(queries)
    return [[0 <= first + i - j < window for j in range(len(keys))] for i in range(len(queries))]


# --- 06.ring_order


def ring_order(length: int, window: int) -> list[int]:
    """The places of a ring in the order of their tokens, the oldest first."""
    return [position % window for position in range(max(0, length - window), length)]


# --- 06.keep_sinks


def kept(length: int, window: int, sinks: int) -> list[int]:
    """The positions that a ring with sinks holds, in order."""
    held = held_positions(torch.tensor([length]), window, sinks)[0].tolist()
    return sorted(position for position in held if position >= 0)


def _last(length: int, count: int, start: int = 0) -> list[int]:
    return list(range(max(start, length - count), length))


# --- 06.chunk

Ring = list[int]


def chunk_step(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    """What a chunk's queries may look at, and the ring after it."""
    seen = [position for position in ring if position >= 0] + chunk
    new = list(ring)
    for position in chunk:
        new[position % len(ring)] = position
    return seen, new


def _written(ring: Ring, chunk: list[int]) -> Ring:
    return chunk_step(ring, chunk)[1]


def _writes_first(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    new = _written(ring, chunk)
    return [position for position in new if position >= 0], new


def _without_the_chunk(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    return [position for position in ring if position >= 0], _written(ring, chunk)


def _without_the_ring(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    return list(chunk), _written(ring, chunk)


def _twice(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    new = _written(ring, chunk)
    return [position for position in [*ring, *new] if position >= 0], new


def _full_ring_stays(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    return chunk_step(ring, chunk)[0], _written(ring, chunk[: len(ring)])


def _starts_at_zero(ring: Ring, chunk: list[int]) -> tuple[list[int], Ring]:
    new = list(ring)
    for i, position in enumerate(chunk):
        new[i % len(ring)] = position
    return chunk_step(ring, chunk)[0], new


def run_chunks(answer: Callable[..., Any], sizes: list[int], window: int) -> list[Any]:
    """What each query of each chunk really sees, sorted, and the ring after each chunk."""
    ring, start = [-1] * window, 0
    found: list[Any] = []
    for size in sizes:
        chunk = list(range(start, start + size))
        seen, ring = answer(list(ring), list(chunk))
        found += [
            ("query", q, "sees", sorted(k for k in seen if 0 <= k <= q and q - k < window))
            for q in chunk
        ]
        found.append(("the ring", list(ring)))
        start += size
    return found


EXERCISES = {
    "06.kv_head": Exercise(
        kv_head,
        cases=[(0, 6, 2), (2, 6, 2), (5, 6, 2), (7, 9, 3), (3, 4, 4), (5, 8, 1)],
        wrong=[
            (
                "it deals the heads out in turn, h % K; heads that stand side by side share, "
                "h // (H/K)",
                lambda h, H, K: h % K,
            ),
            ("it divides by K; a group has H/K query heads", lambda h, H, K: h // K),
            (
                "it stops counting at the last key/value head, as if only the first heads had one "
                "of their own",
                lambda h, H, K: min(h, K - 1),
            ),
            ("it returns the place inside the group, h % (H/K)", lambda h, H, K: h % (H // K)),
        ],
    ),
    "06.mask": Exercise(
        window_mask,
        cases=[
            ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 4),
            ([6], [4, 5, 6, 3], 3),  # a ring that has wrapped
            ([1], [0, 1, -1, -1], 4),  # empty places
            ([3, 4], [0, 1, 2, 3, 4], 1),
        ],
        wrong=[
            (
                "it sees one token too many: `<=` in place of `<`; a window of W holds the token "
                "itself and W - 1 before it",
                _mask(lambda q, k, window: k >= 0 and 0 <= q - k <= window),
            ),
            (
                "it forgets causality: a key that stands after the query is seen",
                _mask(lambda q, k, window: k >= 0 and q - k < window),
            ),
            (
                "it looks as far ahead as back: the distance needs its sign",
                _mask(lambda q, k, window: k >= 0 and abs(q - k) < window),
            ),
            (
                "the token does not see itself",
                _mask(lambda q, k, window: k >= 0 and 0 < q - k < window),
            ),
            (
                "an empty place, position -1, is seen",
                _mask(lambda q, k, window: 0 <= q - k < window),
            ),
            ("it compares places in memory instead of positions", _by_place),
            ("it forgets the window", _mask(lambda q, k, window: 0 <= k <= q)),
        ],
    ),
    "06.ring_order": Exercise(
        ring_order,
        cases=[(7, 4), (4, 4), (2, 4), (8, 4), (5, 3), (0, 4)],
        wrong=[
            (
                "it is the order of storage; after the wrap the oldest token stands in the middle",
                lambda length, window: list(range(min(length, window))),
            ),
            (
                "before the ring is full it lists places that hold nothing yet",
                lambda length, window: [(length + i) % window for i in range(window)],
            ),
            (
                "the newest token comes first",
                lambda length, window: ring_order(length, window)[::-1],
            ),
            (
                "it begins with the newest token: place length % W is the oldest one's, which is "
                "overwritten next",
                lambda length, window: [
                    (length - 1 + i) % window if length > window else i
                    for i in range(min(length, window))
                ],
            ),
            (
                "it lists positions; a place is the position modulo W",
                _last,
            ),
        ],
    ),
    "06.keep_sinks": Exercise(
        kept,
        cases=[(20, 4, 2), (5, 4, 2), (6, 4, 2), (7, 4, 2), (3, 4, 0), (9, 4, 0), (1, 4, 2)],
        wrong=[
            (
                "the sinks are evicted at the wrap, as in a ring of s + W places for all tokens",
                lambda length, window, sinks: _last(length, window + sinks),
            ),
            (
                "the sinks are counted twice while they are still inside the window",
                lambda length, window, sinks: sorted(
                    [*range(min(sinks, length)), *_last(length, window)]
                ),
            ),
            (
                "the window is shortened: the sinks take their places from its W",
                lambda length, window, sinks: (
                    [*range(min(sinks, length)), *_last(length, window - sinks, sinks)]
                ),
            ),
            (
                "the sinks are forgotten",
                lambda length, window, sinks: _last(length, window),
            ),
            (
                "the window holds one token too many",
                lambda length, window, sinks: (
                    [*range(min(sinks, length)), *_last(length, window + 1, sinks)]
                ),
            ),
        ],
    ),
    # 2 global layers with 8,192 places, 10 local ones with 1,024 + 4; 2 · 4 · 128 · 2 bytes each.
    "06.mixed_bytes": Value(
        (2 * 8_192 + 10 * 1_028) * 2 * 4 * 128 * 2,
        wrong=[
            (
                "it counts keys or values only, or one byte per value",
                (2 * 8_192 + 10 * 1_028) * 4 * 128 * 2,
            ),
            ("every layer keeps all tokens", 12 * 8_192 * 2 * 4 * 128 * 2),
            ("every layer has a window", 12 * 1_028 * 2 * 4 * 128 * 2),
            ("the sinks are forgotten", (2 * 8_192 + 10 * 1_024) * 2 * 4 * 128 * 2),
            (
                "the sinks are kept in the global layers again",
                (2 * 8_196 + 10 * 1_028) * 2 * 4 * 128 * 2,
            ),
            (
                "it counts query heads; the cache holds K of them",
                (2 * 8_192 + 10 * 1_028) * 2 * 16 * 128 * 2,
            ),
            (
                "six layers are global; it is every sixth",
                (6 * 8_192 + 6 * 1_028) * 2 * 4 * 128 * 2,
            ),
        ],
    ),
    "06.chunk": Exercise(
        chunk_step,
        cases=[([3, 3, 3], 4), ([6, 6], 4), ([4, 9, 1], 4), ([1, 1, 1, 1, 1, 1], 4)],
        drive=run_chunks,
        wrong=[
            (
                "the chunk is written first, so that it overwrites keys which its own first "
                "queries still need",
                _writes_first,
            ),
            ("the queries do not see the keys of their own chunk", _without_the_chunk),
            ("the queries see nothing from before the chunk", _without_the_ring),
            ("keys that are in the old ring and in the new one are seen twice", _twice),
            (
                "of a long chunk the first W tokens are kept; later queries need the last W",
                _full_ring_stays,
            ),
            (
                "each chunk is written from place 0 on; a token's place is its position modulo W",
                _starts_at_zero,
            ),
        ],
    ),
}
