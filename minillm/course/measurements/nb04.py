"""Measurements of notebook 04: the logit lens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.course.precomputed import Measurement
from minillm.course.probes import doc_ids
from minillm.course.trace import hidden_states
from minillm.llm import LLM


@torch.inference_mode()
def lens(llm: LLM, hidden: Tensor) -> Tensor:
    """What the output head would say of hidden states (…, C) of any layer: logits (…, V)."""
    return llm.model.logits(llm.model.norm(hidden, llm.model.ops)).float()


def ranks(llm: LLM, ids: Sequence[int], answer: str) -> list[int]:
    """What place the answer has after each layer, for the last position of a text.

    answer: its first token counts. Returns for each of h[0] to h[L] how many entries of the
    vocabulary score higher: 0 is the first place.
    """
    token = llm.tokenizer.encode(answer)[0]
    logits = lens(llm, hidden_states(llm, ids)[:, -1])  # (L + 1, V)
    above: list[int] = (logits > logits[:, token, None]).sum(-1).tolist()
    return above


def lens_losses(llm: LLM, layers: Iterable[int], tokens: int = 300) -> list[float]:
    """The mean loss on running English where layer l's hidden state goes straight to the head.

    layers: indices of hidden states, 0 to L; L is the whole model. In nats per token.
    """
    ids = doc_ids(llm, tokens)
    targets = torch.tensor(ids[1:], device=llm.device)
    hidden = hidden_states(llm, ids)[:, :-1]  # (L + 1, T - 1, C)
    cross_entropy = torch.nn.functional.cross_entropy
    return [round(float(cross_entropy(lens(llm, hidden[i]), targets)), 4) for i in layers]


def _all_losses(llm: LLM) -> list[float]:
    return lens_losses(llm, range(llm.config.num_hidden_layers + 1))


def _some_losses(llm: LLM, values: Any) -> Iterable[tuple[str, float, float]]:
    chosen = (3, 22, 25, llm.config.num_hidden_layers)
    for layer, now in zip(chosen, lens_losses(llm, chosen), strict=True):
        yield f"h[{layer}]", values[layer], now


MEASUREMENTS = {"04.lens_losses": Measurement(_all_losses, _some_losses)}
