"""What each way to store a model does for the time: plain PyTorch, and the kernel that reads it.

Plain PyTorch turns codes into floats again at each step. The C++ engine reads the codes, and rounds
what they are multiplied with to 8 bits; see `minillm.engines.cpu`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.bench import Measurement, measure, minillm_engine
from minillm.course.storage import GROUP, METHODS, Method, variant, with_linears
from minillm.engines import open_engine
from minillm.engines.base import Accelerated, Engine, Unsupported
from minillm.kernels import reference
from minillm.llm import LLM
from minillm.quantization.int4 import pack_nibbles, split_groups, stored_scales
from minillm.quantization.linear import CodedLinear, QuantizedLinear
from minillm.quantization.nf4 import nf4_levels, nf4_round
from minillm.quantization.scheme import Scheme

PROMPT, NEW_TOKENS = 42, 12
"""Decode: so many tokens are written after a prompt of that length; the first does not count."""
LONG_PROMPT = 300
"""Prefill: tokens that are read at once."""
RUNS = 3
NOTE = """\
none: no kernel reads such weights. same: the engine leaves that phase to PyTorch.
One scale per matrix, GPTQ and AWQ: timed on codes that are stored alike."""

INT4 = Scheme("int4", 4, GROUP, symmetric=False)
# Stored alike and so read alike, whatever the codes are: no calibration is needed for the time, and
# the one scale of a matrix may stand in every row.
ALIKE = {"int8-tensor": "int8-channel", "gptq-64": "int4-64", "awq-64": "int4-64"}


@dataclass(frozen=True, slots=True)
class Speed:
    """One method. All but name and kernel in tokens per second, medians of several runs.

    decode, prefill: with PyTorch's modules. kernel: the engine that reads these weights, or why
    there is none. decode_kernel, prefill_kernel: with it; None where it leaves that to the modules.
    """

    name: str
    decode: float
    prefill: float
    kernel: str
    decode_kernel: float | None
    prefill_kernel: float | None


class NF4Linear(CodedLinear):
    """A linear layer on NF4 codes, two in a byte, with a scale per group of 64, in plain PyTorch.

    codes: (N, C/2), uint8: of `nf4_levels`. scales: (N, C/64), float16.
    """

    def __init__(self, linear: nn.Linear) -> None:
        levels = nf4_levels()
        groups = split_groups(nf4_round(linear.weight.detach(), GROUP), GROUP)  # (N, G, 64)
        scales = stored_scales(groups.abs().amax(-1))  # the largest weight has the level 1 or -1
        codes = torch.bucketize(groups / scales[..., None].float(), (levels[:-1] + levels[1:]) / 2)
        packed = pack_nibbles(codes.flatten(1).to(torch.uint8))
        super().__init__(codes=packed, scales=scales, bias=linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C). Returns (..., N) in x's dtype."""
        codes = reference.unpack_nibbles(self.codes).view(*self.scales.shape, GROUP)
        weight = nf4_levels()[codes.int()] * self.scales[..., None].float()
        return F.linear(x, weight.flatten(1).to(x.dtype), self.bias)


def _with_order(llm: LLM) -> LLM:
    """INT4 whose columns have an order of their own, as GPTQ's activation order makes them."""

    def ordered(linear: nn.Linear) -> QuantizedLinear:
        order = torch.arange(linear.in_features)
        return QuantizedLinear.from_linear(linear, lambda w: INT4.round(w)._replace(order=order))

    return with_linears(llm, ordered)


FORMS: Mapping[str, Method] = {name: m for name, m in METHODS.items() if name not in ALIKE} | {
    "nf4-64": Method(METHODS["nf4-64"].title, partial(with_linears, change=NF4Linear)),
    "gptq-64-order": Method(METHODS["gptq-64-order"].title, _with_order),
    "float16": Method("float16", partial(variant, dtype=torch.float16)),
}
"""What is timed, by name: each way to store weights once, and one that is not in the table."""


def with_kernel(llm: LLM) -> tuple[LLM, Engine]:
    """The same model, run by the C++ engine; `Unsupported` says why it cannot be."""
    fast, engine = copy(llm), open_engine("cpu", llm.model)
    fast.model = Accelerated(llm.model, engine)
    return fast, engine


