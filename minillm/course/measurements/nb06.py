"""Notebook 06: grouped heads, windows, sinks and streams, on the real model.

The functions are the notebook's instruments as well: a model with windows or with other heads that
shares its weights with the one it was made from, and the losses that it has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.course.precomputed import Measurement
from minillm.course.probes import COPY_TOKENS, doc_ids, doc_loss, losses
from minillm.gqa import to_grouped
from minillm.kv_cache.base import KVCache
from minillm.llm import LLM
from minillm.model import Transformer
from minillm.weights.load import load_transformer

TOKENS = 700
WINDOWS = (16, 32, 64, 128, 256, 512)
SINKS = (0, 1, 4)
COPY_DISTANCE = 140
COPY_WINDOWS = (32, 64, 96, 120, 130, 136, 138, 139, 140, 141, 142, 150, 170)
STREAM_TOKENS, STREAM_WINDOW, STREAM_SINKS, BUCKET = 10_000, 256, 4, 250


def _like(llm: LLM, model: Transformer, name: str) -> LLM:
    return LLM(
        model,
        llm.tokenizer,
        chat_template=llm.chat_template,
        eos_token_ids=llm.eos_token_ids,
        name=name,
    )


def windowed(llm: LLM, window: int, sinks: int = 0, global_every: int | None = None) -> LLM:
    """The same model, weights shared, whose layers see a window; see `ModelConfig.with_window`."""
    config = llm.config.with_window(window, sinks=sinks, global_every=global_every)
    weights = llm.model.state_dict()
    model = load_transformer(config, weights, device=llm.device, dtype=llm.dtype)
    return _like(llm, model, f"{llm.name}, window {window}, sinks {sinks}")


def grouped(llm: LLM, num_kv_heads: int, layers: Collection[int] | None = None) -> LLM:
    """The same model with other key/value heads, the other weights shared; see `to_grouped`."""
    model = to_grouped(llm.model, num_kv_heads, layers)
    return _like(llm, model, f"{llm.name}, {num_kv_heads} key/value heads")


def perplexity(llm: LLM, ids: Sequence[int]) -> float:
    """The exponential of the mean loss per token: among so many tokens the model wavers."""
    return math.exp(losses(llm, ids).mean())


def distant_copy_ids(llm: LLM, seed: int, distance: int = COPY_DISTANCE) -> list[int]:
    """40 random tokens, running English, and the 40 again, `distance` tokens after the first."""
    generator = torch.Generator().manual_seed(seed)
    first: list[int] = torch.randint(1_000, 20_000, (COPY_TOKENS,), generator=generator).tolist()
    return first + doc_ids(llm, distance - COPY_TOKENS) + first


def distant_copy_loss(llm: LLM, seeds: Collection[int] = range(4)) -> float:
    """The mean loss on the second copy but its first token, which nothing announces."""
    found = [losses(llm, distant_copy_ids(llm, seed))[1 - COPY_TOKENS :].mean() for seed in seeds]
    return float(torch.stack(found).mean())


@torch.inference_mode()
def stream_losses(llm: LLM, ids: Sequence[int], cache: KVCache, chunk: int = 256) -> Tensor:
    """The loss on each token but the first of a long text that runs through a cache in chunks."""
    parts: list[Tensor] = []
    last = torch.empty(0)
    for start in range(0, len(ids), chunk):
        new = torch.tensor(ids[start : start + chunk], device=llm.device)
        hidden = llm.model(new[None], cache)[0]  # (T, C)
        if start:  # the last position of the chunk before predicts this one's first token
            before, targets = torch.cat([last, hidden[:-1]]), new
        else:
            before, targets = hidden[:-1], new[1:]
        logits = llm.model.logits(before).float()
        parts.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
        last = hidden[-1:]
    return torch.cat(parts)


def stream_ids(llm: LLM, tokens: int = STREAM_TOKENS) -> list[int]:
    """The corpus over and over."""
    corpus = doc_ids(llm, tokens)
    return (corpus * (tokens // len(corpus) + 1))[:tokens]


def buckets(values: Tensor, size: int = BUCKET) -> list[float]:
    """Means of `size` values each, the last of what is left."""
    return [round(float(part.mean()), 4) for part in torch.split(values, size)]


def stream(llm: LLM, window: int | None, sinks: int, tokens: int = STREAM_TOKENS) -> list[float]:
    """The loss along a long text, in buckets: with a window, or with all tokens kept."""
    model = llm if window is None else windowed(llm, window, sinks)
    capacity = tokens if window is None else window + sinks
    return buckets(stream_losses(model, stream_ids(llm, tokens), model.new_cache(1, capacity)))


# --- What is stored


def _window(llm: LLM) -> Any:
    ids = doc_ids(llm, TOKENS)
    rows = {
        str(sinks): [round(perplexity(windowed(llm, window, sinks), ids), 3) for window in WINDOWS]
        for sinks in SINKS
    }
    return {"windows": list(WINDOWS), "full": round(perplexity(llm, ids), 3), "perplexity": rows}


def _window_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    ids = doc_ids(llm, TOKENS)
    for window, sinks in ((64, 0), (128, 1)):
        before = stored["perplexity"][str(sinks)][stored["windows"].index(window)]
        yield f"{window}, {sinks}", before, perplexity(windowed(llm, window, sinks), ids)


def _mixed(llm: LLM) -> Any:
    ids = doc_ids(llm, TOKENS)
    return [
        {
            "global_every": every,
            "sinks": sinks,
            "perplexity": round(perplexity(windowed(llm, 64, sinks, every), ids), 3),
        }
        for every in (None, 6, 2)
        for sinks in (0, 1)
    ]


def _mixed_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    row = stored[-1]
    model = windowed(llm, 64, row["sinks"], row["global_every"])
    yield "every second layer", row["perplexity"], perplexity(model, doc_ids(llm, TOKENS))


def _copy(llm: LLM) -> Any:
    found = [round(distant_copy_loss(windowed(llm, window, 1)), 3) for window in COPY_WINDOWS]
    return {
        "windows": list(COPY_WINDOWS),
        "loss": found,
        "full": round(distant_copy_loss(llm), 3),
    }


def _copy_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    for window in (139, 141):
        before = stored["loss"][stored["windows"].index(window)]
        yield f"window {window}", before, distant_copy_loss(windowed(llm, window, 1))


def _pooling(llm: LLM) -> Any:
    L = llm.config.num_hidden_layers
    return {
        "full": round(doc_loss(llm), 4),
        "all": round(doc_loss(grouped(llm, 1)), 4),
        "last ten": round(doc_loss(grouped(llm, 1, range(L - 10, L))), 4),
        "one": [round(doc_loss(grouped(llm, 1, [layer])), 4) for layer in range(L)],
    }


def _pooling_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    yield "all", stored["all"], doc_loss(grouped(llm, 1))
    yield "layer 1", stored["one"][1], doc_loss(grouped(llm, 1, [1]))


def _stream(llm: LLM) -> Any:
    return {
        "tokens": STREAM_TOKENS,
        "bucket": BUCKET,
        "window": STREAM_WINDOW,
        "dense": stream(llm, None, 0),
        "sinks 0": stream(llm, STREAM_WINDOW, 0),
        "sinks 4": stream(llm, STREAM_WINDOW, STREAM_SINKS),
    }


def _stream_sample(llm: LLM, stored: Any) -> Iterator[tuple[str, float, float]]:
    found = stream(llm, STREAM_WINDOW, STREAM_SINKS, tokens=1_001)
    for i in range(4):
        yield f"bucket {i}", stored["sinks 4"][i], found[i]


MEASUREMENTS = {
    "06.copy": Measurement(_copy, _copy_sample, tolerance=0.02),
    "06.mixed": Measurement(_mixed, _mixed_sample, tolerance=0.02),
    "06.pooling": Measurement(_pooling, _pooling_sample, tolerance=0.01),
    "06.stream": Measurement(_stream, _stream_sample, tolerance=0.01),
    "06.window": Measurement(_window, _window_sample, tolerance=0.02),
}
