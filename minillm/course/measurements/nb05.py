"""Notebook 05: one step of decoding on a cache that copies, and on one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from minillm.course.precomputed import Measurement
from minillm.course.timing import timed
from minillm.kv_cache.base import KVCache
from minillm.llm import LLM

Cache = TypeVar("Cache", bound=KVCache)
CONTEXTS = [64, 512, 1024, 2048, 4096]


class ConcatCache(KVCache):
    """One row. Each layer's keys and values grow by concatenation, as in the article."""

    def __init__(self, layers: int) -> None:
        self.lengths = torch.zeros(1, dtype=torch.int64)
        self.stored = [torch.empty(0)] * layers

    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """The new tokens stand behind all others."""
        self.lengths = self.lengths + width
        return torch.arange(int(self.lengths) - width, int(self.lengths))[None]  # (1, T)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A new, longer tensor, into which everything is copied."""
        old, new = self.stored[layer], torch.stack([k, v])  # (2, 1, K, T, D)
        self.stored[layer] = torch.cat([old, new], dim=3) if len(old) else new
        return *self.stored[layer], torch.arange(int(self.lengths))[None]

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget what lies behind the first tokens."""
        self.lengths = torch.tensor(lengths)
        self.stored = [kv[:, :, :, : lengths[0]] for kv in self.stored]

    def select(self, rows: Sequence[int]) -> None:
        """There is one row."""

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(kv.nbytes for kv in self.stored)


def fill(llm: LLM, cache: Cache, tokens: int) -> Cache:
    """Put random keys and values for so many tokens into an empty cache, in all of its rows.

    It stands for a text of that length: how long a step takes does not depend on what was said,
    and to read or write 4,096 tokens would take minutes.
    """
    rows, config = len(cache.lengths), llm.config
    generator = torch.Generator().manual_seed(0)
    cache.advance([tokens] * rows, tokens)
    for layer in range(config.num_hidden_layers):
        shape = rows, config.num_key_value_heads, tokens, config.head_dim
        kv = torch.randn(2, *shape, generator=generator)
        cache.update(layer, kv[0], kv[1])
    return cache


def step_ms(llm: LLM, cache: KVCache, repeat: int = 5) -> float:
    """Milliseconds of one decode step, one new token in each row, on a cache that is filled.

    The cache is as long afterwards as before. The shortest of `repeat` steps counts.
    """
    lengths = cache.lengths.tolist()
    token = torch.zeros(len(lengths), 1, dtype=torch.int64)

    @torch.inference_mode()
    def step() -> None:
        llm.model.logits(llm.model(token, cache)[:, -1])

    best = float("inf")
    for _ in range(repeat):
        best = min(best, timed(step)[1])
        cache.truncate(lengths)
    return 1e3 * best


def run_ms(lengths: Sequence[int], step: Sequence[float]) -> float:
    """Milliseconds of all steps from the first length to the last, from those at a few lengths.

    Between two lengths the time of a step is taken to change evenly.
    """
    parts = range(1, len(lengths))
    return sum((lengths[i] - lengths[i - 1]) * (step[i] + step[i - 1]) / 2 for i in parts)


def crossing(xs: Sequence[float], ys: Sequence[float], level: float) -> float | None:
    """The x at which a curve through the points first reaches a level; None if it never does.

    Between two points the curve is straight.
    """
    if ys[0] >= level:
        return xs[0]
    for i in range(1, len(xs)):
        if ys[i] >= level:
            part = (level - ys[i - 1]) / (ys[i] - ys[i - 1])
            return xs[i - 1] + part * (xs[i] - xs[i - 1])
    return None


def _both(llm: LLM, contexts: Iterable[int], rounds: int = 4) -> dict[str, list[float]]:
    """The shortest step of several rounds, in which the caches take turns."""
    makers: dict[str, Callable[[int], KVCache]] = {
        "concatenated": lambda n: ConcatCache(llm.config.num_hidden_layers),
        "preallocated": lambda n: llm.new_cache(1, n + 1),
    }
    found: dict[str, list[float]] = {name: [] for name in makers}
    for n in contexts:
        best = dict.fromkeys(makers, float("inf"))
        for _ in range(rounds):
            for name, make in makers.items():  # one at a time: 4,096 tokens take 190 MB
                best[name] = min(best[name], step_ms(llm, fill(llm, make(n), n)))
        for name, ms in best.items():
            found[name].append(round(ms, 1))
    return found


def _full(llm: LLM) -> dict[str, Any]:
    return {"contexts": CONTEXTS, **_both(llm, CONTEXTS)}


def _sample(llm: LLM, stored: Any) -> Iterable[tuple[str, float, float]]:
    """Times differ between machines; which of the two is faster at the end does not."""
    before = after = float(stored["concatenated"][-1] > stored["preallocated"][-1])
    for rounds in (3, 6, 12):  # more, while something else keeps the machine busy
        now = _both(llm, CONTEXTS[-1:], rounds)
        after = float(now["concatenated"][-1] > now["preallocated"][-1])
        if after == before:
            break
    yield "concatenating takes longer at 4,096 tokens", before, after


MEASUREMENTS = {"05.caches": Measurement(_full, _sample)}
