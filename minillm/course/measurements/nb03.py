"""What notebook 03 measures ahead of time: every head removed, every edge cut, every place patched.

The live cells of the notebook call the same functions at a few points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from torch import Tensor

from minillm.course.precomputed import Measurement
from minillm.course.probes import (
    CAPITALS,
    capital_ids,
    capitals,
    copy_loss,
    doc_ids,
    doc_loss,
    forward,
)
from minillm.course.trace import cut_edge, hidden_states, patched, replaced, without
from minillm.layers.attention import causal_mask
from minillm.llm import LLM
from minillm.model import Block

COUNTRY, LAST = 3, -1  # places in `The capital of X is`
SEEDS = range(2)


def without_head(llm: LLM, layer: int, head: int) -> dict[str, float]:
    """COPY (2 seeds) and DOC (300 tokens), in nats, of the model without one head."""
    with without(llm, heads=[(layer, head)]):
        return {"copy": round(copy_loss(llm, SEEDS), 3), "doc": round(doc_loss(llm), 3)}


def head_map(llm: LLM) -> dict[str, Any]:
    """COPY and DOC after removing each head in turn, (L, H) each, and of the whole model."""
    layers, heads = llm.config.num_hidden_layers, llm.config.num_attention_heads
    found = [[without_head(llm, layer, head) for head in range(heads)] for layer in range(layers)]
    return {
        "full": {"copy": round(copy_loss(llm, SEEDS), 3), "doc": round(doc_loss(llm), 3)},
        "copy": [[each["copy"] for each in row] for row in found],
        "doc": [[each["doc"] for each in row] for row in found],
    }


def _head_map_sample(llm: LLM, values: Any) -> Iterable[tuple[str, float, float]]:
    for layer, head in [(16, 0), (18, 6), (4, 7)]:
        for probe, now in without_head(llm, layer, head).items():
            yield f"{probe} without head {layer}.{head}", values[probe][layer][head], now


def prefer(llm: LLM, ids: Sequence[int], one: int, other: int) -> float:
    """How much higher the last position scores token `one` than `other`: difference of logits."""
    logits = llm.model.logits(forward(llm, ids)[-1])
    return float(logits[one] - logits[other])


def patching(
    llm: LLM, layers: Iterable[int] | None = None, positions: Iterable[int] = range(5)
) -> dict[str, Any]:
    """Italy's hidden state put into the France prompt, at one layer and position at a time.

    Returns the difference of the logits of ` Rome` and ` Paris` for both prompts as they are, and
    for each layer the list over the positions.
    """
    layers = range(llm.config.num_hidden_layers) if layers is None else layers
    france, italy = capital_ids(llm, " France"), capital_ids(llm, " Italy")
    rome, paris = (llm.tokenizer.encode(CAPITALS[name])[0] for name in (" Italy", " France"))
    states = hidden_states(llm, italy)
    found: dict[int, list[float]] = {}
    for layer in layers:
        found[layer] = []
        for position in positions:
            with patched(llm, layer, position, states[layer, position]):
                found[layer].append(round(prefer(llm, france, rome, paris), 3))
    return {
        "france": round(prefer(llm, france, rome, paris), 3),
        "italy": round(prefer(llm, italy, rome, paris), 3),
        "patched": found,
    }


def _patching_full(llm: LLM) -> dict[str, Any]:
    found = patching(llm)
    return {**found, "patched": list(found["patched"].values())}


def _patching_sample(llm: LLM, values: Any) -> Iterable[tuple[str, float, float]]:
    now = patching(llm, layers=[0, 23, 24])
    yield "France", values["france"], now["france"]
    for layer, row in now["patched"].items():
        for position, difference in enumerate(row):
            yield f"layer {layer}, {position}", values["patched"][layer][position], difference


@contextmanager
def _hooks(
    llm: LLM, part: str, layers: Iterable[int], hook_of: Callable[[int], Any]
) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in layers:
            module = getattr(llm.model.layers[layer], part)
            stack.callback(module.register_forward_hook(hook_of(layer)).remove)
        yield


def swapped(llm: LLM, part: str, layers: Sequence[int], position: int) -> float:
    """The France prompt with Italy's outputs of some layers' attention or MLP at one position.

    part: "self_attn" or "mlp". Returns the logit of ` Rome` minus that of ` Paris`.
    """
    france, italy = capital_ids(llm, " France"), capital_ids(llm, " Italy")
    rome, paris = (llm.tokenizer.encode(CAPITALS[name])[0] for name in (" Italy", " France"))
    found: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        return lambda _, args, out: found.update({layer: out[0, position].clone()})

    def put(layer: int) -> Any:
        def hook(_: object, args: object, out: Tensor) -> Tensor:
            out = out.clone()  # (B, T, C)
            out[:, position] = found[layer]
            return out

        return hook

    with _hooks(llm, part, layers, keep):
        forward(llm, italy)
    with _hooks(llm, part, layers, put):
        return prefer(llm, france, rome, paris)


def largest_score(llm: LLM) -> float:
    """The largest score q·k / sqrt(D) that any head gives to a key it may see, on DOC."""
    found = []
    original = llm.model.ops.attention

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        wide = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # (B, H, S, D)
        scores = q @ wide.transpose(-1, -2) / math.sqrt(q.shape[-1])
        seen = causal_mask(q.shape[2], k.shape[2])
        found.append(float(scores.masked_fill(~seen, -math.inf).max()))
        return original(q, k, v, mask)

    with replaced(llm, attention=spy):
        forward(llm, doc_ids(llm))
    return max(found)


@contextmanager
def without_output_projection(llm: LLM) -> Iterator[LLM]:
    """The model in which the heads' joined outputs are added to the stream as they are."""
    with ExitStack() as stack:
        for block in cast(Iterable[Block], llm.model.layers):
            hook = block.self_attn.o_proj.register_forward_hook(lambda _, args, out: args[0])
            stack.callback(hook.remove)
        yield llm


