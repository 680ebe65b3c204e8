"""Exercises of notebook 03: attention, its mask, its softmax, and a norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks.kit import Exercise, Value
from minillm.layers.attention import attention, attention_mask, causal_mask
from minillm.layers.norm import rms_norm


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- 03.causal_mask


def mask_of(T: int, S: int) -> Tensor:
    """The mask (T, S) of T queries that are the last T of S tokens, True where seen."""
    return causal_mask(T, S)[0, 0]


def _tril(T: int, S: int, diagonal: int) -> Tensor:
    return torch.ones(T, S, dtype=torch.bool).tril(diagonal)


# --- 03.softmax


def safe_softmax(x: Tensor) -> Tensor:
    """Softmax over the last axis; a row of -inf, where nothing may be seen, becomes zeros."""
    top = x.amax(-1, keepdim=True)
    shares = (x - top.masked_fill(top == -math.inf, 0)).exp()
    return shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def _no_maximum(x: Tensor) -> Tensor:
    shares = x.exp()
    return shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def _first_axis(x: Tensor) -> Tensor:
    return safe_softmax(x.transpose(0, -1)).transpose(0, -1)


def _nan_row(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _maximum_of_all(x: Tensor) -> Tensor:
    return _no_maximum(x - x.max())


def _uniform_row(x: Tensor) -> Tensor:
    return x.clamp(min=-1e9).softmax(-1)


# --- 03.attention


def one_group(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    divide: float | None = None,
    late_scale: bool = False,
    fill: float = -math.inf,
    late_mask: bool = False,
    axis: int = -1,
) -> Tensor:
    """softmax(q kᵀ / sqrt(D)) v with a mask, and the faults that an answer may have.

    q: (H, T, D). k, v: (H, S, D). mask: (T, S), True where seen. Returns (H, T, D).
    """
    root = math.sqrt(q.shape[-1]) if divide is None else divide
    scores = q @ k.transpose(-1, -2) / (1 if late_scale else root)
    if not late_mask:
        scores = scores.masked_fill(~mask, fill)
    weights = scores.softmax(axis)
    if late_mask:
        weights = weights * mask
    return weights @ v / (root if late_scale else 1)


def _with_width(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return one_group(q, k, v, mask, divide=math.sqrt(q.shape[0] * q.shape[-1]))


def _heads(T: int, S: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (_random(3, n, 8, seed=seed + i) for i, n in enumerate((T, S, S)))
    return 2 * q, k, v, mask_of(T, S)


# --- 03.grouped


def _written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    read: Callable[[int, int, int], int] = lambda h, H, K: h // (H // K),
    causal: bool = True,
    top_left: bool = False,
    ignore: bool = False,
) -> Tensor:
    """One head after the other; `read` says which key/value head query head h reads."""
    H, T, K, S = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    if (mask is None or ignore) and causal:
        mask = _tril(T, S, 0 if top_left else S - T)
    heads = []
    for h in range(H):
        g = read(h, H, K)
        scores = q[:, h] @ k[:, g].transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, T, S)
        if mask is not None:
            scores = scores.masked_fill(~(mask[:, 0] if mask.dim() == 4 else mask), -math.inf)
        heads.append(scores.softmax(-1) @ v[:, g])
    return torch.stack(heads, dim=1)


def _variant(**fault: Any) -> Callable[..., Tensor]:
    def attention_with_a_fault(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return _written_out(q, k, v, mask, **fault)

    return attention_with_a_fault


def _grouped_case(B: int, T: int, S: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    k, v = _random(B, 2, S, 8, seed=seed), _random(B, 2, S, 8, seed=seed + 1)
    return 2 * _random(B, 6, T, 8, seed=seed + 2), k, v


# A row of three tokens beside one of five: two empty places, marked -1, must stay unseen.
_PADDED = attention_mask(
    torch.tensor([[3, 4], [1, 2]]), torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])
)


# --- 03.online


def online(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tile: int,
    *,
    start: float = -math.inf,
    shrink_sum: bool = True,
    shrink_out: bool = True,
    running: bool = True,
    drop_rest: bool = False,
) -> Tensor:
    """softmax(q kᵀ / sqrt(D)) v without a mask, `tile` keys at a time, and possible faults.

    q: (T, D). k, v: (S, D). Returns (T, D).
    """
    T, S = len(q), len(k)
    top, total, out = torch.full((T, 1), start), torch.zeros(T, 1), torch.zeros(T, v.shape[-1])
    for i in range(0, S - S % tile if drop_rest else S, tile):
        scores = q @ k[i : i + tile].T / math.sqrt(q.shape[-1])  # (T, tile)
        here = scores.amax(-1, keepdim=True)
        now = torch.maximum(top, here) if running else here
        shrink, shares = (top - now).exp(), (scores - now).exp()
        total = total * (shrink if shrink_sum else 1) + shares.sum(-1, keepdim=True)
        out = out * (shrink if shrink_out else 1) + shares @ v[i : i + tile]
        top = now
    return out / total


def _online_with(**fault: Any) -> Callable[..., Tensor]:
    def online_with_a_fault(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
        return online(q, k, v, tile, **fault)

    return online_with_a_fault


def _no_running_maximum(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
    shares = (q @ k.T / math.sqrt(q.shape[-1])).exp()
    return shares @ v / shares.sum(-1, keepdim=True)


def _tile_by_itself(q: Tensor, k: Tensor, v: Tensor, tile: int) -> Tensor:
    parts = [
        (q @ k[i : i + tile].T / math.sqrt(q.shape[-1])).softmax(-1) @ v[i : i + tile]
        for i in range(0, len(k), tile)
    ]
    return torch.stack(parts).mean(0)


_Q, _K, _V = 2 * _random(3, 4, seed=1), _random(6, 4, seed=2), _random(6, 4, seed=3)
_ONES = torch.ones(2, 4)
_CLIMB = torch.arange(6.0)[:, None].expand(6, 4)  # each key scores higher than the one before

# --- 03.rms_norm


def _norm(x: Tensor, weight: Tensor, eps: float, *, outside: bool = False) -> Tensor:
    mean = x.square().mean(-1, keepdim=True)
    return x / (mean.sqrt() + eps if outside else (mean + eps).sqrt()) * weight


def _squares_in_half(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _half_sum(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    mean = (x.square().sum(-1, keepdim=True) / x.shape[-1]).float()
    return (x.float() * torch.rsqrt(mean + eps)).to(x.dtype) * weight


def _returns_float32(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(x.float(), weight.float(), eps)


def _clamped(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    squares = x.square().clamp(max=torch.finfo(x.dtype).max)
    mean = squares.float().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(mean + eps)).to(x.dtype) * weight


def _eps_outside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _norm(x.float(), torch.ones(()), eps, outside=True).to(x.dtype) * weight


def _subtracts_the_mean(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return _norm(wide - wide.mean(-1, keepdim=True), torch.ones(()), eps).to(x.dtype) * weight


def _and_its_type(answer: Callable[..., Any], *case: Any) -> Any:
    out = answer(*case)
    return [out, str(out.dtype)] if isinstance(out, Tensor) else out


EXERCISES = {
    "03.by_hand": Value(
        17.85,
        tolerance=0.005,
        wrong=[
            ("it also looks at ` it`, which comes later and must not be seen", 22.75),
            ("the scores were not divided by sqrt(D) = 2", 15.41),
            ("the scores were divided by D = 4; it is sqrt(D) = 2", 21.99),
            ("the weights do not add up to 1: divide by the sum of the exponentials", 281.67),
            ("the weights are in proportion to the scores; they go through exp first", 15.0),
            ("that is the plain mean of the values: the weights differ", 30.0),
        ],
    ),
    "03.causal_mask": Exercise(
        mask_of,
        cases=[(4, 4), (2, 5), (1, 3), (1, 1)],
        wrong=[
            (
                "a token does not see itself: the diagonal belongs to the mask",
                lambda T, S: _tril(T, S, S - T - 1),
            ),
            (
                "it lets each token see what follows: rows are queries, columns are keys",
                lambda T, S: torch.ones(T, S, dtype=torch.bool).triu(S - T),
            ),
            (
                "it starts at the top left; the T queries are the last of the S tokens",
                lambda T, S: _tril(T, S, 0),
            ),
            (
                "True and False have changed places: True means seen",
                lambda T, S: ~_tril(T, S, S - T),
            ),
            ("it hides nothing", lambda T, S: torch.ones(T, S, dtype=torch.bool)),
        ],
    ),
    "03.softmax": Exercise(
        safe_softmax,
        cases=[
            (torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 5.0]]),),
            (torch.tensor([[1000.0, 999.0], [-1000.0, -1001.0]]),),
            (torch.tensor([[0.5, -math.inf, 0.0], [1.0, 1.0, 1.0]]),),
            (torch.tensor([[-math.inf, -math.inf], [0.0, 1.0]]),),
            (_random(2, 3, 4),),
        ],
        wrong=[
            (
                "the maximum of the row is not subtracted, so large scores overflow",
                _no_maximum,
            ),
            ("it runs along the first axis; each row has to sum to 1", _first_axis),
            ("a row of -inf gives NaN: -inf minus -inf. Zeros are asked for", _nan_row),
            (
                "it subtracts the maximum of the whole tensor, and a much lower row becomes 0/0",
                _maximum_of_all,
            ),
            (
                "in a row of -inf every key gets an equal share, though none may be seen",
                _uniform_row,
            ),
        ],
        tolerance=1e-4,
    ),
    "03.attention": Exercise(
        one_group,
        cases=[_heads(4, 4, 1), _heads(2, 5, 5), _heads(1, 3, 9)],
        wrong=[
            ("it divides by sqrt(C) = sqrt(H·D); it is sqrt(D), the width of a head", _with_width),
            (
                "it scales after the softmax; the scores have to be scaled before",
                lambda q, k, v, mask: one_group(q, k, v, mask, late_scale=True),
            ),
            (
                "it fills hidden scores with 0, and exp(0) is 1; -inf becomes 0",
                lambda q, k, v, mask: one_group(q, k, v, mask, fill=0.0),
            ),
            (
                "it masks after the softmax, and the weights no longer add up to 1",
                lambda q, k, v, mask: one_group(q, k, v, mask, late_mask=True),
            ),
            (
                "the softmax runs over the queries; each query shares out over the keys",
                lambda q, k, v, mask: one_group(q, k, v, mask, axis=-2).nan_to_num(),
            ),
            (
                "the scores are not scaled",
                lambda q, k, v, mask: one_group(q, k, v, mask, divide=1.0),
            ),
            (
                "the mask is not used",
                lambda q, k, v, mask: one_group(q, k, v, torch.ones_like(mask)),
            ),
        ],
        tolerance=1e-4,
    ),
    "03.grouped": Exercise(
        attention,
        cases=[
            (*_grouped_case(1, 5, 5, 1), None),
            (*_grouped_case(1, 1, 5, 4), None),
            (*_grouped_case(1, 2, 5, 7), None),
            (*_grouped_case(2, 2, 5, 10), _PADDED),
        ],
        drive=lambda answer, q, k, v, mask: answer(q, k, v, mask),
        wrong=[
            (
                "query head h reads key/value head h % K; it is h // (H/K)",
                _variant(read=lambda h, H, K: h % K),
            ),
            (
                "every query head reads key/value head 0",
                _variant(read=lambda h, H, K: 0),
            ),
            (
                "with mask=None it hides nothing; None means plain causal attention",
                _variant(causal=False),
            ),
            (
                "with mask=None its mask starts at the top left; the queries are the last tokens",
                _variant(top_left=True),
            ),
            (
                "it ignores the mask that it is given, which also hides padding",
                _variant(ignore=True),
            ),
        ],
        tolerance=1e-4,
    ),
    "03.online": Exercise(
        online,
        cases=[
            (_Q, _K, _V, 2),
            (_ONES, _CLIMB, _V, 3),
            (_Q, _K, _V, 4),
            (_ONES, -100.0 - _CLIMB, _V, 2),
            (100 * _Q, _K, _V, 6),
        ],
        wrong=[
            (
                "when the maximum rises, the output so far is not scaled down",
                _online_with(shrink_out=False),
            ),
            (
                "when the maximum rises, the sum so far is not scaled down",
                _online_with(shrink_sum=False),
            ),
            (
                "the maximum starts at 0: where all scores are far below, every exp becomes 0. "
                "Start at -inf",
                _online_with(start=0.0),
            ),
            (
                "the last tile is lost where the tiles do not come out even",
                _online_with(drop_rest=True),
            ),
            ("it subtracts no maximum, so large scores overflow", _no_running_maximum),
            (
                "each tile has a softmax of its own; the weights of all tiles together sum to 1",
                _tile_by_itself,
            ),
        ],
        tolerance=1e-4,
    ),
    "03.rms_norm": Exercise(
        rms_norm,
        cases=[
            (_random(2, 8) + 0.5, _random(8, seed=1), 1e-5),
            (torch.tensor([[1000.0, -1000, 500, -500]]).half(), torch.ones(4).half(), 1e-5),
            (torch.full((1, 64), 40.0).half(), torch.ones(64).half(), 1e-5),
            (torch.tensor([[0.001, -0.002, 0.001, 0.002]]), torch.ones(4), 1e-5),
        ],
        drive=_and_its_type,
        wrong=[
            (
                "it squares in float16, where 1,000² is infinite: go to float32 first",
                _squares_in_half,
            ),
            (
                "the squares are finite, but their sum in float16 is not: go to float32 first",
                _half_sum,
            ),
            ("it returns float32; the result has to have the type of x", _returns_float32),
            ("squares cut off at 65,504 are finite and wrong: go to float32 first", _clamped),
            ("eps stands outside the square root", _eps_outside),
            ("it subtracts the mean, as LayerNorm does; RMSNorm does not", _subtracts_the_mean),
        ],
        tolerance=2e-3,
    ),
}
