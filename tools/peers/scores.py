"""Are the fast engine's scores right? Beside PyTorch on the same blocks, and beside float32."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from minillm import LLM
from minillm.eval import perplexity, read
from tests.parity.greedy import Parting, greedy, partings
from tools.peers.report import Verdict

TOKENS = 1024  # of the text that is scored
COMPARED = 128  # of these, for scores beside scores
PROMPTS, PROMPT, GREEDY = 8, 32, 64


@dataclass(frozen=True, slots=True)
class Comparison:
    """rms: between the engine's scores and PyTorch's on the same blocks, root mean square.

    own_rms: the same between PyTorch's scores and its own with weights of the norms that differ in
    the seventh digit. Rounding to 8 bits makes a whole step of a difference in the last bit, where
    a value lies between two codes, and later layers make more of it: nearer than this no two
    orders of summation come. partings: of the texts that part from float32's. perplexity,
    in_float32: of one text.
    """

    rms: float
    own_rms: float
    partings: list[Parting]
    perplexity: float
    in_float32: float


def compare(fast: LLM, reference: LLM, exact: LLM, ids: Sequence[int]) -> Comparison:
    """The engine, PyTorch's modules on the same weights, and the model in float32, on one text."""
    passage = list(ids[:COMPARED])
    meant = reference.logits(passage)
    with shaken(reference):
        own = reference.logits(passage)
    ours_ppl, exact_ppl = (perplexity(read(llm, list(ids))).perplexity for llm in (fast, exact))
    return Comparison(
        float((fast.logits(passage) - meant).square().mean().sqrt()),
        float((own - meant).square().mean().sqrt()),
        parted(fast, exact, ids),
        ours_ppl,
        exact_ppl,
    )


@contextmanager
def shaken(llm: LLM, by: float = 1e-6) -> Iterator[None]:
    """The weights of the norms before attention, each off by about so much of itself."""
    norms = [
        llm.model.get_submodule(f"layers.{i}.input_layernorm")
        for i in range(llm.config.num_hidden_layers)
    ]
    before = [norm.get_parameter("weight") for norm in norms]
    generator = torch.Generator().manual_seed(0)
    for norm, weight in zip(norms, before, strict=True):
        noise = torch.randn(weight.shape, generator=generator) * by
        norm.weight = torch.nn.Parameter(weight * (1 + noise), requires_grad=False)
    try:
        yield
    finally:
        for norm, weight in zip(norms, before, strict=True):
            norm.weight = weight


def parted(fast: LLM, exact: LLM, ids: Sequence[int]) -> list[Parting]:
    """Where greedy continuations of passages of the text leave those of the exact model."""
    prompts = [list(ids[i * PROMPT : (i + 1) * PROMPT]) for i in range(PROMPTS)]
    return partings(exact, prompts, *(greedy(llm, prompts, GREEDY) for llm in (exact, fast)))


def scores_text(found: Comparison) -> str:
    """The comparison as Markdown."""
    places = "; ".join(f"after {p.place} tokens, gap {p.gap:.3f}" for p in found.partings)
    return (
        f"The engine's scores are {found.rms:.3f} from PyTorch's on the same blocks, root mean "
        f"square; PyTorch's own are {found.own_rms:.3f} from themselves when weights change in the "
        f"seventh digit. Of {PROMPTS} greedy texts of {GREEDY} tokens, "
        f"{PROMPTS - len(found.partings)} are float32's to the end; the others part from it where "
        f"its two best are close: {places or 'none'}. Perplexity {found.perplexity:.3f}, in "
        f"float32 {found.in_float32:.3f}."
    )


def scores_verdicts(found: Comparison) -> list[Verdict]:
    """The targets of the comparison."""
    gap = max((p.gap for p in found.partings), default=0.0)
    more = 100 * (found.perplexity / found.in_float32 - 1)
    return [
        Verdict(
            "scores: distance from PyTorch, over its own", found.rms / found.own_rms, 1.2, True
        ),
        Verdict("largest gap where a greedy text leaves float32's", gap, 0.5, at_most=True),
        Verdict("perplexity, % more than float32's", more, 0.5, at_most=True),
    ]
