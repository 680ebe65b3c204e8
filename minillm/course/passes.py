"""One forward pass taken apart: wired otherwise, its products counted, held against the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from minillm.course.probes import forward
from minillm.course.timing import timed
from minillm.course.trace import plain_weights, replaced
from minillm.kv_cache.one_pass import OnePass
from minillm.layers.embedding import embed
from minillm.llm import LLM
from minillm.model import Block, Step

Function = Callable[[Tensor], Tensor]
# From the stream, the block's two parts and its two norms to the stream after the block.
Wiring = Callable[[Tensor, Function, Function, Function, Function], Tensor]


@torch.inference_mode()
def run_wired(
    llm: LLM,
    wire: Wiring,
    ids: Sequence[int],
    *,
    last_norm: bool = True,
    add_positions: bool = False,
) -> tuple[Tensor, list[float]]:
    """One pass over a text with the model's own weights and a wiring of the caller's choice.

    wire: `wire(x, attend, mlp, norm1, norm2)`, from the stream (1, T, C) before a block to the one
        after it; the last four are functions of that block.
    last_norm: whether the norm before the output head is applied.
    add_positions: whether 0, 1, 2, … is added to the embedding, as the article writes it.
    Returns logits (T, V), and the largest magnitude in the stream after each block.
    """
    model, ops = llm.model, llm.model.ops
    once = OnePass(torch.arange(len(ids))[None])
    step = Step(once.positions, llm.config.head_dim, llm.device)
    x = embed(torch.tensor([list(ids)], device=llm.device), model.embed_tokens.weight)
    if add_positions:
        x = x + once.positions[..., None].to(x)
    sizes = []
    for layer in model.layers:
        block = cast(Block, layer)
        x = wire(
            x,
            partial(block.self_attn, step=step, cache=once, ops=ops),
            partial(block.mlp, ops=ops),
            partial(block.input_layernorm, ops=ops),
            partial(block.post_attention_layernorm, ops=ops),
        )
        sizes.append(float(x.abs().max()))
    if last_norm:
        x = model.norm(x, ops)
    return model.logits(x[0]).float(), sizes


def no_norm(x: Tensor, attend: Function, mlp: Function, norm1: Function, norm2: Function) -> Tensor:
    """A block without its norms."""
    x = x + attend(x)
    return x + mlp(x)


def one_norm(
    x: Tensor, attend: Function, mlp: Function, norm1: Function, norm2: Function
) -> Tensor:
    """A block whose MLP gets the norm of attention, as if the two were one."""
    x = x + attend(norm1(x))
    return x + mlp(norm1(x))


def wired_loss(llm: LLM, ids: Sequence[int], wire: Wiring, **change: bool) -> float:
    """Mean nats per token of a text, in a pass with this wiring; `change` as of `run_wired`."""
    logits, _ = run_wired(llm, wire, ids, **change)
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])))


def next_pieces(llm: LLM, prompts: Sequence[Sequence[int]], positions: Tensor) -> list[str]:
    """What follows each prompt in a batch that is padded on the left, and how likely it is.

    positions: (B, T), where each token stands, padding included.
    """
    width = max(map(len, prompts))
    padded = torch.tensor([[0] * (width - len(one)) + list(one) for one in prompts])
    logits = llm.model.logits(llm.model(padded, OnePass(positions))[:, -1])
    best = llm.tokenizer.pieces(logits.argmax(-1).tolist())
    shares = logits.softmax(-1).amax(-1).tolist()
    return [f"{piece!r} {share:.2f}" for piece, share in zip(best, shares, strict=True)]


def head_share(llm: LLM, ids: Sequence[int], rows: int) -> float:
    """The share of a pass's time that the output head takes on its last `rows` positions."""
    hidden, pass_s = timed(forward, llm, ids)
    head_s: float = timed(llm.model.logits, hidden[-rows:], repeat=3)[1]
    return head_s / (pass_s + head_s)


def counted_flops(llm: LLM, ids: Sequence[int]) -> int:
    """The FLOPs of one pass up to the last position's logits, as PyTorch counts its products.

    Its counter cannot see into the fused attention kernel, so attention runs in two plain products.
    """
    from torch.utils.flop_counter import FlopCounterMode

    def plain(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return plain_weights(q, k, mask) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

    with FlopCounterMode(display=False) as counter, replaced(llm, attention=plain):
        llm.model.logits(forward(llm, ids)[-1])
    return int(counter.get_total_flops())


def measured_bandwidth(llm: LLM) -> float:
    """Bytes per second at which all weights can be read from memory, the best of seven readings."""
    weights = list(llm.model.parameters())
    _, seconds = timed(lambda: [weight.sum() for weight in weights], repeat=7)
    return sum(weight.nbytes for weight in weights) / seconds


def measured_peak(size: int = 1024) -> float:
    """FLOPs per second of a large square matrix product in float32, the best of nine."""
    square = torch.rand(size, size)
    return 2 * size**3 / timed(torch.mm, square, square, repeat=9)[1]


def doubling(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The length at which the time is first twice that of the shortest, between neighbours.

    The last length where it never is.
    """
    pairs = list(zip(lengths, seconds, strict=True))
    wanted = 2 * seconds[0]
    for (short, before), (long, after) in pairwise(pairs):
        if after >= wanted:
            return short + (long - short) * (wanted - before) / (after - before)
    return lengths[-1]
