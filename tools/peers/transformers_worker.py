"""transformers as a worker: its model in float32, the last position's scores only."""

import time
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from tools.peers.worker import serve


class Transformers:
    """One model; its `generate` as the interface, its forward pass as the bare step."""

    def load(self, model: str, threads: int) -> dict[str, Any]:
        """Open the folder of a model."""
        torch.set_num_threads(threads)
        logging.disable_progress_bar()
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, local_files_only=True
        ).eval()
        # Renamed in the course of version 5.
        names = signature(self.model.forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        self.contexts: dict[str, tuple[Any, int]] = {}
        return {"engine": f"transformers {transformers.__version__}, float32"}

    @torch.inference_mode()
    def whole(self, ids: list[int], new_tokens: int) -> float:
        """Seconds per token after the first, of `generate`: two calls, with and without them."""
        prompt = torch.tensor([ids])
        options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        times = []
        for count in (1, new_tokens):
            begin = time.perf_counter()
            self.model.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, **options
            )
            times.append(time.perf_counter() - begin)
        return (times[1] - times[0]) / (new_tokens - 1)

    def prefill(self, ids: list[int]) -> float:
        """Seconds from a prompt to the scores of what follows."""
        begin = time.perf_counter()
        self._forward(torch.tensor([ids]), self._cache())
        return time.perf_counter() - begin

    def prepare(self, name: str, prompts: list[list[int]], kv: str | None, steps: int) -> int:
        """Read prompts, from which `steps` goes on at any time."""
        assert kv is None
        cache = self._cache()
        self._forward(torch.tensor(prompts), cache)
        self.contexts[name] = cache, len(prompts[0])
        return 0

    def steps(self, name: str, ids: Sequence[int]) -> list[float]:
        """Seconds of each step: one token per row through the model, and its scores."""
        cache, length = self.contexts[name]
        if surplus := cache.get_seq_length() - length:
            cache.crop(-surplus)
        rows = cache.layers[0].keys.shape[0]
        times = []
        for token in ids:
            begin = time.perf_counter()
            self._forward(torch.full((rows, 1), token), cache)
            times.append(time.perf_counter() - begin)
        return times

    def forget(self, name: str) -> None:
        """Let go of a prepared context."""
        del self.contexts[name]

    def _cache(self) -> Any:
        return DynamicCache(config=self.model.config)

    @torch.inference_mode()
    def _forward(self, ids: torch.Tensor, cache: Any) -> None:
        self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **{self.cache_name: cache})


if __name__ == "__main__":
    engine = Transformers()
    jobs = ("load", "whole", "prefill", "prepare", "steps", "forget")
    serve({name: getattr(engine, name) for name in jobs})
