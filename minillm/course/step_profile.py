"""One decode step of a model on plain PyTorch, taken apart by the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from minillm.engines.base import Accelerated
from minillm.engines.cpu import CpuEngine
from minillm.kv_cache.base import KVCache
from minillm.llm import LLM
from minillm.model import Transformer

PARTS = (
    "products of the layers",
    "output head",
    "attention",
    "norms",
    "RoPE",
    "SwiGLU",
    "cache",
    "all else",
)
OPS = {"attention": "attention", "rms_norm": "norms", "rope": "RoPE", "swiglu": "SwiGLU"}


class Stopwatch:
    """Milliseconds by part. Its own cost, about a microsecond per call, lies in "all else"."""

    def __init__(self) -> None:
        self.ms = dict.fromkeys(PARTS, 0.0)
        self._started = 0.0

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time added to a part."""

        def run(*arguments: Any, **keywords: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **keywords)
            self.ms[part] += 1e3 * (time.perf_counter() - start)
            return result

        return run

    def watch(self, module: nn.Module, part: str, stack: ExitStack) -> None:
        """Time a module's calls for as long as the stack is open."""

        def before(*_: Any) -> None:
            self._started = time.perf_counter()

        def after(*_: Any) -> None:
            self.ms[part] += 1e3 * (time.perf_counter() - self._started)

        stack.callback(module.register_forward_pre_hook(before).remove)
        stack.callback(module.register_forward_hook(after).remove)


def step_parts(model: Transformer, cache: KVCache, repeat: int = 7) -> dict[str, float]:
    """Milliseconds that each part of a decode step takes, those of the fastest of several steps.

    The model runs module by module, whatever engine it has. The cache holds a text already, in one
    row, and is as long afterwards as before.
    """
    best: dict[str, float] = {}
    lengths, token = cache.lengths.tolist(), torch.zeros(1, 1, dtype=torch.int64)
    ops, update = model.ops, cache.update
    for _ in range(repeat):
        watch = Stopwatch()
        with ExitStack() as stack, torch.inference_mode():
            for module in model.layers.modules():
                if isinstance(module, nn.Linear):
                    watch.watch(module, PARTS[0], stack)
            timed = {n: watch.timed(part, getattr(ops, n)) for n, part in OPS.items()}
            model.ops = replace(ops, **timed)
            stack.callback(setattr, model, "ops", ops)
            cache.update = watch.timed("cache", update)  # type: ignore[method-assign]
            stack.callback(setattr, cache, "update", update)
            start = time.perf_counter()
            hidden = Transformer.forward(model, token, cache)
            half = time.perf_counter()
            Transformer.logits(model, hidden[:, -1])
            end = time.perf_counter()
        cache.truncate(lengths)
        watch.ms["output head"] = 1e3 * (end - half)
        watch.ms["all else"] = 1e3 * (end - start) - sum(watch.ms.values())
        if not best or sum(watch.ms.values()) < sum(best.values()):
            best = watch.ms
    return best


def step_seconds(llm: LLM, cache: KVCache, repeat: int = 9) -> float:
    """Seconds of one decode step, one new token per row, in the way that the model runs here.

    The median of several, after one that warms up. The cache is as long afterwards as before.
    """
    lengths, times = cache.lengths.tolist(), []
    token = torch.zeros(len(lengths), 1, dtype=torch.int64)
    for _ in range(repeat + 1):
        start = time.perf_counter()
        with torch.inference_mode():
            llm.model.logits(llm.model(token, cache)[:, -1])
        times.append(time.perf_counter() - start)
        cache.truncate(lengths)
    return statistics.median(times[1:])


# The C++ engine's stages that are not "all else", under the names that plain PyTorch's parts have.
STAGES = {
    "qkv": PARTS[0],
    "out": PARTS[0],
    "gate_up": PARTS[0],
    "down": PARTS[0],
    "head": "output head",
    "attention": "attention",
    "merge": "attention",
    "norm": "norms",
    "rope": "RoPE",
}


def engine_parts(llm: LLM, cache: KVCache, repeat: int = 9) -> dict[str, float]:
    """As `step_parts`, of a model that the C++ engine runs: by the engine's own clock."""
    best: dict[str, float] = {}
    lengths, token = cache.lengths.tolist(), torch.zeros(1, 1, dtype=torch.int64)
    engine = cast(Accelerated, llm.model).engine
    assert isinstance(engine, CpuEngine)
    for _ in range(repeat):
        with torch.inference_mode():
            seconds = engine.profile(token, cache)
        cache.truncate(lengths)
        ms = dict.fromkeys(PARTS, 0.0)
        for stage, value in seconds.items():
            ms[STAGES.get(stage, "all else")] += 1e3 * value
        if not best or sum(ms.values()) < sum(best.values()):
            best = ms
    return best


def hollow(llm: LLM) -> Transformer:
    """A model of the same layers and the same operators, and next to nothing to compute.

    Width 64 in place of 576 and so on: 0.7 million weights, at random. What a step of it takes, a
    step of any model of so many layers takes before it does any work.
    """
    config = replace(
        llm.config,
        hidden_size=64,
        intermediate_size=64,
        vocab_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
    )
    return Transformer(config).eval()
