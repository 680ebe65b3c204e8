"""Instruments: look inside a forward pass of a real model, and change one thing at a time.

Looking: `hidden_states`, `attention_weights`. Changing, each as a `with` block that leaves the
model as it was: `replaced` (an op), `with_rope` (another RoPE configuration), `without` (heads,
attention or MLP layers), `cut_edge` (one query may not see one key in one layer), `patched` (one
hidden state from another run).

Layers and heads count from 0. The hidden state h[l] is the input of block l; h[L] goes to the last
norm.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from minillm.config import RopeConfig
from minillm.course.probes import forward
from minillm.layers.attention import causal_mask
from minillm.llm import LLM
from minillm.model import Block


@contextmanager
def replaced(llm: LLM, *, layers: Collection[int] | None = None, **ops: Any) -> Iterator[LLM]:
    """The model with other ops inside the block: `replaced(llm, rope=lambda x, cos, sin: x)`.

    layers: only in these; everywhere unless given. ops: attention, rms_norm, rope or swiglu, as in
    `minillm.ops.Ops`. Nothing is checked; to let a function of yours run the model for good, `use`
    checks it first.
    """
    before = llm.model.ops

    def hook(_: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, step, cache, block_ops = args
        return x, step, cache, replace(block_ops, **ops)

    with ExitStack() as stack:
        if layers is None:
            llm.model.ops = replace(before, **ops)
        for layer in layers or ():
            stack.callback(llm.model.layers[layer].register_forward_pre_hook(hook).remove)
        try:
            yield llm
        finally:
            llm.model.ops = before


@contextmanager
def with_rope(llm: LLM, rope: RopeConfig | None) -> Iterator[LLM]:
    """The model whose layers all turn queries and keys as `rope` says; None turns nothing.

    The weights stay those that were trained with the model's own `llm.config.layers[0].rope`.
    """
    modules = [cast(Block, block).self_attn for block in llm.model.layers]
    before = [module.layer for module in modules]
    for module in modules:
        module.layer = replace(module.layer, rope=rope)
    try:
        yield llm
    finally:
        for module, layer in zip(modules, before, strict=True):
            module.layer = layer


def hidden_states(llm: LLM, ids: Sequence[int]) -> Tensor:
    """The residual stream: (L + 1, T, C), the input of each block and what follows the last."""
    found: list[Tensor] = []
    with ExitStack() as stack:
        for block in llm.model.layers:
            hook = block.register_forward_pre_hook(lambda _, args: found.append(args[0][0].clone()))
            stack.callback(hook.remove)
        last = llm.model.layers[-1].register_forward_hook(
            lambda _, args, out: found.append(out[0].clone())
        )
        stack.callback(last.remove)
        forward(llm, ids)
    return torch.stack(found)


def plain_weights(q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The weights that a fused kernel never writes down: softmax(q · kᵀ / sqrt(D)).

    q: (B, H, T, D). k: (B, K, S, D). mask: as in `minillm.layers.attention.attention`.
    Returns (B, H, T, S).
    """
    H, D = q.shape[1], q.shape[3]
    wide = k.repeat_interleave(H // k.shape[1], dim=1)  # (B, H, S, D)
    scores = q @ wide.transpose(-1, -2) / math.sqrt(D)  # (B, H, T, S)
    seen = causal_mask(q.shape[2], k.shape[2]) if mask is None else mask
    return scores.masked_fill(~seen, -math.inf).softmax(-1)


def attention_weights(llm: LLM, ids: Sequence[int]) -> Tensor:
    """How much each token looks at each: (L, H, T, S), every row summing to 1.

    4·L·H·T² bytes: 7 MB for SmolLM2 and 80 tokens.
    """
    found: list[Tensor] = []
    original = llm.model.ops.attention

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        found.append(plain_weights(q, k, mask)[0].float())
        return original(q, k, v, mask)

    with replaced(llm, attention=spy):
        forward(llm, ids)
    return torch.stack(found)


@contextmanager
def without(
    llm: LLM,
    *,
    heads: Collection[tuple[int, int]] = (),
    attention: Collection[int] = (),
    mlp: Collection[int] = (),
    positions: Collection[int] | None = None,
) -> Iterator[LLM]:
    """The model with parts of it set to zero inside the block.

    heads: (layer, head) pairs, whose output does not reach the layer's output projection.
    attention, mlp: layers whose attention or MLP adds nothing to the residual stream.
    positions: only at these positions of the text; everywhere unless given.
    """
    at = slice(None) if positions is None else torch.tensor(list(positions))
    size = llm.config.head_dim

    def zero_heads(chosen: list[int]) -> Any:
        def hook(_: object, args: tuple[Tensor]) -> tuple[Tensor]:
            x = args[0].clone()  # (B, T, H·D)
            for head in chosen:
                x[:, at, head * size : (head + 1) * size] = 0
            return (x,)

        return hook

    def zero_all(_: object, args: object, out: Tensor) -> Tensor:
        out = out.clone()  # (B, T, C)
        out[:, at] = 0
        return out

    with ExitStack() as stack:
        for index, layer in enumerate(cast(Iterable[Block], llm.model.layers)):
            if chosen := [head for at_layer, head in heads if at_layer == index]:
                hook = layer.self_attn.o_proj.register_forward_pre_hook(zero_heads(chosen))
                stack.callback(hook.remove)
            if index in attention:
                stack.callback(layer.self_attn.register_forward_hook(zero_all).remove)
            if index in mlp:
                stack.callback(layer.mlp.register_forward_hook(zero_all).remove)
        yield llm


@contextmanager
def cut_edge(llm: LLM, layer: int, query: int, key: int) -> Iterator[LLM]:
    """The model in which, in one layer, the token at `query` cannot see the one at `key`.

    Positions within the text; -1 is the last one. The other weights of that row grow to fill the
    gap, since a softmax sums to 1.
    """
    original = llm.model.ops.attention

    def cut(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        seen = causal_mask(q.shape[2], k.shape[2]) if mask is None else mask.clone()
        seen[..., query, key] = False
        return original(q, k, v, seen)

    with replaced(llm, layers=[layer], attention=cut):
        yield llm


@contextmanager
def patched(llm: LLM, layer: int, position: int, vector: Tensor) -> Iterator[LLM]:
    """The model in which the hidden state h[layer] at one position is replaced.

    vector: (C,), as a rule a row of `hidden_states` of another text. layer: 0 to L - 1.
    """

    def hook(_: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x = args[0].clone()  # (B, T, C)
        x[:, position] = vector
        return (x, *args[1:])

    handle = llm.model.layers[layer].register_forward_pre_hook(hook)
    try:
        yield llm
    finally:
        handle.remove()
