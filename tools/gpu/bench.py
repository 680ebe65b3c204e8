"""The measurements of `tools/bench_gpu.py`: what runs, how it is timed, and what it has to read."""

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch

from minillm.bench import random_prompts, step_cost
from minillm.config import ModelConfig
from minillm.engines.base import Unsupported
from tools.gpu import shapes
from tools.gpu.engines import Compiled, Engine, Modules, Peer, Runner
from tools.gpu.report import Figure
from tools.gpu.shapes import Work

Make = Callable[[], Runner]


class Bench:
    """The measurements of one shape. skipped: what could not be measured, and why."""

    def __init__(
        self,
        name: str,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        work: Work,
    ) -> None:
        self.name, self.config, self.work = name, config, work
        self.device, self.dtype = device, dtype
        self.skipped: list[str] = []

    def figures(self) -> Iterator[Figure]:
        """One runner after the other; each has its model to itself, and none outlives its turn."""
        for weights, kind, make in self.runners():
            reason = ""
            try:
                yield from self.figures_of(weights, make)
            except Unsupported:
                raise
            except torch.OutOfMemoryError:
                reason = "out of memory"
            except Exception as error:  # a peer that does not run on this machine
                traceback.print_exc()
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
            if reason:
                self.skipped.append(f"{self.name}, {weights}, {kind}: {reason}")

    def runners(self) -> Iterator[tuple[str, str, Make]]:
        """What its weights are, its name, and a function that makes it, of all that is measured."""
        model = partial(shapes.random_model, self.config, self.device, self.dtype)
        plain = str(self.dtype).removeprefix("torch.")
        backend = "inductor" if self.device.type == "cuda" else "eager"
        yield plain, Engine.name, lambda: Engine(model())
        yield plain, Modules.name, lambda: Modules(model())
        yield plain, Compiled.name, lambda: Compiled(model(), backend)
        for kind in shapes.GROUPS:
            yield kind, Engine.name, partial(self._on_codes, kind)
        yield plain, Peer.name, lambda: Peer(self.config, self.device, self.dtype)

    def _on_codes(self, kind: str) -> Runner:
        model = shapes.random_model(self.config, self.device, self.dtype)
        return Engine(shapes.quantize(model, kind))

    def figures_of(self, weights: str, make: Make) -> Iterator[Figure]:
        """Decoding at each batch size; and a prompt, where weights are as they are."""
        self.free()
        runner = make()
        for rows in self.work.rows:
            self.free()
            yield self.decoded(weights, runner, rows)
        if weights not in shapes.GROUPS and isinstance(runner, Engine | Peer):
            self.free()
            yield self.prompt_read(weights, runner)

    def decoded(self, weights: str, runner: Runner, rows: int) -> Figure:
        """Decoding of so many rows."""
        work, config = self.work, self.config
        prompts = random_prompts(config.vocab_size, rows, work.prompt)
        seconds = runner.seconds_per_step(prompts, work.tokens, work.runs, work.warm)
        # Half-way through the answer: as many tokens in the cache as on average.
        context = work.prompt + work.tokens // 2
        cache = step_cost(config, rows, 1, context, dtype=self.dtype).cache_bytes
        read = runner.weight_bytes + cache
        return Figure(self.name, weights, "decode", rows, runner.name, seconds, read, rows)

    def prompt_read(self, weights: str, runner: Engine | Peer) -> Figure:
        """Reading one long prompt."""
        tokens = self.work.prefill
        [prompt] = random_prompts(self.config.vocab_size, 1, tokens)
        seconds = median_seconds(lambda: runner.prefill(prompt), self.device, self.work)
        flops = step_cost(self.config, 1, tokens).flops
        return Figure(self.name, weights, "prefill", 1, runner.name, seconds, flops, tokens)

    def free(self) -> None:
        """Give back the memory of what is gone."""
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # compiled code holds what it was compiled for
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def median_seconds(call: Callable[[], object], device: torch.device, work: Work) -> float:
    """The median time of a call, until the device is done with it; after two that warm up."""
    times, before = [], 2 if work.warm else 0
    for _ in range(before + work.runs):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return median(times[before:])
