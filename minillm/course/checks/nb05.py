"""Exercises of notebook 05: bytes, appending, positions, the article's loop, batches, reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks.kit import Exercise, Value

# --- Exercise 2: append in place ------------------------------------------------------------------

LAYERS, HEADS, CAPACITY, WIDTH = 2, 3, 8, 4


class _Append:
    """One row: keys and values of every layer in two tensors (L, K, capacity, D)."""

    def __init__(self, layers: int, heads: int, capacity: int, width: int) -> None:
        self.keys = torch.zeros(layers, heads, capacity, width)
        self.values = torch.zeros(layers, heads, capacity, width)
        self.length = self.new = 0

    def advance(self, count: int) -> None:
        self.new = count
        self.length += count

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return self._write(layer, k, v, self.length - self.new, self.length)

    def _write(
        self, layer: int, k: Tensor, v: Tensor, start: int, end: int
    ) -> tuple[Tensor, Tensor]:
        self.keys[layer, :, start:end], self.values[layer, :, start:end] = k, v
        return self.keys[layer, :, :end], self.values[layer, :, :end]


class _Overwrites(_Append):
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self._write(layer, k, v, 0, self.new)
        return self.keys[layer, :, : self.length], self.values[layer, :, : self.length]


class _NewOnly(_Append):
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v


class _WithTail(_Append):
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        super().update(layer, k, v)
        return self.keys[layer], self.values[layer]


class _PerLayer(_Append):
    def advance(self, count: int) -> None:
        self.new = count

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.length += self.new
        return super().update(layer, k, v)


class _OneStore(_Append):
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().update(0, k, v)


class _KeysTwice(_Append):
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().update(layer, k, k)


class _WrongAxis(_Append):
    """Concatenates along the heads, as `torch.cat` without `dim` does."""

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        stored = self.__dict__.setdefault("stored", {})
        if layer in stored:
            k, v = torch.cat([stored[layer][0], k]), torch.cat([stored[layer][1], v])
        stored[layer] = k, v
        return k, v


def _drive_append(make: Callable[..., Any], steps: Sequence[int]) -> list[Tensor]:
    cache, found, number = make(LAYERS, HEADS, CAPACITY, WIDTH), [], 1
    for count in steps:
        cache.advance(count)
        for layer in range(LAYERS):
            amount = HEADS * count * WIDTH
            k = torch.arange(float(number), number + amount).view(HEADS, count, WIDTH)
            number += amount
            keys, values = cache.update(layer, k, -k)
            # Copies: a later step may write into the storage that was returned.
            found += [torch.as_tensor(keys).clone(), torch.as_tensor(values).clone()]
    return found


# --- Exercise 3: positions ------------------------------------------------------------------------


def _positions(lengths: Sequence[int], count: int) -> list[list[int]]:
    return [[length + i for i in range(count)] for length in lengths]


def _shifted(by: int) -> Callable[..., list[list[int]]]:
    return lambda lengths, count: _positions([length + by for length in lengths], count)


# --- Exercise 4: the article's loop ---------------------------------------------------------------


def _decode(first: int, step: Callable[[int], int], stop: int, max_tokens: int) -> Iterator[int]:
    token, count = first, 0
    while token != stop:
        yield token
        count += 1
        if count == max_tokens:
            return
        token = step(token)


def _loop(
    *, first_too: bool = True, stop_too: bool = False, limit: int = 0, wasteful: bool = False
) -> Callable[..., list[int]]:
    """The loop with chosen faults."""

    def loop(first: int, step: Callable[[int], int], stop: int, max_tokens: int) -> list[int]:
        token, found, count = first, [first] if first_too and first != stop else [], 1
        most = max_tokens + limit
        while token != stop and (count < most or (wasteful and count == most)):
            token = step(token)
            count += 1
            if (token != stop or stop_too) and count <= most:
                found.append(token)
        return found

    return loop


def _article(first: int, step: Callable[[int], int], stop: int, max_tokens: int) -> Iterator[int]:
    token, steps = first, 0
    while token != stop and steps < max_tokens:
        token = step(token)
        steps += 1
        yield token


def _first_dropped(
    first: int, step: Callable[[int], int], stop: int, max_tokens: int
) -> Iterator[int]:
    for token in _article(first, step, stop, max_tokens):
        if token != stop:
            yield token


def _drive_loop(
    answer: Callable[..., Any], first: int, later: Sequence[int], stop: int, max_tokens: int
) -> Any:
    """What was handed out, and which tokens were run through the model."""
    fed: list[int] = []

    def step(token: int) -> int:
        fed.append(int(token))
        return later[len(fed) - 1] if len(fed) <= len(later) else stop

    found = answer(first, step, stop, max_tokens)
    if found is None or found is ...:
        return found
    return list(found), fed


# --- Exercise 7: a cache for the next prompt ------------------------------------------------------


class Held:
    """What a cache has to offer here: `lengths` and `truncate`."""

    def __init__(self, tokens: int) -> None:
        self.lengths = torch.tensor([tokens])

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from lengths[0] on."""
        if not 0 <= int(lengths[0]) <= int(self.lengths[0]):
            raise ValueError(f"lengths is {list(lengths)}; {int(self.lengths[0])} tokens are held")
        self.lengths = torch.tensor([int(lengths[0])])


