"""Exercises of notebook 08: a bound by hand, knobs, two kernels, stop strings, a captured step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks import kernels08 as kernels
from minillm.course.checks.kit import Exercise, Value
from minillm.course.tape import record
from minillm.course.triton_here import DEVICE, triton
from minillm.kernels.reference import dequantize
from minillm.quantization.int4 import pack_nibbles
from minillm.tokenizer.stop import StopStrings

GUARD = 512  # numbers on both sides of a kernel's input, which no kernel may let through


def _launch(answer: Any, rows: int, *arguments: Any, **constants: Any) -> None:
    """Run a kernel, decorated or not, for each row; a fault of ours is a `partial` of it."""
    if isinstance(answer, partial):
        answer, constants = answer.func, constants | answer.keywords
    if getattr(getattr(answer, "__code__", None), "co_names", ()) == ("NotImplementedError",):
        raise NotImplementedError
    kernel = answer if hasattr(answer, "fn") else triton.jit(answer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an overflow is a fault to be named, not to be printed
            kernel[(rows,)](*arguments, **constants)
    except Exception as error:  # Triton's interpreter wraps what a kernel raises
        raise error.__cause__ or error from None


def _guarded(x: Tensor, guard: float) -> Tensor:
    """The same numbers in memory whose neighbours are `guard`."""
    whole = torch.full((x.numel() + 2 * GUARD,), guard, dtype=x.dtype, device=DEVICE)
    inside = whole[GUARD:-GUARD].view(x.shape)
    inside.copy_(x)
    return inside


# --- 08.add_norm ----------------------------------------------------------------------------------


def _drive_add_norm(
    answer: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    (rows, C), block = x.shape, triton.next_power_of_2(x.shape[1])
    given = [_guarded(tensor, 3.0) for tensor in (x, residual, weight)]
    out, total = (torch.full_like(given[0], torch.nan) for _ in range(2))
    _launch(answer, rows, *given, out, total, C, eps, BLOCK=block)
    return out.float().cpu(), total.float().cpu()


def _rows(rows: int, C: int, size: float, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, residual = (size * torch.randn(2, rows, C, generator=generator) + 0.1 * size).half()
    return x, residual, torch.rand(C, generator=generator).half() + 0.5


# --- 08.int4_dot ----------------------------------------------------------------------------------


def _drive_int4(
    answer: Any, x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, group: int
) -> Tensor:
    N, C = codes.shape
    packed = pack_nibbles(codes)
    pairs = ((x, 9.0), (packed, 0xF7), (scales, 1.0), (zeros, 3))
    given = [_guarded(tensor, guard) for tensor, guard in pairs]
    y = torch.full((N,), torch.nan, device=DEVICE)
    block = triton.next_power_of_2(C // 2)
    _launch(answer, N, *given, y, C, GROUP=group, BLOCK=block)
    return y.cpu()


def _weights(N: int, C: int, group: int, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(16, (N, C), generator=generator, dtype=torch.uint8)
    scales = torch.rand(N, C // group, generator=generator) + 0.5
    zeros = torch.randint(16, (N, C // group), generator=generator, dtype=torch.uint8)
    return torch.randn(C, generator=generator), codes, scales, zeros


def int4_dot(x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """What the kernel of 08.int4_dot computes: x · dequantize(codes)ᵀ, (N,)."""
    return dequantize(codes, scales, zeros) @ x


# --- 08.stop --------------------------------------------------------------------------------------


class _Stops:
    """Stop strings with chosen faults: what to hold back, where to cut, what the end gives."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.text, self.given, self.stopped = stops, "", 0, False

    def push(self, piece: str) -> str:
        if self.stopped:
            return ""
        self.text += piece
        found = [at for stop in self.stops if (at := self.text.find(stop, self.start())) >= 0]
        if found:
            self.stopped = True
            return self._give(self.cut(found))
        return self._give(len(self.text) - self.held())

    def flush(self) -> str:
        return "" if self.stopped else self._give(len(self.text))

    def _give(self, end: int) -> str:
        text, self.given = self.text[self.given : end], max(end, self.given)
        return text

    def start(self) -> int:
        return 0

    def cut(self, found: list[int]) -> int:
        return min(found)

    def held(self) -> int:
        """How many characters at the end may yet become a stop string."""
        longest = max(map(len, self.stops)) - 1
        for size in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-size:]) for stop in self.stops):
                return size
        return 0


