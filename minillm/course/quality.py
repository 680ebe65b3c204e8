"""What fewer bits cost: each way to store a model is measured alike, against full precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torch import nn

from minillm.config import read_json
from minillm.course.storage import METHODS
from minillm.eval import Reading, compare, read
from minillm.llm import LLM
from minillm.quantization.linear import quantizable
from minillm.weights.pull import ORIGIN_FILE

__all__ = [
    "METHODS",
    "TOKENS",
    "Claim",
    "Quality",
    "claims",
    "measure",
    "one_window",
    "stored_bytes",
    "weights_origin",
]

TOKENS = 2_048
"""The context of all figures: one window of so many tokens."""

# Two methods, and what the KL of the first must stay below, as a part of the second's.
KL_RATIOS = (
    ("gptq-64", "int4-64", 1.0),
    ("gptq-64-order", "int4-64", 1.0),
    ("awq-64", "int4-64", 1.0),
    ("kv-int4", "kv-int4-token", 1 / 3),
)
KL_LIMITS = {"int8-channel": 0.01}
# So much may the perplexity differ from full precision's, as a part of it.
# Of the GGUF file's blocks: the weights are the same, so it is what 8 bits for inputs cost.
PERPLEXITY_LIMITS = {"int8-channel": 0.01, "gguf": 0.005, "kv-int8": 0.001, "kv-int4": 0.03}


@dataclass(frozen=True, slots=True)
class Quality:
    """What was measured of one method.

    bits: per weight of the linear layers but the head, scales and zero points included.
    cache_bits: per number in the KV cache of the text, alike. model_bytes: of all weights.
    perplexity: on the text. kl: mean over its positions of KL(full precision ‖ this), in nats.
    same_top: share of positions whose most likely token is the same as in full precision.
    """

    name: str
    title: str
    bits: float
    cache_bits: float
    model_bytes: int
    perplexity: float
    kl: float
    same_top: float


def one_window(llm: LLM, ids: Sequence[int]) -> list[Reading]:
    """A text read in a single window; ValueError where the model's context is shorter."""
    return list(read(llm, ids, context=len(ids)))


def measure(llm: LLM, name: str, reference: Sequence[Reading], ids: Sequence[int]) -> Quality:
    """What one method makes of a model.

    llm: in full precision. reference: `one_window(llm, ids)`. ids: a text.
    Raises ValueError for an unknown name, a model that is quantized already, and what the method or
    `read` refuses.
    """
    if name not in METHODS:
        raise ValueError(f"the method is {name!r}; there are {', '.join(METHODS)}")
    linears, method = quantizable(llm.model), METHODS[name]
    if not linears:
        raise ValueError(f"{llm.name} has no linear layers in floating point, so none to quantize")
    changed = method.make(llm)
    divergence = compare(reference, one_window(changed, ids))
    in_linears = sum(stored_bytes(changed.model.get_submodule(linear)) for linear in linears)
    weights = sum(linear.weight.numel() for linear in linears.values())
    cache = changed.new_cache(1, len(ids))
    return Quality(
        name,
        method.title,
        bits=8 * in_linears / weights,
        cache_bits=8 * cache.nbytes / (len(ids) * llm.config.cache_bytes_per_token(1)),
        model_bytes=stored_bytes(changed.model),
        perplexity=divergence.other.perplexity,
        kl=divergence.mean,
        same_top=divergence.same_top,
    )


def stored_bytes(module: nn.Module, counted: set[int] | None = None) -> int:
    """Bytes of the weights of a module: its own count where it has one, else what it holds.

    counted: addresses of tensors that were counted, to which it adds; what modules share counts
    once.
    """
    if isinstance(own := getattr(module, "nbytes", None), int):
        return own
    counted = set() if counted is None else counted
    tensors = chain(module.parameters(recurse=False), module.buffers(recurse=False))
    new = {x.data_ptr(): x.nbytes for x in tensors if x.data_ptr() not in counted}
    counted.update(new)
    return sum(new.values()) + sum(stored_bytes(child, counted) for child in module.children())


@dataclass(frozen=True, slots=True)
class Claim:
    """What must hold between measured methods: a value stays below a limit."""

    text: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.value < self.limit


def claims(rows: Mapping[str, Quality]) -> Iterator[Claim]:
    """What must hold between those methods that were measured, by name in `rows`."""
    for name, other, limit in KL_RATIOS:
        if {name, other} <= rows.keys():
            value = rows[name].kl / rows[other].kl
            yield Claim(f"KL of {name} over that of {other}", value, limit)
    for name, limit in KL_LIMITS.items():
        if name in rows:
            yield Claim(f"KL of {name}", rows[name].kl, limit)
    for name, limit in PERPLEXITY_LIMITS.items():
        if {name, "float32"} <= rows.keys():
            value = abs(rows[name].perplexity / rows["float32"].perplexity - 1)
            yield Claim(f"perplexity of {name}, relative change", value, limit)


def weights_origin(llm: LLM) -> str:
    """Where a model's weights come from, as its origin.json says, else its folder or file."""
    if llm.source is None:
        return "made in memory"
    folder = llm.source.path if llm.source.path.is_dir() else llm.source.path.parent
    note = folder / ORIGIN_FILE
    return str(read_json(note)["source"]) if note.is_file() else llm.source.path.name
