"""Ways to store a model in fewer bits, by name.

Each makes a second model that shares with the first what it leaves alone. The first one stays as it
is, and the second one is gone when nothing refers to it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.calibration import calibration_ids
from minillm.kernels import reference
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.llm import LLM
from minillm.quantization.int4 import Quantized
from minillm.quantization.int8 import Int8Linear, quantize_absmax
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.quantization.memory import trim
from minillm.quantization.nf4 import nf4_round
from minillm.quantization.scheme import Scheme
from minillm.quantize import quantize_model
from minillm.weights.load import load_transformer

GROUP = 64
INT8 = Scheme("int8", 8, -1, symmetric=True)
# So many rows of an embedding are rounded at a time.
ROWS = 4_096


@dataclass(frozen=True, slots=True)
class Method:
    """A way to store a model.

    make: from a model to a second one that is stored so, or that gives what that one would give.
    """

    title: str
    make: Callable[[LLM], LLM]


class Simulated(nn.Module):
    """A linear layer that rounds its weights each time it is used, and stores nothing new.

    bits: what a weight would take if the rounded ones were stored.
    """

    def __init__(self, linear: nn.Linear, nearest: Callable[[Tensor], Tensor], bits: float) -> None:
        super().__init__()
        self.linear, self.nearest = linear, nearest
        self.nbytes = round(linear.weight.numel() * bits / 8)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C). Returns (..., N) in x's dtype."""
        return F.linear(x, self.nearest(self.linear.weight).to(x.dtype), self.linear.bias)


def rounded_embedding(head: QuantizedLinear) -> nn.Embedding:
    """The rows that the codes of a tied head stand for, so that a few can be looked up."""
    # A few rows at a time, as the steps in between take several times their size.
    parts = (torch.split(x, ROWS) for x in (head.codes, head.scales, head.zeros))
    weight = torch.cat([reference.dequantize(*part) for part in zip(*parts, strict=True)])
    table = nn.Embedding(len(weight), weight.shape[1], _weight=weight).requires_grad_(False)
    table.nbytes = 0  # type: ignore[assignment]  # what would be stored are the head's codes
    return table


class CachedPerToken(LLM):
    """The same model with an INT4 cache whose keys are scaled per token, as values are."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm.model, llm.tokenizer, eos_token_ids=llm.eos_token_ids, name=llm.name)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for this model, `capacity` tokens per row."""
        return QuantizedKVCache(
            self.config,
            batch_size,
            capacity,
            bits=4,
            keys_per="token",
            dtype=self.dtype,
            device=self.device,
        )


def variant(llm: LLM, *, dtype: torch.dtype | None = None, kv_cache: str | None = None) -> LLM:
    """A second model of the same weights, which are shared where the dtype is the same."""
    weights = llm.model.state_dict()
    model = load_transformer(llm.config, weights, device=llm.device, dtype=dtype or llm.dtype)
    return LLM(
        model,
        llm.tokenizer,
        chat_template=llm.chat_template,
        eos_token_ids=llm.eos_token_ids,
        name=llm.name,
        kv_cache=kv_cache,
    )


def with_linears(llm: LLM, change: Callable[[nn.Linear], nn.Module]) -> LLM:
    """A second model in which other layers stand for the linear ones, all but the head."""
    changed = variant(llm)
    for name, linear in quantizable(changed.model).items():
        put(changed.model, name, change(linear))
        trim()
    return changed


def rounded(llm: LLM, scheme: Scheme) -> LLM:
    """A second model whose linear layers hold the nearest codes."""
    return with_linears(llm, lambda linear: QuantizedLinear.from_linear(linear, scheme.round))


def simulated(llm: LLM, nearest: Callable[[Tensor], Tensor], bits: float) -> LLM:
    """A second model whose linear layers round their weights each time; see `Simulated`."""
    return with_linears(llm, lambda linear: Simulated(linear, nearest, bits))


