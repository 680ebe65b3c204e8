"""The two loops of generation: `prefill` reads the prompt, `decode` writes the answer.

Prefill runs many tokens at once and is limited by arithmetic; decode runs one token per request
and is limited by reading the weights and the cache.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from minillm.kv_cache.base import KVCache
from minillm.model import Transformer
from minillm.sampling import SamplingParams, sample

__all__ = ["Request", "decode", "prefill"]


@dataclass
class Request:
    """One prompt on its way to an answer: what was asked, what came so far, why it ended.

    stop_ids: token ids that end it; such a token is the last of token_ids.
    forbidden_ids: token ids that are never picked, such as those that stand for no text.
    generator: this request's own source of randomness, so that neighbours never disturb it.
    """

    prompt_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: Collection[int] = ()
    forbidden_ids: Sequence[int] = ()
    generator: torch.Generator | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None

    def pick(self, logits: Tensor) -> int:
        """Sample the next token from logits (V,), note it, and finish where it is the last."""
        if self.forbidden_ids:
            forbidden = torch.tensor(self.forbidden_ids, device=logits.device)
            logits = logits.index_fill(-1, forbidden, -math.inf)
        seen = self.prompt_ids + self.token_ids if self.params.repetition_penalty != 1 else ()
        token = sample(logits, self.params, seen, self.generator)
        self.token_ids.append(token)
        if token in self.stop_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.params.max_new_tokens:
            self.finish_reason = "length"
        return token


@torch.inference_mode()
def prefill(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    cache: KVCache,
    chunk_size: int | None = None,
) -> Tensor:
    """Run every prompt through the model and fill the cache; return the logits of what follows.

    prompts: B lists of token ids, of any lengths; shorter ones are padded on the right, which the
    mask hides. chunk_size: run at most so many positions at a time (less memory, same result).
    Returns (B, V): only the last position of each prompt is projected to the vocabulary.
    """
    device = next(model.parameters()).device
    longest = max(len(prompt) for prompt in prompts)
    lengths = cache.lengths + torch.tensor([len(prompt) for prompt in prompts])
    last: list[Tensor] = [torch.empty(0)] * len(prompts)
    for start in range(0, longest, chunk_size or longest):
        chunk = [list(prompt[start : start + (chunk_size or longest)]) for prompt in prompts]
        counts = [len(ids) for ids in chunk]
        width = max(counts)
        padded = [ids + [0] * (width - len(ids)) for ids in chunk]
        hidden = model(torch.tensor(padded, device=device), cache, counts, lengths)  # (B, T, C)
        for row, count in enumerate(counts):
            if count:  # a later chunk of the same prompt replaces this
                last[row] = hidden[row, count - 1]
    return model.logits(torch.stack(last))


def decode(
    model: Transformer, cache: KVCache, logits: Tensor, requests: Sequence[Request]
) -> Iterator[tuple[Request, int]]:
    """Sample, hand out, feed back, one token per request and step, until all are finished.

    logits: (B, V), what `prefill` returned; the first token of each request comes from them.
    Yields (request, token). A request is finished by its own `pick`, or by the caller setting its
    finish_reason; its row then leaves the batch.
    """
    running = list(requests)
    while running:
        tokens = [request.pick(row) for request, row in zip(running, logits, strict=True)]
        yield from zip(running, tokens, strict=True)
        going = [row for row, request in enumerate(running) if request.finish_reason is None]
        if not going:
            return
        if len(going) < len(running):
            cache.select(going)
            running = [running[row] for row in going]
        ids = torch.tensor([[tokens[row]] for row in going], device=logits.device)  # (B, 1)
        with torch.inference_mode():  # nothing is recorded for gradients
            logits = model.logits(model(ids, cache)[:, -1])
