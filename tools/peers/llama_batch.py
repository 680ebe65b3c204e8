"""llama.cpp's own interface: several sequences in one context, one token of each in a step."""

import time
from collections.abc import Sequence
from typing import Any

import llama_cpp  # type: ignore[import-not-found,unused-ignore]


class Context:
    """A `llama_context` for so many sequences of so many tokens.

    kind: ggml's number of the type that keys and values are stored in.
    """

    def __init__(self, model: Any, sequences: int, capacity: int, threads: int, kind: int) -> None:
        options = llama_cpp.llama_context_default_params()
        # A stream's cells come in multiples of 256.
        options.n_ctx = sequences * (-(-capacity // 256) * 256)
        options.n_batch = options.n_ubatch = 512
        options.n_seq_max = sequences
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = kind
        options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.handle = llama_cpp.llama_init_from_model(model, options)
        if not self.handle:
            raise ValueError(f"no context for {sequences} sequences of {capacity} tokens")
        self.sequences = sequences
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)

    def decode(self, tokens: Sequence[tuple[int, int, int, bool]]) -> None:
        """One `llama_decode` of (token, position, sequence, whether it is scored) each."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, scored) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, scored
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
        if code := llama_cpp.llama_decode(self.handle, batch):
            raise ValueError(f"llama_decode failed with {code}")
        llama_cpp.llama_synchronize(self.handle)

    def scores(self, index: int) -> Any:
        """The scores of token `index` of the last decode: a pointer to V floats."""
        return llama_cpp.llama_get_logits_ith(self.handle, index)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget what a sequence holds from position `length` on."""
        memory = llama_cpp.llama_get_memory(self.handle)
        if not llama_cpp.llama_memory_seq_rm(memory, sequence, length, -1):
            raise ValueError(f"sequence {sequence} cannot be cut to {length} tokens")

    @property
    def cache_bytes(self) -> int:
        """Bytes of a saved state, nearly all of it the filled part of the cache; 0 if unknown."""
        return int(llama_cpp.llama_state_get_size(self.handle))

    def close(self) -> None:
        """Free the batch and the context."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.handle)


class Sequences:
    """Prompts that stand in a context, one sequence each, and steps that go on from them."""

    def __init__(self, context: Context, prompts: Sequence[Sequence[int]]) -> None:
        self.context, self.length = context, len(prompts[0])
        for sequence, prompt in enumerate(prompts):
            for start in range(0, len(prompt), 512):
                chunk = enumerate(prompt[start : start + 512], start)
                context.decode([(token, i, sequence, i == len(prompt) - 1) for i, token in chunk])

    def steps(self, ids: Sequence[int]) -> list[float]:
        """Seconds of each step, a token of every sequence and all their scores."""
        rows = range(self.context.sequences)
        for row in rows:
            self.context.truncate(row, self.length)
        times = []
        for i, token in enumerate(ids):
            begin = time.perf_counter()
            self.context.decode([(token, self.length + i, row, True) for row in rows])
            for row in rows:
                self.context.scores(row)
            times.append(time.perf_counter() - begin)
        return times

    def close(self) -> None:
        """Free the context."""
        self.context.close()
