"""Captured steps for exercise 08.captured: wrappers with the faults that its check knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks.kit import Exercise
from minillm.course.tape import record


class _Captured:
    """Captures a step once; each call writes token and position, and replays it."""

    def __init__(self, step: Callable[..., Tensor], record: Any, position: int) -> None:
        self.token = torch.zeros(1, 1, dtype=torch.int64)
        self.position = torch.full((1, 1), position)
        self.scores, self.replay = record(lambda: step(self.token, self.position))

    def _copy(self) -> Tensor:
        copy: Tensor = self.scores.clone()
        return copy

    def __call__(self, token: int) -> Tensor:
        self.token.fill_(token)
        self.replay()
        self.position += 1
        return self._copy()


class _PositionFrozen(_Captured):
    def __call__(self, token: int) -> Tensor:
        self.token.fill_(token)
        self.replay()
        return self._copy()


class _TokenFrozen(_Captured):
    def __call__(self, token: int) -> Tensor:
        self.token = torch.full((1, 1), token)  # another tensor: the recording reads the old one
        self.replay()
        self.position += 1
        return self._copy()


class _BothFrozen(_Captured):
    def __call__(self, token: int) -> Tensor:
        self.replay()
        return self._copy()


class _NotCopied(_Captured):
    def __call__(self, token: int) -> Tensor:
        super().__call__(token)
        scores: Tensor = self.scores
        return scores


class _OneAhead(_Captured):
    def __call__(self, token: int) -> Tensor:
        self.position += 1
        self.token.fill_(token)
        self.replay()
        return self._copy()


class _CapturesAnew(_Captured):
    def __init__(self, step: Callable[..., Tensor], record: Any, position: int) -> None:
        self.step, self.record, self.at = step, record, position

    def __call__(self, token: int) -> Tensor:
        here = torch.full((1, 1), token), torch.full((1, 1), self.at)
        self.at += 1
        scores: Tensor = self.record(lambda: self.step(*here))[0]
        return scores


class _NeverCaptures(_Captured):
    def __init__(self, step: Callable[..., Tensor], record: Any, position: int) -> None:
        self.step, self.at = step, position

    def __call__(self, token: int) -> Tensor:
        self.at += 1
        return self.step(torch.full((1, 1), token), torch.full((1, 1), self.at - 1))


def _toy_step(token: Tensor, position: Tensor) -> Tensor:
    """In place of a model: scores that tell token and position."""
    return (100 * token + position).double() * torch.tensor([[1.0, 0.5, -1.0]]).double()


def _run(make: Callable[..., Any], position: int, tokens: list[int]) -> dict[str, Any]:
    """The scores that an answer gives for each token, and how often it captured."""
    captures = 0

    def capture(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        nonlocal captures
        captures += 1
        result, tape = record(function)
        return result, tape.replay

    run = make(_toy_step, capture, position)
    found = [run(token) for token in tokens]
    # Compared at the end: a later step may have written over what an earlier one returned.
    return {"scores": [_numbers(each) for each in found], "captures": captures}


def _numbers(scores: Any) -> Any:
    """Scores as a list; what no tensor can be made of, as it is."""
    try:
        return torch.as_tensor(scores).flatten().tolist()
    except (RuntimeError, TypeError, ValueError):
        return scores


EXERCISE = Exercise(
    _Captured,
    cases=[(5, [3, 1, 4]), (0, [2, 2]), (7, [9])],
    drive=_run,
    wrong=[
        (
            "the position stays what it was at capture: a Python number is frozen, and a new "
            "tensor is another one than the recording reads. Change the buffer in place",
            _PositionFrozen,
        ),
        (
            "the token stays what it was at capture: write it into the buffer that the "
            "recording reads, with `fill_` or `copy_`",
            _TokenFrozen,
        ),
        (
            "token and position stay what they were at capture, or nothing is replayed",
            _BothFrozen,
        ),
        (
            "all scores end up as the last: each replay writes into the same tensor. Hand out "
            "a copy",
            _NotCopied,
        ),
        (
            "every position is one too high: the first token stands at `position`",
            _OneAhead,
        ),
        (
            "it captures at every step; that costs more than running the step. Once is enough",
            _CapturesAnew,
        ),
        (
            "nothing is captured: each call runs the step itself. `record` once, then replay",
            _NeverCaptures,
        ),
    ],
)
