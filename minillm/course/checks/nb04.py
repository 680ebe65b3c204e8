"""Exercises of notebook 04: the work of a pass, the block, the filters, chunks and padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.config import RopeConfig
from minillm.course.checks.kit import Exercise, Value
from minillm.layers.attention import attention, causal_mask
from minillm.layers.rope import apply_rope, rope_tables
from minillm.sampling import apply_min_p, apply_temperature, apply_top_p

Function = Callable[[Tensor], Tensor]
# A block's norm, attention, second norm and MLP.
Parts = tuple[Function, Function, Function, Function]


# --- 04.parameters and 04.flops: V = 1,000, C = 100, L = 2, H = K = 2, D = 50, F = 300, tied

_ATTENTION, _MLP, _TABLE = 4 * 100 * 100, 3 * 100 * 300, 1000 * 100
_PRODUCTS = 2 * 10 * 2 * (_ATTENTION + _MLP)
_SCORES, _HEAD = 2 * 4 * 2 * 50 * 10 * 10, 2 * _TABLE


# --- 04.forward


def forward_right(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    """The residual stream through all blocks, then the last norm."""
    for norm1, attend, norm2, mlp in blocks:
        x = x + attend(norm1(x))
        x = x + mlp(norm2(x))
    return last_norm(x)


def _no_last_norm(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    return forward_right(x, blocks, lambda x: x)


def _no_norms(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    bare = [(lambda x: x, attend, lambda x: x, mlp) for _, attend, _, mlp in blocks]
    return forward_right(x, bare, last_norm)


def _norm_after(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    for norm1, attend, norm2, mlp in blocks:
        x = norm1(x + attend(x))
        x = norm2(x + mlp(x))
    return last_norm(x)


def _norm_on_output(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    for norm1, attend, norm2, mlp in blocks:
        x = x + norm1(attend(x))
        x = x + norm2(mlp(x))
    return last_norm(x)


def _one_norm(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    return forward_right(x, [(n, attend, n, mlp) for n, attend, _, mlp in blocks], last_norm)


def _from_the_norm(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    for norm1, attend, norm2, mlp in blocks:
        x = norm1(x)
        x = x + attend(x)
        x = norm2(x)
        x = x + mlp(x)
    return last_norm(x)


def _side_by_side(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    for norm1, attend, norm2, mlp in blocks:
        x = x + attend(norm1(x)) + mlp(norm2(x))
    return last_norm(x)


def _no_residual(x: Tensor, blocks: Sequence[Parts], last_norm: Function) -> Tensor:
    for norm1, attend, norm2, mlp in blocks:
        x = mlp(norm2(attend(norm1(x))))
    return last_norm(x)


def _blocks(count: int) -> list[Parts]:
    """Small blocks whose four parts all differ: each norm has a weight of its own."""

    def norm(weight: float) -> Function:
        return lambda x: x / (x.square().mean(-1, keepdim=True) + 0.01).sqrt() * weight

    def attend(x: Tensor) -> Tensor:
        return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None]

    def mlp(x: Tensor) -> Tensor:
        return torch.tanh(x.flip(-1)) * 2

    return [(norm(0.5 + i), attend, norm(2.0 - i), mlp) for i in range(count)]


_X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [-0.5, 4.0, 1.0]])


# --- 04.top_p and 04.min_p


def _keep(logits: Tensor, keep: Tensor) -> Tensor:
    return logits.masked_fill(~keep, -math.inf)


def _ranked(logits: Tensor) -> tuple[Tensor, Tensor]:
    ordered, ids = logits.sort(descending=True, stable=True)
    return ordered, ids


def _drops_the_crossing(logits: Tensor, p: float) -> Tensor:
    ordered, ids = _ranked(logits)
    keep = ordered.softmax(-1).cumsum(-1) < p if p < 1 else ordered > -math.inf
    keep[0] = True
    return torch.full_like(logits, -math.inf).scatter(-1, ids, _keep(ordered, keep))


def _empty_at_zero(logits: Tensor, p: float) -> Tensor:
    ordered, ids = _ranked(logits)
    mass = ordered.softmax(-1)
    keep = mass.cumsum(-1) - mass < p if p < 1 else ordered > -math.inf
    return torch.full_like(logits, -math.inf).scatter(-1, ids, _keep(ordered, keep))


def _left_sorted(logits: Tensor, p: float) -> Tensor:
    return apply_top_p(_ranked(logits)[0], p)


def _sums_logits(logits: Tensor, p: float) -> Tensor:
    ordered, ids = _ranked(logits)
    keep = ordered.cumsum(-1) - ordered < p
    keep[0] = True
    return torch.full_like(logits, -math.inf).scatter(-1, ids, _keep(ordered, keep))


def _unlikely_first(logits: Tensor, p: float) -> Tensor:
    ordered, ids = logits.sort(stable=True)
    mass = ordered.softmax(-1)
    keep = mass.cumsum(-1) - mass < p if p < 1 else ordered > -math.inf
    return torch.full_like(logits, -math.inf).scatter(-1, ids, _keep(ordered, keep))


def _each_above(logits: Tensor, p: float) -> Tensor:
    """Keeps tokens whose own probability is at least 1 - p."""
    keep = logits.softmax(-1) >= 1 - p
    keep[logits.argmax()] = True
    return _keep(logits, keep)


_LOGITS = torch.tensor([0.2, 0.5, 0.05, 0.25]).log()
_FLATTER = torch.tensor([0.3, 0.05, 0.12, 0.25, 0.08, 0.2]).log()


def _absolute(logits: Tensor, p: float) -> Tensor:
    return _keep(logits, logits.softmax(-1) >= p)


def _share_of_logit(logits: Tensor, p: float) -> Tensor:
    return _keep(logits, logits >= p * logits.max())


def _strictly_above(logits: Tensor, p: float) -> Tensor:
    probabilities = logits.softmax(-1)
    return _keep(logits, probabilities > p * probabilities.max())


def _share_of_mean(logits: Tensor, p: float) -> Tensor:
    probabilities = logits.softmax(-1)
    return _keep(logits, probabilities >= p * probabilities.mean())


def _returns_probabilities(logits: Tensor, p: float) -> Tensor:
    return apply_min_p(logits, p).softmax(-1)


# --- 04.kept


def _count(logits: Tensor) -> int:
    return int((logits > -math.inf).sum())


def kept_both_ways(logits: Tensor, temperature: float, p: float) -> tuple[int, int]:
    """How many tokens top-p keeps with the temperature before it, and with it after."""
    before = apply_top_p(apply_temperature(logits, temperature), p)
    after = apply_temperature(apply_top_p(logits, p), temperature)
    return _count(before), _count(after)


def _swapped(logits: Tensor, temperature: float, p: float) -> tuple[int, int]:
    first, last = kept_both_ways(logits, temperature, p)
    return last, first


def _times_temperature(logits: Tensor, temperature: float, p: float) -> tuple[int, int]:
    return kept_both_ways(logits, 1 / temperature, p)


def _temperature_on_probabilities(logits: Tensor, temperature: float, p: float) -> tuple[int, int]:
    shares = logits.softmax(-1)
    return _count(apply_top_p(shares / temperature, p)), _count(apply_top_p(logits, p))


def _same_twice(logits: Tensor, temperature: float, p: float) -> tuple[int, int]:
    first, _ = kept_both_ways(logits, temperature, p)
    return first, first


# --- 04.chunks


def turn(x: Tensor, positions: Tensor) -> Tensor:
    """RoPE at these positions. x: (B, heads, T, D). positions: (T,)."""
    return apply_rope(x, *rope_tables(positions[None], RopeConfig(), x.shape[-1]))


Turn = Callable[[Tensor, Tensor], Tensor]


def attend_in_chunks(q: Tensor, k: Tensor, v: Tensor, size: int, turn: Turn) -> Tensor:
    """Attention chunk by chunk, as if over the whole."""
    return _chunks(q, k, v, size, turn)


def _chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    size: int,
    turn: Turn,
    *,
    restart: bool = False,
    corner: bool = False,
    forget: bool = False,
    ahead: bool = False,
    no_mask: bool = False,
) -> Tensor:
    parts: list[Tensor] = []
    keys, values = k[:, :, :0], v[:, :, :0]
    for start in range(0, q.shape[2], size):
        chunk = slice(start, start + size)
        width = q[:, :, chunk].shape[2]
        positions = torch.arange(width) + (0 if restart else start)
        if forget:
            keys, values = k[:, :, :0], v[:, :, :0]
        keys = torch.cat([keys, turn(k[:, :, chunk], positions)], dim=2)
        values = torch.cat([values, v[:, :, chunk]], dim=2)
        S = keys.shape[2]
        mask = causal_mask(width, S)
        if corner:
            mask = torch.ones(width, S, dtype=torch.bool).tril()[None, None]
        if no_mask:
            mask = torch.ones_like(mask)
        query = turn(q[:, :, chunk], positions)
        parts.append(attention(query, keys, values, mask))
    if ahead:
        parts = parts[-1:]
    return torch.cat(parts, dim=2)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _chunk_case(T: int, size: int) -> tuple[Any, ...]:
    return (
        _random(1, 4, T, 8),
        _random(1, 2, T, 8, seed=1),
        _random(1, 2, T, 8, seed=2),
        size,
        turn,
    )


# --- 04.left_positions


def left_positions(lengths: Sequence[int], width: int) -> list[list[int]]:
    """Positions of rows that are padded on the left: -1 for padding, then 0, 1, 2, …"""
    return [[-1] * (width - n) + list(range(n)) for n in lengths]


EXERCISES = {
    "04.parameters": Value(
        2 * (_ATTENTION + _MLP) + _TABLE,
        wrong=[
            (
                "the output head is counted a second time; tied means that it is the table itself",
                2 * (_ATTENTION + _MLP) + 2 * _TABLE,
            ),
            ("the embedding table is missing", 2 * (_ATTENTION + _MLP)),
            (
                "the MLP is counted with two matrices; a gated one has three",
                2 * (_ATTENTION + _MLP * 2 // 3) + _TABLE,
            ),
            (
                "attention has four matrices: the output projection is missing",
                2 * (_ATTENTION * 3 // 4 + _MLP) + _TABLE,
            ),
            ("only one of the two layers is counted", _ATTENTION + _MLP + _TABLE),
        ],
    ),
    "04.flops": Value(
        _PRODUCTS + _SCORES + _HEAD,
        wrong=[
            ("the output head is missing", _PRODUCTS + _SCORES),
            (
                "the head runs at all ten positions; only the last one's scores are wanted",
                _PRODUCTS + _SCORES + 10 * _HEAD,
            ),
            (
                "the embedding is counted as a product; it is a lookup, without any calculation",
                _PRODUCTS + _SCORES + _HEAD + 10 * 2 * _TABLE,
            ),
            (
                "a weight costs two FLOPs, a multiplication and an addition; the factor 2 is "
                "missing",
                (_PRODUCTS + _HEAD) // 2 + _SCORES,
            ),
            (
                "the factor 2 is missing everywhere: a multiplication and an addition are two",
                (_PRODUCTS + _SCORES + _HEAD) // 2,
            ),
            (
                "the MLP is counted with two matrices; a gated one has three",
                2 * 10 * 2 * (_ATTENTION + _MLP * 2 // 3) + _SCORES + _HEAD,
            ),
            (
                "attention's own work is missing: every token meets every token, T² pairs",
                _PRODUCTS + _HEAD,
            ),
            (
                "attention's own work grows with T², not with T",
                _PRODUCTS + _SCORES // 10 + _HEAD,
            ),
            (
                "half of attention's own work is missing: q·k for the scores, then the weighted "
                "sum of v",
                _PRODUCTS + _SCORES // 2 + _HEAD,
            ),
        ],
    ),
    "04.forward": Exercise(
        forward_right,
        cases=[(_X, _blocks(1), _blocks(1)[0][0]), (_X, _blocks(3), _blocks(2)[1][2])],
        wrong=[
            ("the last norm is missing, as in the article", _no_last_norm),
            ("attention and MLP read the stream without a norm, as in the article", _no_norms),
            (
                "the norm stands after the addition, as in the first Transformers; here it stands "
                "before each part",
                _norm_after,
            ),
            (
                "the norm is applied to what a part gives; it belongs on what the part reads",
                _norm_on_output,
            ),
            ("one norm serves both parts; the MLP has its own", _one_norm),
            (
                "the normalised vector is carried on; what a part gives is added to the stream "
                "itself",
                _from_the_norm,
            ),
            (
                "the MLP reads the stream from before attention; it has to see what attention "
                "added",
                _side_by_side,
            ),
            ("nothing is added to the stream: the residual is missing", _no_residual),
        ],
        tolerance=1e-4,
    ),
    "04.top_p": Exercise(
        apply_top_p,
        cases=[(_LOGITS, 0.6), (_LOGITS, 0.8), (_LOGITS, 0.0), (_FLATTER, 0.78), (_LOGITS, 1.0)],
        wrong=[
            (
                "it drops the token with which the mass crosses p; that one is kept",
                _drops_the_crossing,
            ),
            ("nothing is left at p = 0; the most likely token always stays", _empty_at_zero),
            (
                "the result stands in sorted order; entry i must belong to token i again",
                _left_sorted,
            ),
            ("it adds up logits; the mass is a sum of probabilities", _sums_logits),
            ("it starts with the least likely token", _unlikely_first),
            (
                "it looks at each token's own probability; top-p adds them up, the likeliest first",
                _each_above,
            ),
        ],
    ),
    "04.min_p": Exercise(
        apply_min_p,
        cases=[(_LOGITS, 0.3), (_LOGITS, 0.15), (_LOGITS, 0.0), (_LOGITS, 1.0)],
        wrong=[
            (
                "the threshold is p itself; it is p times the probability of the most likely token",
                _absolute,
            ),
            ("it compares logits by a factor; p is a ratio of probabilities", _share_of_logit),
            (
                "a token exactly at the threshold is dropped; at p = 1 nothing would be left",
                _strictly_above,
            ),
            (
                "it compares with the mean probability; the most likely token sets the threshold",
                _share_of_mean,
            ),
            ("it returns probabilities; logits are asked for", _returns_probabilities),
        ],
    ),
    "04.kept": Exercise(
        kept_both_ways,
        cases=[
            (torch.tensor([3.0, 2.0, 1.0]), 0.5, 0.8),
            (torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0]), 2.0, 0.8),
            (torch.tensor([1.0, 5.0, 4.0, 0.5, 3.0, 2.0]), 1.5, 0.85),
        ],
        wrong=[
            ("the two counts have changed places: temperature first comes first", _swapped),
            (
                "it multiplies by the temperature; a high temperature has to flatten",
                _times_temperature,
            ),
            (
                "the temperature divides probabilities; it divides logits",
                _temperature_on_probabilities,
            ),
            (
                "both counts have the temperature first; the second has top-p see the "
                "distribution as the model gave it",
                _same_twice,
            ),
        ],
    ),
    "04.order": Value(
        "temperature first",
        wrong=[
            (
                "that is llama.cpp's default; read the last lines of `sample`",
                "temperature last",
            ),
            (
                "the order decides how many tokens top-p keeps: compare the two counts",
                "it makes no difference",
            ),
            (
                "a temperature is applied once; read the last lines of `sample`",
                "both",
            ),
        ],
    ),
    "04.chunks": Exercise(
        attend_in_chunks,
        cases=[_chunk_case(6, 6), _chunk_case(6, 2), _chunk_case(7, 3), _chunk_case(4, 1)],
        wrong=[
            (
                "the positions start at 0 again in every chunk; chunk n starts at n · size",
                lambda *case: _chunks(*case, restart=True),
            ),
            (
                "the mask starts at the top left; the queries of a chunk are the last of the "
                "tokens so far, so it has to end at the bottom right",
                lambda *case: _chunks(*case, corner=True),
            ),
            (
                "only the keys and values of the current chunk are there; those of all chunks "
                "before it belong to them",
                lambda *case: _chunks(*case, forget=True),
            ),
            (
                "the result holds the last chunk only",
                lambda *case: _chunks(*case, ahead=True),
            ),
            (
                "nothing is masked: within its chunk a token sees tokens after it",
                lambda *case: _chunks(*case, no_mask=True),
            ),
        ],
        tolerance=1e-4,
    ),
    "04.left_positions": Exercise(
        left_positions,
        cases=[([3, 5], 5), ([1, 2, 4], 4), ([2], 3)],
        wrong=[
            (
                "the padding has positions as if it were text, so every token sees it",
                lambda lengths, width: [list(range(width)) for _ in lengths],
            ),
            (
                "the padding is hidden, but the text does not begin at 0: harmless for RoPE "
                "alone, wrong for windows and for the trained length",
                lambda lengths, width: [
                    [-1] * (width - n) + list(range(width - n, width)) for n in lengths
                ],
            ),
            (
                "the padding has position 0, which is a real position: every token sees it",
                lambda lengths, width: [[0] * (width - n) + list(range(n)) for n in lengths],
            ),
            (
                "the padding is expected on the right",
                lambda lengths, width: [list(range(n)) + [-1] * (width - n) for n in lengths],
            ),
        ],
    ),
}