def one_scale(weight: Tensor) -> Tensor:
    """INT8 with a single scale for the whole matrix, as floating point again."""
    codes, scale = quantize_absmax(weight)
    return codes * scale


def with_embedding(llm: LLM) -> LLM:
    """A second model in INT8 per channel, the embedding and the head tied to it included."""
    changed = rounded(llm, INT8)
    parts = [INT8.round(rows) for rows in torch.split(llm.model.embed_tokens.weight, ROWS)]
    codes, scales, zeros = (torch.cat(x) for x in list(zip(*parts, strict=True))[:3])
    head = QuantizedLinear(Quantized(codes, scales, zeros, INT8.bits))
    changed.model.embed_tokens = rounded_embedding(head)
    put(changed.model, "lm_head", head)
    return changed


def on_blocks(llm: LLM) -> LLM:
    """A second model on the blocks of the GGUF file that the first one's weights come from.

    Raises ValueError where there is none.
    """
    if llm.source is None:
        raise ValueError(f"{llm.name} was made in memory; blocks are in a .gguf file")
    model = load_transformer(
        llm.config,
        llm.source.block_weights,
        model_type=str(llm.source.settings["model_type"]),
        device=llm.device,
        dtype=llm.dtype,
        quantize="gguf",
    )
    return LLM(model, llm.tokenizer, eos_token_ids=llm.eos_token_ids, name=llm.name)


def calibrated(llm: LLM, scheme: Scheme) -> LLM:
    """A second model, quantized with the course's calibration text."""
    changed = variant(llm)
    quantize_model(changed.model, scheme, calibration_ids(llm.tokenizer))
    return changed


def _int4(title: str, group_size: int, symmetric: bool) -> Method:
    scheme = Scheme("int4", 4, group_size, symmetric)
    return Method(title, partial(rounded, scheme=scheme))


def _calibrated(title: str, scheme: Scheme) -> Method:
    return Method(title, partial(calibrated, scheme=scheme))


METHODS: Mapping[str, Method] = {
    "float32": Method("float32", variant),
    "bfloat16": Method("bfloat16", partial(variant, dtype=torch.bfloat16)),
    "int8-tensor": Method(
        "INT8, one scale per matrix", partial(simulated, nearest=one_scale, bits=8)
    ),
    "int8-channel": Method("INT8 per channel", partial(rounded, scheme=INT8)),
    "int8-activations": Method(
        "INT8 weights and activations",
        partial(with_linears, change=partial(Int8Linear.from_linear, threshold=None)),
    ),
    "int8-outliers": Method(
        "INT8 of both, outliers apart",
        partial(with_linears, change=Int8Linear.from_linear),
    ),
    "int8-embedding": Method("INT8 weights and embedding", with_embedding),
    "int4-channel": _int4("INT4 per channel, symmetric", -1, symmetric=True),
    "int4-64-symmetric": _int4("INT4 groups of 64, symmetric", GROUP, symmetric=True),
    "int4-64": _int4("INT4 groups of 64", GROUP, symmetric=False),
    "nf4-64": Method(
        "NF4 groups of 64",
        partial(simulated, nearest=partial(nf4_round, group_size=GROUP), bits=4 + 16 / GROUP),
    ),
    "gptq-64": _calibrated("GPTQ groups of 64", Scheme("gptq", 4, GROUP, symmetric=False)),
    "gptq-64-order": _calibrated(
        "GPTQ groups of 64, act order", Scheme("gptq", 4, GROUP, symmetric=False, act_order=True)
    ),
    "awq-64": _calibrated("AWQ groups of 64", Scheme("awq", 4, GROUP, symmetric=False)),
    "gguf": Method("the GGUF file's own blocks", on_blocks),
    "kv-int8": Method("KV cache INT8", partial(variant, kv_cache="int8")),
    "kv-int4": Method("KV cache INT4", partial(variant, kv_cache="int4")),
    "kv-int4-token": Method("KV cache INT4, keys per token", CachedPerToken),
}
"""All methods, by name, in the order of the table."""
