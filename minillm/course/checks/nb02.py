"""Exercises of notebook 02: embeddings and RoPE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks.kit import Exercise, Value

Three = tuple[Tensor, Tensor, Tensor]


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- 02.neighbours


def neighbours(table: Tensor, token: int, count: int) -> list[int]:
    """The rows nearest to one row by cosine, after the mean row is taken away from all."""
    centred = table - table.mean(0)
    return _nearest(centred / centred.norm(dim=1, keepdim=True), token, count)


def _nearest(unit: Tensor, token: int, count: int, *, itself: bool = False) -> list[int]:
    similar = unit @ unit[token]
    if not itself:
        similar[token] = -math.inf
    found: list[int] = similar.topk(count).indices.tolist()
    return found


def _mean_of_each_row(table: Tensor, token: int, count: int) -> list[int]:
    centred = table - table.mean(1, keepdim=True)
    return _nearest(centred / centred.norm(dim=1, keepdim=True), token, count)


def _without_norms(table: Tensor, token: int, count: int) -> list[int]:
    return _nearest(table - table.mean(0), token, count)


def _with_itself(table: Tensor, token: int, count: int) -> list[int]:
    centred = table - table.mean(0)
    return _nearest(centred / centred.norm(dim=1, keepdim=True), token, count, itself=True)


def _raw(table: Tensor, token: int, count: int) -> list[int]:
    return _nearest(table / table.norm(dim=1, keepdim=True), token, count)


def _old_norms(table: Tensor, token: int, count: int) -> list[int]:
    return _nearest((table - table.mean(0)) / table.norm(dim=1, keepdim=True), token, count)


def _table(seed: int) -> Tensor:
    """Sixteen rows with a common part and different lengths."""
    rows = _random(16, 6, seed=seed) + 1.2 * _random(6, seed=seed + 1)
    return (
        rows * torch.linspace(0.4, 2.5, 16)[torch.randperm(16, generator=_generator(seed))][:, None]
    )


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- 02.rotate


def rotate(x: Sequence[float], angle: float) -> list[float]:
    """One pair, turned by an angle in radians, counter-clockwise."""
    (a, b), c, s = x, math.cos(angle), math.sin(angle)
    return [a * c - b * s, a * s + b * c]


def _both_plus(x: Sequence[float], angle: float) -> list[float]:
    (a, b), c, s = x, math.cos(angle), math.sin(angle)
    return [a * c + b * s, a * s + b * c]


def _cos_for_sin(x: Sequence[float], angle: float) -> list[float]:
    return rotate(x, math.pi / 2 - angle)


# --- 02.rope


def rope(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, base: float) -> Three:
    """Queries and keys (T, D) turned by their positions, half-split; values as they are."""
    return _rope(q, k, v, positions, base)


def _rope(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    base: float,
    *,
    interleaved: bool = False,
    step: int = 2,
    from_zero: bool = False,
    values: bool = False,
    half: bool = False,
    sign: int = 1,
) -> Three:
    D = q.shape[-1]
    frequencies = base ** (-torch.arange(D // 2, dtype=torch.float64) * step / D)
    at = torch.arange(len(positions)) if from_zero else positions
    angles = sign * at.double()[:, None] * frequencies
    if half:
        angles = (at.half()[:, None] * frequencies.half()).double()
    cos, sin = angles.cos().float(), angles.sin().float()

    def turn(x: Tensor) -> Tensor:
        a, b = (x[:, 0::2], x[:, 1::2]) if interleaved else x.chunk(2, dim=-1)
        c, d = a * cos - b * sin, a * sin + b * cos
        return torch.stack([c, d], -1).flatten(-2) if interleaved else torch.cat([c, d], -1)

    return turn(q), turn(k), turn(v) if values else v


def _rope_case(positions: list[int], base: float, seed: int) -> tuple[Any, ...]:
    q, k, v = _random(3, len(positions), 8, seed=seed)
    return q, k, v, torch.tensor(positions), base


# --- 02.layout


def to_half_split(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of each head from (0, 1), (2, 3), … side by side to first all evens, then all odds."""
    heads = weight.view(-1, head_dim // 2, 2, weight.shape[1])
    return heads.transpose(1, 2).reshape(weight.shape)


def _to_interleaved(weight: Tensor, head_dim: int) -> Tensor:
    heads = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return heads.transpose(1, 2).reshape(weight.shape)


def convert(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Three:
    """Projections of an interleaved checkpoint for a half-split program."""
    return to_half_split(q, head_dim), to_half_split(k, head_dim), v


def _opposite(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Three:
    return _to_interleaved(q, head_dim), _to_interleaved(k, head_dim), v


def _twice(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Three:
    return convert(*convert(q, k, v, head_dim), head_dim)


def _across_heads(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Three:
    return to_half_split(q, len(q)), to_half_split(k, len(k)), v


def _values_too(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Three:
    return to_half_split(q, head_dim), to_half_split(k, head_dim), to_half_split(v, head_dim)


def _queries_only(q: Tensor, k: Tensor, v: Tensor, head_dim: int) -> Three:
    return to_half_split(q, head_dim), k, v


def _weights(heads: int, kv_heads: int, head_dim: int) -> tuple[Any, ...]:
    sizes = (heads, kv_heads, kv_heads)
    made = (_random(n * head_dim, 3, seed=seed) for seed, n in enumerate(sizes))
    return *made, head_dim


# --- 02.llama3


def llama3(frequencies: Tensor, factor: float, low: float, high: float, trained: float) -> Tensor:
    """Keep pairs of `high` turns or more within the trained length, slow those below `low`."""
    return _llama3(frequencies, factor, low, high, trained)


def _llama3(
    frequencies: Tensor,
    factor: float,
    low: float,
    high: float,
    trained: float,
    *,
    fast: bool = False,
    step: bool = False,
    circle: float = 2 * math.pi,
    by_wavelength: bool = False,
    clamp: bool = True,
) -> Tensor:
    turns = trained * frequencies / circle
    kept = (turns - low) / (high - low)
    if by_wavelength:
        kept = (trained / low - trained / turns) / (trained / low - trained / high)
    kept = kept.clamp(0, 1) if clamp else kept
    if step:
        kept = (turns >= high).to(frequencies.dtype)
    if fast:
        kept = 1 - kept
    return kept * frequencies + (1 - kept) * frequencies / factor


def _eight(base: float) -> Tensor:
    exponents: Tensor = torch.arange(8, dtype=torch.float64) / 8
    return torch.as_tensor(base, dtype=torch.float64) ** -exponents


# --- 02.read_base


def read_base(config: Mapping[str, Any]) -> float:
    """RoPE's base from either spelling of a config.json; the newer one wins; never a guess."""
    for place in (config.get("rope_parameters") or {}, config):
        if "rope_theta" in place:
            return float(place["rope_theta"])
    raise ValueError("config.json names no rope_theta")


def _old_spelling(config: Mapping[str, Any]) -> float:
    return float(config.get("rope_theta", 10_000.0))


def _new_spelling(config: Mapping[str, Any]) -> float:
    return float((config.get("rope_parameters") or {}).get("rope_theta", 10_000.0))


def _guesses(config: Mapping[str, Any]) -> float:
    return _new_spelling({"rope_parameters": {**config, **(config.get("rope_parameters") or {})}})


def _old_wins(config: Mapping[str, Any]) -> float:
    return read_base({"rope_parameters": {**(config.get("rope_parameters") or {}), **config}})


EXERCISES = {
    "02.lookup_cost": Value(
        [2_048_000_000, 40_960],
        wrong=[
            (
                "a multiplication and an addition are two FLOPs for each number of the table",
                [1_024_000_000, 40_960],
            ),
            ("the prompt has five tokens, not one", [409_600_000, 8_192]),
            ("a number of 16 bits takes two bytes", [2_048_000_000, 20_480]),
            ("the numbers have 16 bits, two bytes, not four", [2_048_000_000, 81_920]),
            (
                "the lookup reads five rows; only the product reads the whole table",
                [2_048_000_000, 409_600_000],
            ),
            (
                "the order is FLOPs of the product, then bytes of the lookup",
                [40_960, 2_048_000_000],
            ),
        ],
    ),
    "02.neighbours": Exercise(
        neighbours,
        cases=[(_table(3), 2, 4), (_table(5), 7, 4), (_table(11), 0, 3)],
        wrong=[
            (
                "it takes the mean of each row from that row; it is the mean row, one number per "
                "column, that all words share",
                _mean_of_each_row,
            ),
            (
                "it compares dot products: divide by the norms, or long rows win",
                _without_norms,
            ),
            ("the word itself is among its neighbours", _with_itself),
            ("the mean row is not taken away", _raw),
            (
                "the norms are those from before the mean was taken away: divide afterwards",
                _old_norms,
            ),
        ],
    ),
    "02.rotate": Exercise(
        rotate,
        cases=[
            ([1.0, 0.0], 0.5),
            ([0.0, 1.0], 0.5),
            ([3.0, -2.0], 2.0),
            ([1.0, 2.0], -1.0),
            ([1.0, 2.0], 0.0),
        ],
        wrong=[
            ("the sign of the angle: it turns clockwise", lambda x, angle: rotate(x, -angle)),
            (
                "the angle is taken for degrees; it is in radians",
                lambda x, angle: rotate(x, math.radians(angle)),
            ),
            (
                "the two halves of the result have changed places",
                lambda x, angle: rotate(x, angle)[::-1],
            ),
            (
                "both terms have a plus: one needs a minus, or the length changes",
                _both_plus,
            ),
            ("cosine and sine have changed places", _cos_for_sin),
        ],
        tolerance=1e-5,
    ),
    "02.rope": Exercise(
        rope,
        cases=[
            _rope_case([0, 1, 2], 10_000.0, 0),
            _rope_case([7, 8], 100.0, 1),
            _rope_case([8_189, 8_190, 8_191], 10_000.0, 2),
        ],
        wrong=[
            (
                "it pairs neighbours, x[2i] with x[2i + 1]; here x[i] goes with x[i + D/2]",
                lambda *case: _rope(*case, interleaved=True),
            ),
            (
                "the exponent is -i/D; it is -2i/D",
                lambda *case: _rope(*case, step=1),
            ),
            (
                "it counts positions from 0 instead of reading `positions`: a later step starts "
                "further on",
                lambda *case: _rope(*case, from_zero=True),
            ),
            (
                "the values v are turned as well; only queries and keys are",
                lambda *case: _rope(*case, values=True),
            ),
            (
                "the angles are computed in float16, which at 8,191 knows only multiples of 4",
                lambda *case: _rope(*case, half=True),
            ),
            ("the sign of the angle: it turns clockwise", lambda *case: _rope(*case, sign=-1)),
        ],
        tolerance=2e-3,
    ),
    "02.layout": Exercise(
        convert,
        cases=[_weights(2, 1, 16), _weights(4, 2, 16), _weights(3, 3, 4)],
        wrong=[
            ("it is the opposite conversion, from half-split to interleaved", _opposite),
            ("the rows are reordered twice", _twice),
            (
                "rows move from one head to another: reorder within each head_dim rows",
                _across_heads,
            ),
            ("v is reordered as well, though nothing turns it", _values_too),
            ("the rows of k stay as they were; a key is turned like a query", _queries_only),
        ],
    ),
    "02.llama3": Exercise(
        llama3,
        cases=[
            (_eight(10_000.0), 8.0, 1.0, 4.0, 1_024.0),
            (_eight(100.0), 4.0, 1.0, 4.0, 64.0),
            (_eight(500_000.0), 32.0, 1.0, 4.0, 8_192.0),
        ],
        wrong=[
            (
                "it slows the fast pairs and keeps the slow ones",
                lambda *case: _llama3(*case, fast=True),
            ),
            (
                "a hard step: between `low` and `high` turns the kept share grows evenly",
                lambda *case: _llama3(*case, step=True),
            ),
            (
                "it blends in proportion to the wavelength; it goes by the number of turns, which "
                "is proportional to the frequency",
                lambda *case: _llama3(*case, by_wavelength=True),
            ),
            (
                "trained · θ is an angle in radians: divide by 2π to get turns",
                lambda *case: _llama3(*case, circle=1.0),
            ),
            (
                "the kept share leaves the range from 0 to 1",
                lambda *case: _llama3(*case, clamp=False),
            ),
            (
                "the slow pairs become faster: divide them by the factor",
                lambda frequencies, factor, *rest: _llama3(frequencies, 1 / factor, *rest),
            ),
        ],
        tolerance=1e-5,
    ),
    "02.read_base": Exercise(
        read_base,
        cases=[
            ({"rope_theta": 100_000.0},),
            ({"rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}},),
            ({"rope_theta": 500_000, "rope_scaling": None, "rope_parameters": None},),
            ({"rope_theta": 10_000.0, "rope_parameters": {"rope_theta": 1_000_000.0}},),
            ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 100_000.0},),
            ({"hidden_size": 576},),
        ],
        wrong=[
            (
                "it looks at the top level only and falls back on 10,000, where newer files have "
                "rope_parameters",
                _old_spelling,
            ),
            (
                "it looks into rope_parameters only; older files have rope_theta at the top level",
                _new_spelling,
            ),
            ("it guesses 10,000 where the file names no base: raise a ValueError", _guesses),
            ("where a file holds both, rope_parameters counts", _old_wins),
        ],
    ),
}
