"""minillm as a worker: on the blocks of a GGUF file where the backend can, else in float32."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from minillm import LLM, SamplingParams
from minillm.generate import prefill
from minillm.kv_cache import new_cache
from minillm.kv_cache.base import KVCache
from tools.peers.worker import serve


class Minillm:
    """One model, and the prepared contexts that steps start from."""

    llm: LLM

    def load(self, model: str, backend: str, threads: int) -> dict[str, Any]:
        """Open the model and say what runs it."""
        torch.set_num_threads(threads)
        self.llm = LLM.from_pretrained(model, device="cpu", backend=backend)
        self.contexts: dict[str, tuple[KVCache, int]] = {}
        return {
            "engine": repr(self.llm),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "eos": sorted(self.llm.eos_token_ids),
        }

    def stream(self, ids: list[int], new_tokens: int) -> list[float]:
        """Seconds of each token after the first, of `LLM.stream`."""
        params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
        stream = self.llm.stream(ids, params)
        for _ in stream:
            pass
        return stream.output.stats.itl_s

    def whole(self, ids: list[int], new_tokens: int) -> float:
        """Seconds per token after the first, of `LLM.generate`."""
        params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
        return 1 / self.llm.generate(ids, params).stats.decode_tokens_per_s

    def prefill(self, ids: list[int]) -> float:
        """Seconds from a prompt to the scores of what follows."""
        cache = self._cache(1, len(ids), None)
        begin = time.perf_counter()
        prefill(self.llm.model, [ids], cache, self.llm.chunk_size(1))
        return time.perf_counter() - begin

    def prepare(self, name: str, prompts: list[list[int]], kv: str | None, steps: int) -> int:
        """Read prompts, from which `steps` goes on at any time. Returns the bytes of the cache."""
        length = len(prompts[0])
        cache = self._cache(len(prompts), length + steps, kv)
        prefill(self.llm.model, prompts, cache, self.llm.chunk_size(len(prompts)))
        self.contexts[name] = cache, length
        return cache.nbytes

    def steps(self, name: str, ids: Sequence[int]) -> list[float]:
        """Seconds of each step: one token per row through the model, and its scores."""
        cache, length = self.contexts[name]
        rows = len(cache.lengths)
        cache.truncate([length] * rows)
        times = []
        with torch.inference_mode():
            for token in ids:
                step = torch.full((rows, 1), token)
                begin = time.perf_counter()
                self.llm.model.logits(self.llm.model(step, cache)[:, -1])
                times.append(time.perf_counter() - begin)
        return times

    def forget(self, name: str) -> None:
        """Let go of a prepared context."""
        del self.contexts[name]

    def _cache(self, rows: int, capacity: int, kv: str | None) -> KVCache:
        kind = kv or self.llm.kv_cache
        return new_cache(self.llm.config, rows, capacity, dtype=self.llm.dtype, kind=kind)


if __name__ == "__main__":
    engine = Minillm()
    jobs = ("load", "stream", "whole", "prefill", "prepare", "steps", "forget")
    serve({name: getattr(engine, name) for name in jobs})
