"""What runs a model, behind one interface: times of its steps, and of reading a prompt."""

import time
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.engines.base import Accelerated
from minillm.engines.cuda import CudaEngine
from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.model import Transformer
from minillm.sampling import SamplingParams
from tools.gpu import shapes
from tools.gpu.compiled import CompiledStep


class Runner:
    """Greedy decoding of a batch, a step at a time.

    weight_bytes: what a step has to read of the weights. warm_up: runs before one counts.
    """

    name: str
    weight_bytes: int
    warm_up = 2

    def steps(self, prompts: list[list[int]], tokens: int) -> Iterator[None]:
        """Yields when the first token of every text is known to the CPU, and so on."""
        raise NotImplementedError

    def seconds_per_step(
        self, prompts: list[list[int]], tokens: int, runs: int, warm: bool = True
    ) -> float:
        """The median time from one token to the next over a run; of `runs` runs the median.

        warm: whether runs that do not count come first: they compile, tune and record.
        """
        before = self.warm_up if warm else 0
        stamps = [self.stamps(prompts, tokens) for _ in range(before + runs)]
        return median(median(b - a for a, b in pairwise(x)) for x in stamps[before:])

    def stamps(self, prompts: list[list[int]], tokens: int) -> list[float]:
        """When each step of a run was done, in seconds."""
        return [time.perf_counter() for _ in self.steps(prompts, tokens)]


class Modules(Runner):
    """minillm's modules, one PyTorch operator after another."""

    name = "minillm, modules"

    def __init__(self, model: Transformer) -> None:
        self.model, self.weight_bytes = model, shapes.weight_bytes(model)
        self.device = model.embed_tokens.weight.device
        self.dtype = model.embed_tokens.weight.dtype

    def steps(self, prompts: list[list[int]], tokens: int) -> Iterator[None]:
        """The loops of `minillm.generate`."""
        cache = self._cache(len(prompts), len(prompts[0]) + tokens - 1)
        requests = [Request(prompt, SamplingParams(max_new_tokens=tokens)) for prompt in prompts]
        logits = prefill(self.model, prompts, cache)
        for count, _ in enumerate(self._decode(cache, logits, requests), start=1):
            if count % len(prompts) == 0:
                yield

    def _cache(self, rows: int, capacity: int) -> Any:
        config = self.model.config
        return new_cache(config, rows, capacity, dtype=self.dtype, device=self.device)

    def _decode(self, cache: Any, logits: Tensor, requests: list[Request]) -> Any:
        return decode(self.model, cache, logits, requests)

    def prefill(self, prompt: list[int]) -> Tensor:
        """The logits after a prompt; does not wait for them."""
        return prefill(self.model, [prompt], self._cache(1, len(prompt)))


class Engine(Modules):
    """The CUDA engine, with its own caches and its own loop; prompts too are read by it."""

    name = "minillm, CUDA engine"

    def __init__(self, model: Transformer) -> None:
        self.engine = CudaEngine(model)
        super().__init__(Accelerated(model, self.engine))

    def _cache(self, rows: int, capacity: int) -> Any:
        return self.engine.new_cache(rows, capacity)

    def _decode(self, cache: Any, logits: Tensor, requests: list[Request]) -> Any:
        steps = self.engine.decode(cache, logits, requests)
        assert steps is not None
        return steps


class Compiled(Modules):
    """The decode step by torch.compile (mode "reduce-overhead"), over a static cache."""

    name = "minillm, torch.compile"
    warm_up = 3

    def __init__(self, model: Transformer, backend: str) -> None:
        super().__init__(model)
        self.backend = backend
        self._steps: dict[tuple[int, int], CompiledStep] = {}

    @torch.no_grad()
    def steps(self, prompts: list[list[int]], tokens: int) -> Iterator[None]:
        """A bare greedy loop. The prompt is not read: what the cache holds changes no time."""
        rows, length = len(prompts), len(prompts[0])
        key = rows, length + tokens
        if key not in self._steps:
            self._steps = {key: CompiledStep(self.model, *key, self.backend)}
        ids = torch.tensor([prompt[-1] for prompt in prompts], device=self.device)
        positions = torch.full((rows,), length, device=self.device)
        for _ in range(tokens):
            ids = self._steps[key](ids, positions)
            positions = positions + 1
            ids.tolist()
            yield


class Stamps:
    """What transformers hands each token to, as soon as the CPU knows it."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Tensor) -> None:
        """Called with the prompt first."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is left to write."""


class Peer(Runner):
    """transformers: `generate` with a static cache, which it compiles by itself on a GPU."""

    name = "transformers, static cache, compiled"
    warm_up = 3

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        rope = config.layers[0].rope
        assert rope is not None
        theirs = LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": rope.rope_theta},
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=0,
            dtype=dtype,
        )
        with torch.device(device):
            self.model = LlamaForCausalLM._from_config(theirs, dtype=dtype).eval()
        self.device = device
        like_ours = shapes.random_model(config, torch.device("meta"), dtype)
        self.weight_bytes = shapes.weight_bytes(like_ours)

    @torch.inference_mode()
    def stamps(self, prompts: list[list[int]], tokens: int) -> list[float]:
        """When the streamer was called with each token; the first call hands over the prompt."""
        ids, found = torch.tensor(prompts, device=self.device), Stamps()
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            cache_implementation="static",
            streamer=found,
        )
        return found.times[1:]

    @torch.inference_mode()
    def prefill(self, prompt: list[int]) -> Tensor:
        """The logits after a prompt; does not wait for them."""
        ids = torch.tensor([prompt], device=self.device)
        out: Tensor = self.model(input_ids=ids, logits_to_keep=1, use_cache=True).logits
        return out
