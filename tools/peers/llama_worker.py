"""llama.cpp as a worker, for a Python that has llama-cpp-python; minillm is not needed."""

import time
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]

from tools.peers.llama_batch import Context, Sequences
from tools.peers.worker import serve

KINDS = {None: 1, "f16": 1, "q8_0": 8}  # ggml's numbers of these types


class LlamaCpp:
    """One file, opened once for `Llama`'s own interface and once for bare steps."""

    def load(self, model: str, threads: int) -> dict[str, Any]:
        """Open the file. Flash attention is on: it is faster here, and 8-bit caches need it."""
        self.llama = llama_cpp.Llama(
            model,
            n_ctx=2048,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            n_gpu_layers=0,
            verbose=False,
        )
        self.threads = threads
        self.contexts: dict[str, Sequences] = {}
        about = llama_cpp.llama_print_system_info().decode()
        return {"engine": f"llama-cpp-python {llama_cpp.__version__}", "system": about}

    def stream(self, ids: list[int], new_tokens: int) -> list[float]:
        """Seconds of each piece after the first, of `Llama.create_completion(stream=True)`.

        A piece is a token; one that ends in half a character comes with the next.
        """
        pieces = self.llama.create_completion(
            ids, max_tokens=new_tokens, temperature=0.0, stream=True
        )
        times = [time.perf_counter() for _ in pieces]
        steps = self.llama.n_tokens - len(ids)
        if steps < new_tokens // 2:
            raise ValueError(f"the answer ended after {steps} tokens; take another prompt")
        # The last piece is empty and says why the answer ended.
        return [(times[-2] - times[0]) / steps]

    def whole(self, ids: list[int], new_tokens: int) -> float:
        """Seconds per token of `Llama.__call__`. The prompt stands in its cache after a first call,
        so that only its last token and the new ones are evaluated."""
        self.llama(ids, max_tokens=1, temperature=0.0)
        begin = time.perf_counter()
        found = self.llama(ids, max_tokens=new_tokens, temperature=0.0)
        return (time.perf_counter() - begin) / int(found["usage"]["completion_tokens"])

    def prefill(self, ids: list[int]) -> float:
        """Seconds of `Llama.eval`, to the last position's scores."""
        self.llama.reset()
        begin = time.perf_counter()
        self.llama.eval(ids)
        llama_cpp.llama_get_logits(self.llama._ctx.ctx)
        return time.perf_counter() - begin

    def prepare(self, name: str, prompts: list[list[int]], kv: str | None, steps: int) -> int:
        """Read prompts as sequences of one context, from which `steps` goes on at any time."""
        capacity = len(prompts[0]) + steps
        context = Context(self.llama._model.model, len(prompts), capacity, self.threads, KINDS[kv])
        self.contexts[name] = Sequences(context, prompts)
        return context.cache_bytes

    def steps(self, name: str, ids: list[int]) -> list[float]:
        """Seconds of each step: one `llama_decode` of a token per sequence, and their scores."""
        return self.contexts[name].steps(ids)

    def forget(self, name: str) -> None:
        """Let go of a prepared context."""
        self.contexts.pop(name).close()


if __name__ == "__main__":
    engine = LlamaCpp()
    jobs = ("load", "stream", "whole", "prefill", "prepare", "steps", "forget")
    serve({name: getattr(engine, name) for name in jobs})
