"""What single layers are given as a text runs through a model: inputs of linears, keys, values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.course.probes import forward
from minillm.kv_cache.one_pass import OnePass
from minillm.llm import LLM
from minillm.quantization.statistics import Statistics


def layer_inputs(llm: LLM, name: str, ids: Sequence[int]) -> Tensor:
    """What one linear layer is given while a text runs through the model, (T, C).

    name: as in `llm.model.named_modules()`, such as "layers.4.self_attn.q_proj".
    """
    found: list[Tensor] = []

    def hook(_: object, args: tuple[Tensor, ...]) -> None:
        found.append(args[0][0].clone())

    handle: Any = llm.model.get_submodule(name).register_forward_pre_hook(hook)
    try:
        forward(llm, ids)
    finally:
        handle.remove()
    return found[0]


def input_statistics(llm: LLM, name: str, texts: Iterable[Sequence[int]]) -> Statistics:
    """Mean x·xᵀ and mean |x| of what one linear layer is given on some texts."""
    parts = [layer_inputs(llm, name, text) for text in texts]
    if not parts:
        raise ValueError("there is no text; at least one list of token ids is needed")
    statistics = Statistics(parts[0].shape[1])
    for part in parts:
        statistics.add(part)
    return statistics


class _Recorder(OnePass):
    """Keeps what every layer hands to its cache."""

    def __init__(self, tokens: int) -> None:
        super().__init__(torch.arange(tokens)[None])
        self.seen: list[Tensor] = []

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.seen.append(torch.cat([k, v]))  # (2, K, T, D)
        return super().update(layer, k, v)


@torch.inference_mode()
def keys_and_values(llm: LLM, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The keys and the values that a cache would store for a text, (L, K, T, D) each."""
    recorder = _Recorder(len(ids))
    llm.model(torch.tensor([list(ids)], device=llm.device), recorder)
    keys, values = torch.stack(recorder.seen, dim=1)  # (L, K, T, D) each
    return keys, values
