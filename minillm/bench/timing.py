"""Times of the two phases, to the first token and from token to token, beside a peer's.

Every figure is a median of several runs, after one that warms up. With a peer, the engines take
turns, so that a machine that slows down half-way slows both.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from minillm.bench.counts import at_least
from minillm.engines import decode
from minillm.generate import Request, prefill
from minillm.llm import LLM
from minillm.sampling import SamplingParams

Engine = Callable[[list[list[int]], int], Iterator[None]]
"""(prompts, new_tokens) → a greedy run over the batch that yields once per step: first when the
first token of every prompt is known, then after each further one."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one engine took for one shape of work. Times in seconds, medians over the runs.

    ttft_s: time to first token, from the start of the request.
    itl_s: inter-token latency, from one token to the next of the same prompt.
    """

    engine: str
    prompt_tokens: int
    batch_size: int
    new_tokens: int
    ttft_s: float
    itl_s: float

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens of the whole batch per second, until the first token."""
        return self.batch_size * self.prompt_tokens / self.ttft_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second after the first, of the whole batch."""
        return self.batch_size / self.itl_s

    def as_dict(self) -> dict[str, Any]:
        """The fields and the two speeds, for JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return fields | {
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
        }


def minillm_engine(llm: LLM) -> Engine:
    """Prefill and decode as `LLM` runs them, greedy, over a cache of just the right size."""

    def run(prompts: list[list[int]], new_tokens: int) -> Iterator[None]:
        params = SamplingParams(max_new_tokens=new_tokens)
        requests = [Request(prompt, params) for prompt in prompts]
        cache = llm.new_cache(len(prompts), len(prompts[0]) + new_tokens - 1)
        logits = prefill(llm.model, prompts, cache, llm.chunk_size(len(prompts)))
        for count, _ in enumerate(decode(llm.model, cache, logits, requests), start=1):
            if count % len(prompts) == 0:
                yield

    return run


def transformers_engine(
    folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Engine:
    """The same model folder in transformers: a bare loop, with the last position's logits only.

    Its `generate` would be slower; this is the best that the peer does in eager mode. Raises
    ValueError for a GGUF file, which transformers would dequantize at every step.
    """
    if folder.is_file():
        raise ValueError(f"{folder} is a file; the comparison needs a folder (`minillm save`)")
    try:
        from transformers import AutoModelForCausalLM, DynamicCache
        from transformers.utils import logging
    except ImportError as error:
        raise ValueError(
            f"a comparison needs transformers (`pip install transformers`): {error}"
        ) from error
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    model = model.to(device).eval()
    # Renamed in the course of version 5.
    cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"

    @torch.inference_mode()
    def run(prompts: list[list[int]], new_tokens: int) -> Iterator[None]:
        cache = DynamicCache(config=model.config)
        ids = torch.tensor(prompts, device=device)
        for _ in range(new_tokens):
            out = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{cache_name: cache})
            ids = out.logits[:, -1:].argmax(-1)  # (B, 1)
            ids.tolist()  # a GPU has finished when its answer is here
            yield

    return run


def time_steps(engine: Engine, prompts: list[list[int]], new_tokens: int) -> list[float]:
    """Seconds that each step of one run took; the first one holds the whole prefill."""
    times, last = [], time.perf_counter()
    for _ in engine(prompts, new_tokens):
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times


def random_prompts(vocab_size: int, batch_size: int, length: int) -> list[list[int]]:
    """Prompts of random token ids, always the same ones: the speed does not depend on the text."""
    generator = torch.Generator().manual_seed(0)
    ids: list[list[int]] = torch.randint(
        vocab_size, (batch_size, length), generator=generator
    ).tolist()
    return ids


def measure(
    engines: Mapping[str, Engine],
    vocab_size: int,
    *,
    prompt_tokens: int,
    batch_size: int = 1,
    new_tokens: int = 32,
    runs: int = 3,
) -> list[Measurement]:
    """Time each engine on the same prompts; they take turns, `runs` times after a warm-up.

    Raises ValueError unless batch_size, prompt_tokens and runs are at least 1 and new_tokens 2.
    """
    at_least(1, prompt_tokens=prompt_tokens, batch_size=batch_size, runs=runs)
    at_least(2, new_tokens=new_tokens)
    prompts = random_prompts(vocab_size, batch_size, prompt_tokens)
    for engine in engines.values():
        time_steps(engine, prompts, 2)
    ttft: dict[str, list[float]] = {name: [] for name in engines}
    itl: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(runs):
        for name, engine in engines.items():
            first, *others = time_steps(engine, prompts, new_tokens)
            ttft[name].append(first)
            itl[name] += others
    shape = (prompt_tokens, batch_size, new_tokens)
    return [
        Measurement(name, *shape, statistics.median(ttft[name]), statistics.median(itl[name]))
        for name in engines
    ]