class _EmitsBeginning(_Stops):
    def held(self) -> int:
        return 0


class _WithinPiece(_EmitsBeginning):
    def start(self) -> int:
        return self.given


class _HoldsAlways(_Stops):
    def held(self) -> int:
        return min(max(map(len, self.stops)) - 1, len(self.text))


class _KeepsStop(_Stops):
    def cut(self, found: list[int]) -> int:
        at = min(found)
        return at + max(len(s) for s in self.stops if self.text.startswith(s, at))


class _CutsTooMuch(_Stops):
    """Takes whatever was held for a stop string when the text ends."""

    def flush(self) -> str:
        return ""


class _LastStop(_Stops):
    def cut(self, found: list[int]) -> int:
        return max(found)


class _GoesOn(_Stops):
    def push(self, piece: str) -> str:
        if self.stopped:
            self.text, self.given, self.stopped = "", 0, False
        return super().push(piece)


class _NoSecondStart(_Stops):
    """Looks only whether a stop string begins with all that is held, never with less of it."""

    def held(self) -> int:
        pending = self.text[self.given :]
        return len(pending) if any(s.startswith(pending) for s in self.stops) else 0


def _drive_stop(make: Callable[..., Any], stops: list[str], pieces: list[str]) -> list[str]:
    stream = make(stops)
    return [*(stream.push(piece) for piece in pieces), stream.flush()]


# --- 08.captured ----------------------------------------------------------------------------------


class _Captured:
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


def _toy_step(token: Tensor, position: Tensor) -> Tensor:
    """In place of a model: scores that tell token and position."""
    return (100 * token + position).double() * torch.tensor([[1.0, 0.5, -1.0]]).double()


