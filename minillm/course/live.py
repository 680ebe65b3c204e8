"""`use`: the reader's own function runs the real model, once it has passed its check."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.config import RopeConfig
from minillm.course.checks.kit import Exercise
from minillm.course.checks.result import CheckResult
from minillm.layers.attention import attention, attention_mask
from minillm.layers.mlp import geglu, swiglu
from minillm.layers.norm import rms_norm
from minillm.layers.rope import apply_rope, rope_tables
from minillm.llm import LLM
from minillm.ops import Ops


class Used:
    """What `use` did, for a notebook to display: one line per function, and the failed checks."""

    def __init__(self, lines: list[str], results: list[CheckResult]) -> None:
        self.lines, self.results = lines, results

    def __repr__(self) -> str:
        return "\n".join([*self.lines, *map(repr, self.results)])

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{line}</p>" for line in self.lines)
        return lines + "".join(result._repr_html_() for result in self.results)


def use(llm: LLM, **functions: Callable[..., Any]) -> Used:
    """Let your functions run this model in place of the package's: `use(llm, attention=mine)`.

    Each function is checked first, on random inputs of the shapes that the model will send it. One
    that does not pass is diagnosed, and the model is left as it is. Functions not named are the
    package's, so `use(llm)` restores everything. Only this `llm` changes.

    Args:
        llm: a live model.
        functions: `attention(q, k, v, mask)`, where `mask=None` means plain causal attention with
            the T queries being the last of the S tokens; `rms_norm(x, weight, eps)`;
            `rope(x, cos, sin)`; `swiglu(gate, up)`; `geglu(gate, up)`. See `minillm.ops.Ops`.

    Returns:
        What happened; a notebook displays it.

    Raises:
        ValueError: no op has that name.
    """
    known = [field.name for field in fields(Ops)]
    for name in functions:
        if name not in known:
            raise ValueError(f"there is no op {name!r}; a model is made of {', '.join(known)}")
    results = [CHECKS[name].check(f"use: {name}", mine) for name, mine in functions.items()]
    failed = [result for result in results if not result.passed]
    if failed:
        return Used([f"{llm.name} runs as before: a function did not pass its check."], failed)
    llm.model.ops = replace(Ops(), **functions)
    layers = llm.config.num_hidden_layers
    lines = [
        f"Your {name} now runs {llm.name}, in all of its {layers} layers." for name in functions
    ]
    return Used(lines or [f"{llm.name} runs on the package's own functions."], [])


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _attention_cases() -> list[tuple[Any, ...]]:
    """Square, chunk, one query, padding: six query heads over two key heads."""

    def qkv(B: int, T: int, S: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        k, v = _random(B, 2, S, 8, seed=seed), _random(B, 2, S, 8, seed=seed + 1)
        return _random(B, 6, T, 8, seed=seed + 2), k, v

    k_positions = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])
    ragged = attention_mask(torch.tensor([[3, 4], [1, 2]]), k_positions)
    return [
        (*qkv(1, 5, 5, 1), None),
        (*qkv(1, 1, 5, 4), None),
        (*qkv(1, 2, 5, 7), None),
        (*qkv(2, 2, 5, 10), ragged),
    ]


def _direct(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    width: int | None = None,
    tile: bool = False,
    top_left: bool = False,
    causal: bool = True,
    ignore: bool = False,
) -> Tensor:
    """Attention written out, with the faults that an answer may have."""
    T, S, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    if tile:
        k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    else:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(width or q.shape[-1])
    if (mask is None or ignore) and causal:
        mask = torch.ones(T, S, dtype=torch.bool).tril(0 if top_left else S - T)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


def _tables(T: int) -> tuple[Tensor, Tensor]:
    return rope_tables(torch.arange(T)[None] + 3, RopeConfig(), 8)


def _interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def _mean_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + eps) * weight


def _same_type_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


CHECKS = {
    "attention": Exercise(
        attention,
        cases=_attention_cases(),
        wrong=[
            (
                "with mask=None it masks nothing; None is plain causal attention",
                lambda q, k, v, mask: _direct(q, k, v, mask, causal=False),
            ),
            (
                "with mask=None and fewer queries than keys its mask starts at the top left; "
                "the queries are the last of the tokens",
                lambda q, k, v, mask: _direct(q, k, v, mask, top_left=True),
            ),
            (
                "query head h reads key head h % K; it is h // (H/K)",
                lambda q, k, v, mask: _direct(q, k, v, mask, tile=True),
            ),
            (
                "the scores are divided by sqrt(H·D); it is sqrt(D)",
                lambda q, k, v, mask: _direct(q, k, v, mask, width=q.shape[1] * q.shape[3]),
            ),
            (
                "it ignores the mask that it is given, which also hides padding",
                lambda q, k, v, mask: _direct(q, k, v, mask, ignore=True),
            ),
        ],
        tolerance=1e-4,
    ),
    "rope": Exercise(
        apply_rope,
        cases=[(_random(1, 2, 4, 8), *_tables(4)), (_random(1, 1, 1, 8, seed=1), *_tables(1))],
        wrong=[
            (
                "it pairs neighbours, x[2i] with x[2i + 1]; here x[i] goes with x[i + D/2]",
                _interleaved,
            ),
            ("the angle has the wrong sign", lambda x, cos, sin: apply_rope(x, cos, -sin)),
            ("cosine and sine have changed places", lambda x, cos, sin: apply_rope(x, sin, cos)),
        ],
        tolerance=1e-4,
    ),
    "rms_norm": Exercise(
        rms_norm,
        cases=[
            (_random(1, 3, 8) + 0.5, _random(8, seed=1), 1e-5),
            (torch.tensor([[1000.0, -1000.0, 500.0, -500.0]]).half(), torch.ones(4).half(), 1e-5),
        ],
        wrong=[
            ("it subtracts the mean, which LayerNorm does and RMSNorm does not", _mean_norm),
            ("it squares in float16, where 1,000² is infinite", _same_type_norm),
            (
                "the weight is left out",
                lambda x, weight, eps: rms_norm(x, torch.ones_like(weight), eps),
            ),
        ],
        tolerance=1e-3,
    ),
    "swiglu": Exercise(
        swiglu,
        cases=[(_random(1, 3, 8), _random(1, 3, 8, seed=1))],
        wrong=[
            ("gate and up have changed places", lambda gate, up: swiglu(up, gate)),
            ("the gate is a sigmoid; silu(z) is z · sigmoid(z)", lambda g, up: g.sigmoid() * up),
            ("the gate is not passed through silu", lambda gate, up: gate * up),
            ("the gate is a ReLU", lambda gate, up: F.relu(gate) * up),
        ],
        tolerance=1e-4,
    ),
    "geglu": Exercise(
        geglu,
        cases=[(_random(1, 3, 8), _random(1, 3, 8, seed=1))],
        wrong=[
            ("gate and up have changed places", lambda gate, up: geglu(up, gate)),
            ("the gate is silu; gelu is another curve", swiglu),
            ("the gate is gelu itself, not its tanh form", lambda gate, up: F.gelu(gate) * up),
            ("the gate is not passed through gelu", lambda gate, up: gate * up),
        ],
        tolerance=1e-5,
    ),
}
