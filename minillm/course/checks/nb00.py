"""Exercises of notebook 00: the loop, its times and passes, the chat template, the refresher."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from minillm.course.checks.kit import Exercise, Value
from minillm.tokenizer import ChatTemplate, Tokenizer

Logits = Callable[[Sequence[int]], Tensor]
VOCABULARY = 12


def _fake_logits(ids: Sequence[int]) -> Tensor:
    """Scores (T, V) as a model gives them: row t depends on all of ids[: t + 1]."""
    ids = [int(token) for token in ids]
    for token in ids:
        if not 0 <= token < VOCABULARY:
            raise ValueError(f"token id {token} is not a whole number from 0 to {VOCABULARY - 1}")
    rows = []
    for t in range(len(ids)):
        draw = random.Random(str(ids[: t + 1]))  # the same numbers on every machine
        rows.append([draw.random() for _ in range(VOCABULARY)])
    return torch.tensor(rows)


# --- Exercise 1: the loop -------------------------------------------------------------------------


def _complete(logits: Logits, ids: list[int], max_new_tokens: int, stops: set[int]) -> list[int]:
    ids, new = list(ids), []
    for _ in range(max_new_tokens):
        token = int(logits(ids)[-1].argmax())
        if token in stops:
            break
        new.append(token)
        ids.append(token)
    return new


def _loop(
    pick: Callable[[Tensor], Any] = lambda scores: scores[-1].argmax(),
    fed: Callable[[list[int], list[int]], list[int]] = lambda ids, new: ids + new,
    ends: Callable[[int, Collection[int]], bool] = lambda token, stops: token in stops,
    keeps_stop: bool = False,
    extra: int = 0,
) -> Callable[..., list[int]]:
    """The loop with one thing about it changed."""

    def loop(logits: Logits, ids: list[int], max_new_tokens: int, stops: set[int]) -> list[int]:
        new: list[int] = []
        for _ in range(max_new_tokens + extra):
            token = int(pick(logits(fed(ids, new))))
            if ends(token, stops):
                return [*new, token] if keeps_stop else new
            new.append(token)
        return new

    return loop


def _complete_in_place(logits: Logits, ids: list[int], limit: int, stops: set[int]) -> list[int]:
    new = _complete(logits, ids, limit, stops)
    ids += new
    return new


def _drive_loop(answer: Any, ids: list[int], max_new_tokens: int, stops: set[int]) -> Any:
    return answer(_fake_logits, ids, max_new_tokens, stops)


# --- Exercise 2: TTFT and ITL from time stamps ----------------------------------------------------


def _latencies(start: float, stamps: list[float]) -> tuple[float, float]:
    return stamps[0] - start, (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def _divided_by_n(start: float, stamps: list[float]) -> tuple[float, float]:
    return stamps[0] - start, (stamps[-1] - stamps[0]) / len(stamps)


def _with_first_wait(start: float, stamps: list[float]) -> tuple[float, float]:
    return stamps[0] - start, (stamps[-1] - start) / len(stamps)


def _from_start(start: float, stamps: list[float]) -> tuple[float, float]:
    return stamps[0] - start, (stamps[-1] - start) / (len(stamps) - 1)


def _clock_time(start: float, stamps: list[float]) -> tuple[float, float]:
    return stamps[0], (stamps[-1] - stamps[0]) / (len(stamps) - 1)


def _total(start: float, stamps: list[float]) -> tuple[float, float]:
    return stamps[-1] - start, (stamps[-1] - stamps[0]) / (len(stamps) - 1)


# --- Exercise 5: what the model is given ----------------------------------------------------------

_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def _small_chat() -> tuple[Tokenizer, ChatTemplate]:
    texts = ["What is the capital of France? user assistant Is this the end?"]
    special = ["<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer.train(texts, vocab_size=270, special_tokens=special)
    return tokenizer, ChatTemplate(_TEMPLATE)


def _as_user(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _question_ids(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> list[int]:
    return template.encode(tokenizer, _as_user(question))


def _bare(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> list[int]:
    return tokenizer.encode(question)


def _special_as_text(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> list[int]:
    return tokenizer.encode(template.render(_as_user(question)))


def _all_special(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> list[int]:
    text = template.render(_as_user(question))
    return tokenizer.encode(text, allowed_special="all")


def _no_turn(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> list[int]:
    return template.encode(tokenizer, _as_user(question), add_generation_prompt=False)


def _twice(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> list[int]:
    return template.encode(tokenizer, _as_user(template.render(_as_user(question))))


def _as_text_only(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> str:
    return template.render(_as_user(question))


def _drive_chat(answer: Any, question: str) -> Any:
    return answer(*_small_chat(), question)


# --- Refresher ------------------------------------------------------------------------------------


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], heads, -1).transpose(0, 1)


def _view_only(x: Tensor, heads: int) -> Tensor:
    return x.view(heads, x.shape[0], -1)


def _not_moved(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], heads, -1)


def _interleaved(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], -1, heads).permute(2, 0, 1)


def _last_two(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], heads, -1).permute(1, 2, 0)


_X = torch.arange(24.0).view(3, 8)  # (T, C)

EXERCISES = {
    "00.loop": Exercise(
        _complete,
        cases=[
            ([3, 1, 4], 6, set[int]()),
            ([2], 8, {9, 5}),
            ([7, 0, 7], 1, {1}),
            ([5, 6], 8, {11}),
            ([1, 2, 3, 4], 7, {8, 2}),
        ],
        drive=_drive_loop,
        wrong=[
            (
                "it feeds the model only the newest token: the text grew by one, but the model saw "
                "one token",
                _loop(fed=lambda ids, new: new[-1:] or ids),
            ),
            (
                "it never appends the new token to what the model sees, so every pass gives the "
                "same one",
                _loop(fed=lambda ids, new: ids),
            ),
            (
                "it takes the highest score of the whole table; the last row alone is about the "
                "next token",
                _loop(pick=lambda scores: scores.argmax()),
            ),
            (
                "argmax runs over the positions (axis 0); it has to run over the vocabulary",
                _loop(pick=lambda scores: scores.argmax(0)[-1]),
            ),
            (
                "it reads the first row of the scores, which is about the second token of the text",
                _loop(pick=lambda scores: scores[0].argmax()),
            ),
            (
                "it stops at id 0, whatever the stop ids are",
                _loop(ends=lambda token, stops: token == 0),
            ),
            ("it never stops before max_new_tokens", _loop(ends=lambda token, stops: False)),
            ("the stop token is in the result; it ends the answer", _loop(keeps_stop=True)),
            ("it runs one pass too many", _loop(extra=1)),
            (
                "the result begins with the prompt; only the new ids are asked for",
                lambda logits, ids, limit, stops: ids + _complete(logits, ids, limit, stops),
            ),
            ("it appends to the list that it was given: copy it first", _complete_in_place),
        ],
    ),
    "00.latencies": Exercise(
        _latencies,
        cases=[
            (10.0, [10.5, 10.6, 10.8]),
            (0.0, [0.2, 0.25]),
            (3.0, [4.5, 4.515, 4.53, 4.545, 4.56]),
        ],
        wrong=[
            ("it divides by n: n tokens have n − 1 gaps", _divided_by_n),
            ("the mean includes the first wait, which is TTFT and no gap", _with_first_wait),
            (
                "the first gap starts at the request; it starts at the first token",
                _from_start,
            ),
            ("TTFT is a duration: subtract the start of the request", _clock_time),
            ("TTFT ends at the first token, not at the last", _total),
        ],
    ),
    "00.passes_without_cache": Value(
        (50, 6225),
        wrong=[
            ("every pass also runs the tokens written before it, so the text grows", (50, 5000)),
            ("the first pass sees 100 tokens, not 101", (50, 6275)),
            ("only the last pass sees 149 tokens", (50, 7450)),
            ("the last pass sees 149 tokens: its own token is not fed back", (50, 7500)),
            ("the first token needs a pass, too", (49, 6076)),
        ],
    ),
    "00.passes_with_cache": Value(
        (49, 149),
        wrong=[
            (
                "prefill gives the first token, so 49 decode passes are left; the last token is "
                "never fed back",
                (50, 150),
            ),
            ("prefill gives the first token, so 49 decode passes are left", (50, 149)),
            ("the last token is never fed back", (49, 150)),
            ("prefill runs the 100 tokens of the prompt", (49, 49)),
            ("a cache is there so that a decode pass runs one token only", (49, 6225)),
        ],
    ),
    "00.crossover": Value(
        30,
        wrong=[
            ("total = TTFT + (n − 1) · ITL: n tokens have n − 1 gaps, not n", 29),
            ("1.3 s is made up by the difference of the ITLs, not by 60 ms", 23),
            ("the ITLs are subtracted, not added", 19),
            ("at that length the service that starts at once is still ahead", 28),
        ],
    ),
    "00.question_ids": Exercise(
        _question_ids,
        cases=[("Is this the end?",), ("What is the capital of France?",), ("Why <|im_end|>?",)],
        drive=_drive_chat,
        wrong=[
            ("the question is bare: the chat template is missing", _bare),
            (
                "the template's special tokens were encoded as ordinary text, many ids each",
                _special_as_text,
            ),
            (
                "what the user typed became a special token; only the template may write those",
                _all_special,
            ),
            (
                "nothing says that it is the assistant's turn: the generation prompt is missing",
                _no_turn,
            ),
            ("the template was applied twice", _twice),
            ("this is text; the model is given ids", _as_text_only),
        ],
    ),
    "00.dot": Value(
        12,
        wrong=[
            ("the three products are still to be added up", [4, -10, 18]),
            ("2 · (−5) is −10: the minus sign was lost", 32),
            ("the sums were multiplied; multiply the pairs, then add", 30),
        ],
    ),
    "00.matrix_product": Value(
        [[5, 1], [2, 12]],
        wrong=[
            (
                "rows and columns are swapped: row i meets column j in entry [i][j]",
                [[5, 2], [1, 12]],
            ),
            ("this is B @ A; the order matters", [[1, 3, 3], [2, 4, 0], [0, 4, 12]]),
            (
                "the products of a row and a column are still to be added up",
                [[1, 4, 0], [0, 0, 12]],
            ),
        ],
    ),
    "00.variance": Value(
        (5, 9),
        wrong=[
            ("it divides by n − 1; here the variance is the mean of the squares", (5, 12)),
            ("this is the standard deviation, the square root of the variance", (5, 3)),
            ("the squares are added up, but not averaged", (5, 36)),
            ("the mean is still to be subtracted before squaring", (5, 34)),
        ],
    ),
    "00.log": Value(
        1.386,
        tolerance=2e-3,
        wrong=[
            ("this is the sum; divide by the number of tokens", 4.159),
            ("this is in bits: the natural logarithm has base e", 2.0),
            ("the sign: a probability's logarithm is negative, the loss positive", -1.386),
            ("the logarithm is taken of each probability, then the mean, not the reverse", 1.232),
        ],
    ),
    "00.split_heads": Exercise(
        _split_heads,
        cases=[(_X, 2), (_X, 4), (_X[:1], 8)],
        wrong=[
            (
                "view alone cuts the numbers in memory order: one head would mix several tokens",
                _view_only,
            ),
            ("the heads are cut out, but not moved to the front: transpose", _not_moved),
            (
                "head h must take D neighbouring columns, not every H-th column",
                _interleaved,
            ),
            ("the last two axes are swapped: (H, T, D) is asked for", _last_two),
        ],
    ),
}
