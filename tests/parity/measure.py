"""What the parity tests and the parity table measure: logits of both sides, and their difference.

The difference of two tensors is max |a - b| / max |b|: the largest error over the largest logit.
"""

import functools
from collections.abc import Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from minillm.config import read_json
from minillm.generate import prefill
from minillm.hf_config import read_config
from minillm.kv_cache import new_cache
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.model import Transformer
from minillm.weights.gguf import open_gguf
from minillm.weights.load import load_transformer
from minillm.weights.safetensors import open_weights
from tests.parity.models import CASES, TRAINED, saved, theirs, token_ids
from tests.weights.gguf_writer import write_gguf

LENGTH = 40  # tokens: past the window of 9 and the original RoPE length of 16


def difference(found: Tensor, expected: Tensor) -> float:
    """max |found - expected| / max |expected|, in float32."""
    expected = expected.float()
    return float((found.float() - expected).abs().max() / expected.abs().max())


def ours(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """Our model of a folder."""
    settings = read_json(folder / "config.json")
    weights, model_type = open_weights(folder), settings["model_type"]
    return load_transformer(read_config(settings), weights, model_type=model_type, dtype=dtype)


def _forget(model: Any, ids: Tensor) -> None:
    """Undo what a long text did: transformers keeps dynamic frequencies until a short one comes."""
    model(ids[:, :1], use_cache=False)


def reference(model: Any, ids: Tensor) -> Tensor:
    """transformers' logits (B, T, V) of whole texts, without a cache."""
    _forget(model, ids)
    logits: Tensor = model(ids, use_cache=False).logits
    return logits


def reference_steps(model: Any, ids: Tensor, prompt: int) -> Tensor:
    """transformers' logits (B, T - prompt + 1, V) over its own cache: a prompt, then single tokens.

    They differ from `reference` where the rotation depends on the length so far.
    """
    _forget(model, ids)
    # Renamed in the course of version 5.
    name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
    cache = {name: DynamicCache(config=model.config)}
    steps = [ids[:, :prompt], *ids[:, prompt:].split(1, dim=1)]
    return torch.stack([model(step, **cache).logits[:, -1] for step in steps], dim=1)


def whole(model: Transformer, ids: Tensor, cache: KVCache) -> Tensor:
    """Our logits (B, T, V) in one pass."""
    return model.logits(model(ids, cache))


def chunked(model: Transformer, ids: Tensor, cache: KVCache, size: int) -> Tensor:
    """Our logits (B, T, V) in chunks of `size` tokens, each told the length of the whole."""
    rows, length = ids.shape
    lengths = torch.full((rows,), length)
    chunks = ids.split(size, dim=1)
    hidden = [model(chunk, cache, [chunk.shape[1]] * rows, lengths) for chunk in chunks]
    return model.logits(torch.cat(hidden, dim=1))


def stepwise(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    more: Tensor,
    cache: KVCache,
    chunk_size: int | None = None,
) -> Tensor:
    """Our logits (B, N + 1, V): prompts in chunks, then N tokens (B, N) one at a time."""
    found = [prefill(model, prompts, cache, chunk_size)]
    found += [model.logits(model(step, cache)[:, -1]) for step in more.split(1, dim=1)]
    return torch.stack(found, dim=1)


class Errors(NamedTuple):
    """How far logits are from transformers' in float32: the worst, and as a whole.

    largest: max |a - b| / max |b|. rms: root mean square of a - b over that of b.
    """

    largest: float
    rms: float

    @classmethod
    def of(cls, found: Tensor, expected: Tensor) -> "Errors":
        """The errors of one tensor."""
        wrong = (found.double() - expected.double()).square().mean()
        rms = float((wrong / expected.double().square().mean()).sqrt())
        return cls(difference(found, expected), rms)

    def worst(self, other: "Errors") -> "Errors":
        """The larger of each."""
        return Errors(max(self.largest, other.largest), max(self.rms, other.rms))


FLOAT32_BOUND = 1e-4


def within(found: Errors, theirs: Errors, dtype: torch.dtype) -> bool:
    """Whether our errors are small enough: an absolute bound in float32, transformers' own below.

    In bfloat16 both sides round at every step, in other places. The root mean square must be within
    1.5 times theirs + 1/512, and the largest difference, one number out of thousands, within twice
    theirs + 1/32. (A router that picks another expert at a near tie moves all that follows.)
    """
    if dtype == torch.float32:
        return found.largest < FLOAT32_BOUND
    return found.rms <= 1.5 * theirs.rms + 1 / 512 and found.largest <= 2 * theirs.largest + 1 / 32


WAYS = ("forward", "chunked", "decode", "GGUF")
CHUNKS = (7, 9, 17)


class Measured(NamedTuple):
    """One tiny model in one dtype: our errors by way, and those of transformers in that dtype.

    A way is missing where a GGUF file cannot say what the model is.
    """

    dtype: torch.dtype
    ours: dict[str, Errors]
    theirs: Errors

    @property
    def out_of_bounds(self) -> list[str]:
        """The ways that are too far off."""
        return [
            way for way, found in self.ours.items() if not within(found, self.theirs, self.dtype)
        ]


def measured(name: str, dtype: torch.dtype) -> Measured:
    """Run a case in every way; the checkpoint is stored in `dtype`, so that only arithmetic counts.

    Every way is compared with one float32 pass of transformers over the whole text, or with its
    float32 steps where stored keys stay as they were turned.
    """
    folder, case, ids = saved(name, dtype), CASES[name], token_ids(8, LENGTH)
    exact, model = theirs(folder), ours(folder, dtype)
    expected = reference(exact, ids)
    start = TRAINED + 1 if case.trained else 1
    steps = reference_steps(exact, ids, start) if case.dynamic else expected[:, start - 1 :]
    prompts, more = ids[:, :start].tolist(), ids[:, start:]
    found: dict[str, list[Errors]] = {way: [] for way in WAYS}
    for kind in (DenseKVCache, new_cache) if case.windowed else (DenseKVCache,):
        fresh = functools.partial(kind, model.config, *ids.shape, dtype=dtype)
        found["forward"].append(Errors.of(whole(model, ids, fresh()), expected))
        for size in CHUNKS:
            found["chunked"].append(Errors.of(chunked(model, ids, fresh(), size), expected))
        found["decode"].append(Errors.of(stepwise(model, prompts, more, fresh()), steps))
    with suppress(NotInGGUFError):
        from_gguf = ours_of_gguf(name, dtype)
        cache = new_cache(from_gguf.config, *ids.shape, dtype=dtype)
        found["GGUF"].append(Errors.of(whole(from_gguf, ids, cache), expected))
    worst = {way: functools.reduce(Errors.worst, each) for way, each in found.items() if each}
    return Measured(dtype, worst, Errors.of(reference(theirs(folder, dtype), ids), expected))


class NotInGGUFError(ValueError):
    """What the model is cannot be said in a GGUF file."""


def ours_of_gguf(name: str, dtype: torch.dtype) -> Transformer:
    """Our model of a case, by way of a GGUF file in float32."""
    file = saved(name).with_suffix(".gguf")
    try:
        write_gguf(saved(name), file)
    except ValueError as error:
        raise NotInGGUFError(str(error)) from error
    found = open_gguf(file)
    return load_transformer(
        read_config(found.settings),
        found.tensors,
        model_type=found.settings["model_type"],
        dtype=dtype,
    )