def _shared(held: Sequence[int], prompt: Sequence[int]) -> int:
    shared = 0
    for old, new in zip(held, prompt, strict=False):
        if old != new:
            break
        shared += 1
    return shared


def _reuse(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    kept = min(_shared(held, prompt), len(prompt) - 1)
    cache.truncate([kept])
    return prompt[kept:]


def _never_truncates(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    return prompt[min(_shared(held, prompt), len(prompt) - 1) :]


def _nothing_left(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    kept = _shared(held, prompt)
    cache.truncate([kept])
    return prompt[kept:]


def _by_length(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    kept = min(len(held), len(prompt) - 1)
    cache.truncate([kept])
    return prompt[kept:]


def _whole_prompt(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    cache.truncate([min(_shared(held, prompt), len(prompt) - 1)])
    return prompt


def _anywhere(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    equal = sum(old == new for old, new in zip(held, prompt, strict=False))
    kept = min(equal, len(prompt) - 1)
    cache.truncate([kept])
    return prompt[kept:]


def _one_more(cache: Held, held: list[int], prompt: list[int]) -> list[int]:
    kept = min(_shared(held, prompt) + 1, len(prompt) - 1, len(held))
    cache.truncate([kept])
    return prompt[kept:]


def _drive_reuse(answer: Callable[..., Any], held: list[int], prompt: list[int]) -> Any:
    cache = Held(len(held))
    rest = answer(cache, held, prompt)
    if rest is None or rest is ...:
        return rest
    return cache.lengths.tolist(), list(rest)


EXERCISES = {
    "05.bytes_per_token": Value(
        (23_040, 524_288, 131_072),
        wrong=[
            (
                "it is half of that: keys and values are both kept, and a number has two bytes",
                (11_520, 262_144, 65_536),
            ),
            (
                "the cache keeps K heads, not one for each of the H query heads (K · D is not C)",
                (69_120, 524_288, 524_288),
            ),
            ("these are bits; eight of them are a byte", (184_320 * 2, 8_388_608, 2_097_152)),
            ("this is one layer; every layer keeps its own", (768, 16_384, 4_096)),
            ("16 bits are two bytes, not four", (46_080, 1_048_576, 262_144)),
        ],
    ),
    "05.append": Exercise(
        _Append,
        cases=[([3, 1, 1],), ([1, 1, 1, 1],), ([2, 4, 2],), ([8],)],
        drive=_drive_append,
        wrong=[
            ("each step writes at place 0 and overwrites what was there", _Overwrites),
            ("it returns only the new tokens; attention needs the older ones too", _NewOnly),
            ("it returns the empty places at the end as well: cut at the length", _WithTail),
            (
                "the length grows once per layer; a step has many layers and one length",
                _PerLayer,
            ),
            ("all layers share one layer's places; each keeps its own", _OneStore),
            ("the keys are stored a second time in place of the values", _KeysTwice),
            ("it joins along the heads; tokens are the second axis of (K, T, D)", _WrongAxis),
        ],
    ),
    "05.positions": Exercise(
        _positions,
        cases=[([6], 1), ([4, 1], 1), ([5, 2], 3), ([3, 9, 4], 2)],
        wrong=[
            (
                "it counts from 0 in each step or answer; the tokens before it count, too "
                "(the article's position(steps))",
                lambda lengths, count: [list(range(count)) for _ in lengths],
            ),
            (
                "one too few: n tokens stand at 0 to n − 1, so the next one stands at n",
                _shifted(-1),
            ),
            (
                "one too many: the next token stands at n. The text can be the same; the logits "
                "are not",
                _shifted(1),
            ),
            (
                "every row goes on at the longest row's length; each has its own",
                lambda lengths, count: _positions([max(lengths)] * len(lengths), count),
            ),
            (
                "all new tokens of a row stand at one position",
                lambda lengths, count: [[length] * count for length in lengths],
            ),
        ],
    ),
    "05.decode_loop": Exercise(
        _decode,
        cases=[
            (5, [7, 8, 0], 0, 10),
            (5, [7, 8, 9, 6, 4], 0, 3),
            (0, [7], 0, 4),
            (3, [0], 0, 4),
            (3, [4], 0, 1),
            (2, [5, 6, 9], 9, 9),
        ],
        drive=_drive_loop,
        wrong=[
            ("both faults: the first token is never handed out, and the stop token is", _article),
            ("the first token is never handed out: it comes from prefill", _first_dropped),
            ("the stop token is handed out", _loop(stop_too=True)),
            ("it hands out one token more than max_tokens", _loop(limit=1)),
            (
                "the last token is run through the model although nothing is asked after it",
                _loop(wasteful=True),
            ),
        ],
    ),
    "05.largest_batch": Value(
        (5, 2),
        wrong=[
            ("the weights are there once, not once per text", (1, 1)),
            ("24 GiB are 24 · 2³⁰ bytes, more than 24 · 10⁹", (4, 2)),
            ("the weights need room, too", (12, 6)),
            ("a part of a text does not fit: round down", (6, 3)),
            ("keys and values are both kept", (11, 5)),
        ],
    ),
    "05.equal_context": Value(
        (11_677, 1_460),
        tolerance=0.01,
        wrong=[
            (
                "it is half of that: keys and values are both kept, in four bytes each",
                (23_353, 2_919),
            ),
            (
                "every text of the batch has its own cache, and all of them share the weights",
                (11_677, 11_677),
            ),
            ("eight texts fill it eight times as soon, not as late", (11_677, 93_413)),
            ("the cache keeps K = 3 heads, not all 9", (3_892, 487)),
            ("this counts one layer of the cache; all 30 keep one", (350_299, 43_787)),
        ],
    ),
    "05.reuse": Exercise(
        _reuse,
        cases=[
            ([1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 8]),
            ([1, 2, 3], [1, 2, 3, 4, 5]),
            ([1, 2, 3, 4], [1, 2, 3, 4]),
            ([1, 2, 3, 4, 5], [1, 2, 3]),
            ([1, 2, 3, 4, 5], [1, 7, 3, 4, 6, 5]),
            ([9, 2, 3], [1, 2, 3]),
            ([], [4, 5]),
        ],
        drive=_drive_reuse,
        wrong=[
            (
                "the cache keeps what followed the shared beginning: truncate it, or the next "
                "question is answered with another one's text in sight",
                _never_truncates,
            ),
            (
                "a prompt that is wholly in the cache leaves nothing to run, and then there are "
                "no logits: run its last token again",
                _nothing_left,
            ),
            ("it goes by the number of tokens and never compares them", _by_length),
            ("the whole prompt is run again, behind its own beginning", _whole_prompt),
            (
                "it counts equal tokens after the first difference, too; their keys belong to "
                "another text",
                _anywhere,
            ),
            ("it keeps the first token that differs", _one_more),
        ],
    ),
}