@contextmanager
def without_residual(llm: LLM) -> Iterator[LLM]:
    """The model whose blocks pass on only what attention and then the MLP give.

    A block computes x + attention(…), so its attention gives attention(…) - x here; likewise the
    MLP.
    """
    entered: dict[int, Tensor] = {}

    def enter(layer: int) -> Any:
        return lambda _, args: entered.update({layer: args[0]})

    def subtract(layer: int) -> Any:
        def hook(_: object, args: object, out: Tensor) -> Tensor:
            before, entered[layer] = entered[layer], out
            return out - before

        return hook

    layers = range(llm.config.num_hidden_layers)
    with (
        ExitStack() as stack,
        _hooks(llm, "self_attn", layers, subtract),
        _hooks(llm, "mlp", layers, subtract),
    ):
        for layer in layers:
            block = llm.model.layers[layer]
            stack.callback(block.register_forward_pre_hook(enter(layer)).remove)
        yield llm


def hidden_country(llm: LLM, layer: int) -> tuple[int, float]:
    """CAPITALS when, in one layer, the last position cannot see the country."""
    with cut_edge(llm, layer, LAST, COUNTRY):
        return capitals(llm)


def cut_edges(llm: LLM) -> dict[str, Any]:
    """CAPITALS with the edge from the last position to the country cut in each layer in turn."""
    found = [hidden_country(llm, layer) for layer in range(llm.config.num_hidden_layers)]
    full = capitals(llm)
    return {
        "full": [full[0], round(full[1], 4)],
        "right": [right for right, _ in found],
        "probability": [round(probability, 4) for _, probability in found],
    }


def _cut_edges_sample(llm: LLM, values: Any) -> Iterable[tuple[str, float, float]]:
    for layer in (17, 23):
        right, probability = hidden_country(llm, layer)
        yield f"right answers, layer {layer}", values["right"][layer], right
        yield f"probability, layer {layer}", values["probability"][layer], probability


MEASUREMENTS = {
    "03.cut_edges": Measurement(cut_edges, _cut_edges_sample, tolerance=0.01),
    "03.head_map": Measurement(head_map, _head_map_sample, tolerance=0.03),
    "03.patching": Measurement(_patching_full, _patching_sample, tolerance=0.05),
}