@torch.inference_mode()
def runs_itself(llm: LLM, engine: Engine, tokens: int) -> bool:
    """Whether the engine runs a step of so many tokens, and does not leave it to the modules."""
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    return engine.forward(ids, llm.new_cache(1, tokens)) is not None


def speeds(
    llm: LLM,
    names: Collection[str] = tuple(FORMS),
    *,
    prompt: int = PROMPT,
    new_tokens: int = NEW_TOKENS,
    long_prompt: int = LONG_PROMPT,
    runs: int = RUNS,
) -> list[Speed]:
    """Time methods out of `FORMS`. All take turns, so all their weights are in memory at once.

    llm: in full precision. Raises ValueError for an unknown name and what a method refuses.
    """
    if unknown := sorted(set(names) - FORMS.keys()):
        raise ValueError(f"unknown: {', '.join(unknown)}; there are {', '.join(FORMS)}")
    plain = {name: FORMS[name].make(llm) for name in names}
    kernels: dict[str, str] = {}
    decoding, reading = {}, {}
    for name, model in plain.items():
        try:
            fast, engine = with_kernel(model)
        except Unsupported as reason:
            kernels[name] = str(reason)
            continue
        kernels[name] = engine.name
        if runs_itself(fast, engine, 1):
            decoding[name] = fast
        if runs_itself(fast, engine, long_prompt):
            reading[name] = fast
    decode = _turns(plain, decoding, prompt_tokens=prompt, new_tokens=new_tokens, runs=runs)
    prefill = _turns(plain, reading, prompt_tokens=long_prompt, new_tokens=2, runs=runs)
    written = {key: found.decode_tokens_per_s for key, found in decode.items()}
    read = {key: found.prefill_tokens_per_s for key, found in prefill.items()}
    return [
        Speed(
            name,
            decode=written[name, False],
            prefill=read[name, False],
            kernel=kernels[name],
            decode_kernel=written.get((name, True)),
            prefill_kernel=read.get((name, True)),
        )
        for name in names
    ]


def _turns(
    plain: Mapping[str, LLM], fast: Mapping[str, LLM], **work: int
) -> dict[tuple[str, bool], Measurement]:
    """Time models without and with a kernel, each under its name and whether it has one."""
    models = {(name, False): llm for name, llm in plain.items()}
    models |= {(name, True): llm for name, llm in fast.items()}
    engines = {str(key): minillm_engine(llm) for key, llm in models.items()}
    size = next(iter(plain.values())).config.vocab_size
    return dict(zip(models, measure(engines, size, **work), strict=True))


def method_table(rows: Sequence[Mapping[str, Any]], speeds: Sequence[Mapping[str, Any]]) -> str:
    """All methods, a line each: what is stored of quality, and both speeds, in tokens/s.

    rows: of `stored("07.quality")`. speeds: of `stored("07.speed")`.
    """
    timed = {row["name"]: columns(row) for row in speeds}
    lines = [
        f"{'':62}{'decode, tokens/s':>18}{'prefill, tokens/s':>18}",
        f"{'':30} bits   MB perplexity    KL  top  PyTorch   kernel  PyTorch   kernel",
    ]
    for row in rows:
        name, bits = row["name"], row["cache_bits" if row["name"].startswith("kv") else "bits"]
        lines.append(
            f"{row['title']:30}{bits:5.2f}{row['model_bytes'] / 1e6:5.0f}{row['perplexity']:11.2f}"
            f"{row['kl']:6.3f}{row['same_top']:5.0%}{timed[ALIKE.get(name, name)]}"
        )
    return "\n".join([*lines, NOTE])


def columns(speed: Mapping[str, Any]) -> str:
    """The figures of one method in four columns: decode and prefill, without and with a kernel.

    "none": no kernel reads such weights. "same": its engine leaves that phase to PyTorch.
    """
    missing = "none" if speed["decode_kernel"] is None else "same"
    pairs = [(speed[f"decode{which}"], ",.1f") for which in ("", "_kernel")]
    pairs += [(speed[f"prefill{which}"], ",.0f") for which in ("", "_kernel")]
    return "".join(f"{missing if x is None else format(x, form):>9}" for x, form in pairs)