def _drive_captured(make: Callable[..., Any], position: int, tokens: list[int]) -> Any:
    captures = 0

    def capture(function: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        nonlocal captures
        captures += 1
        result, tape = record(function)
        return result, tape.replay

    run = make(_toy_step, capture, position)
    found = [run(token) for token in tokens]
    # Compared at the end: a later step may have written over what an earlier one returned.
    scores = [torch.as_tensor(each).flatten().tolist() for each in found]
    return {"scores": scores, "captures": captures}


WEIGHTS, CACHE, BANDWIDTH = 13.48e9, 4096 * 524_288, 2e12


def _bound_ms(batch: int) -> float:
    return 1e3 * (WEIGHTS + batch * CACHE) / BANDWIDTH


EXERCISES = {
    "08.lower_bound": Value(
        (_bound_ms(1), _bound_ms(8)),
        tolerance=0.01,
        wrong=[
            (
                "the weights are read once for the whole batch, not once for each text",
                (_bound_ms(1), 8 * _bound_ms(1)),
            ),
            ("every text of the batch has its own cache to read", (_bound_ms(1), _bound_ms(1))),
            ("the cache is left out", (1e3 * WEIGHTS / BANDWIDTH, 1e3 * WEIGHTS / BANDWIDTH)),
            (
                "a step of eight texts is asked for, not an eighth of it",
                (_bound_ms(1), _bound_ms(8) / 8),
            ),
            ("these are seconds", (_bound_ms(1) / 1e3, _bound_ms(8) / 1e3)),
            (
                "2,000 GB/s are bytes; nothing here is in bits",
                (8 * _bound_ms(1), 8 * _bound_ms(8)),
            ),
        ],
    ),
    "08.knobs": Value(
        "CFAEBD",
        wrong=[
            (
                "2 and 5 have changed places: a step that waits for its own launches gains nothing "
                "from smaller pieces of a prompt, and a stutter during someone else's prompt "
                "nothing from a graph",
                "CBAEFD",
            ),
            (
                "1 and 6 have changed places: look at which bytes there are more of, those of the "
                "weights or those of the caches",
                "DFAEBC",
            ),
            (
                "3 and 4 have changed places: a larger batch does not let a prompt start sooner, "
                "and a kept prefix helps no step",
                "CFEABD",
            ),
            (
                "1 and 4 have changed places: a batch serves more people, and gives none of them "
                "tokens sooner",
                "EFACBD",
            ),
            (
                "3 and 5 have changed places: pieces of a prompt take no less time together; they "
                "let others in between",
                "CFBEAD",
            ),
        ],
    ),
    "08.add_norm": Exercise(
        kernels.add_norm,
        cases=[
            (*_rows(2, 24, 1.0, 0), 1e-5),
            (*_rows(1, 32, 300.0, 1), 1e-5),
            (*_rows(2, 20, 0.02, 2), 1e-3),
        ],
        drive=_drive_add_norm,
        tolerance=4e-3,
        wrong=[
            (
                "it takes the mean and then squares it; square first",
                partial(kernels.add_norm, FAULT=4),
            ),
            ("eps is added outside of the square root", partial(kernels.add_norm, FAULT=6)),
            (
                "the squares are summed in float16, where 300² is infinite: convert before you "
                "square",
                partial(kernels.add_norm, FAULT=3),
            ),
            ("it divides by BLOCK; the row has C numbers", partial(kernels.add_norm, FAULT=5)),
            (
                "it normalises x alone; the row is x + residual",
                partial(kernels.add_norm, FAULT=2),
            ),
            (
                "the sum is never stored: the next residual is missing",
                partial(kernels.add_norm, FAULT=9),
            ),
            ("the residual is added after the norm, too", partial(kernels.add_norm, FAULT=8)),
            (
                "loads have no mask, and what lies beyond column C counts as part of the row",
                partial(kernels.add_norm, FAULT=1),
            ),
            ("the weight is left out", partial(kernels.add_norm, FAULT=7)),
        ],
    ),
    "08.stop": Exercise(
        StopStrings,
        cases=[
            (["END"], ["one E", "ND two", " three"]),
            (["END"], ["an E", "lse, E", "N"]),
            (["\n\n", "User:"], ["Yes.\nUs", "er: no\n", "\n"]),
            (["aab"], ["xaa", "ab", "c"]),
            (["aab"], ["a", "aa", "b c"]),
            (["stop", "."], ["no. st", "op"]),
            (["END"], ["plain words ", "pass at once"]),
            (["two", "one"], ["a one, a two", ", a three"]),
        ],
        drive=_drive_stop,
        wrong=[
            (
                "it hands out the beginning of a stop string before the rest has come",
                _EmitsBeginning,
            ),
            ("it looks at each piece alone; a stop string may lie across two", _WithinPiece),
            (
                "it holds back text that no stop string begins with; the reader waits for nothing",
                _HoldsAlways,
            ),
            ("the stop string itself is handed out", _KeepsStop),
            (
                "it cuts too much: what is held at the end is text, when no stop string came of it",
                _CutsTooMuch,
            ),
            ("of several stop strings it cuts at the last; the earliest counts", _LastStop),
            ("it goes on after a stop", _GoesOn),
            (
                "when a held text turns out to be none, it forgets that its end may be the "
                "beginning of another",
                _NoSecondStart,
            ),
        ],
    ),
    "08.int4_dot": Exercise(
        kernels.int4_dot,
        cases=[
            (*_weights(3, 24, 8, 0), 8),
            (*_weights(2, 32, 16, 1), 16),
            (*_weights(1, 20, 4, 2), 4),
        ],
        drive=_drive_int4,
        tolerance=1e-4,
        wrong=[
            (
                "the nibbles have changed places: the low four bits come first",
                partial(kernels.int4_dot, FAULT=4),
            ),
            (
                "it reads the two halves of a row; neighbours share a byte",
                partial(kernels.int4_dot, FAULT=5),
            ),
            ("one scale for the row; each group has its own", partial(kernels.int4_dot, FAULT=3)),
            ("the zero point is not subtracted", partial(kernels.int4_dot, FAULT=6)),
            ("the zero point is subtracted after the scale", partial(kernels.int4_dot, FAULT=7)),
            (
                "no mask at the tail: BLOCK is a power of two, and the row is shorter",
                partial(kernels.int4_dot, FAULT=1),
            ),
            ("every program reads the first row of codes", partial(kernels.int4_dot, FAULT=2)),
        ],
    ),
    "08.captured": Exercise(
        _Captured,
        cases=[(5, [3, 1, 4]), (0, [2, 2]), (7, [9])],
        drive=_drive_captured,
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
        ],
    ),
}
