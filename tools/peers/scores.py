"""Are the fast engine's scores right? Beside PyTorch on the same blocks, and beside float32."""

from collections.abc import Sequence
from dataclasses import dataclass

from minillm import LLM, SamplingParams
from minillm.eval import perplexity, read
from tools.peers.report import Verdict

TOKENS = 1024  # of the text that is scored
PROMPTS, PROMPT, GREEDY = 8, 32, 64


@dataclass(frozen=True, slots=True)
class Parting:
    """Where a greedy text leaves float32's: which prompt, after how many tokens, and float32's
    score of its own token minus that of the other."""

    prompt: int
    after: int
    gap: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """difference: the largest between engine and reference, over the largest score.

    partings: of the texts that part from float32's. perplexity, in_float32: of one text.
    """

    difference: float
    partings: list[Parting]
    perplexity: float
    in_float32: float


def compare(fast: LLM, reference: LLM, exact: LLM, ids: Sequence[int]) -> Comparison:
    """The engine, PyTorch's modules on the same weights, and the model in float32, on one text."""
    ours, meant = fast.logits(ids[:256]), reference.logits(ids[:256])
    difference = (ours - meant).abs().max() / meant.abs().max()
    ours_ppl, exact_ppl = (perplexity(read(llm, list(ids))).perplexity for llm in (fast, exact))
    return Comparison(float(difference), partings(fast, exact, ids), ours_ppl, exact_ppl)


def partings(fast: LLM, exact: LLM, ids: Sequence[int]) -> list[Parting]:
    """Greedy continuations of passages of the text, by both, as one batch each."""
    prompts = [list(ids[i * PROMPT : (i + 1) * PROMPT]) for i in range(PROMPTS)]
    params = SamplingParams(max_new_tokens=GREEDY, ignore_eos=True)
    both = [[out.token_ids for out in llm.generate(prompts, params)] for llm in (exact, fast)]
    found = []
    for number, (theirs, mine) in enumerate(zip(*both, strict=True)):
        same = next((i for i in range(GREEDY) if theirs[i] != mine[i]), None)
        if same is not None:
            scores = exact.logits(prompts[number] + theirs[:same])[-1]
            gap = float(scores[theirs[same]] - scores[mine[same]])
            found.append(Parting(number, same, gap))
    return found


def scores_text(found: Comparison) -> str:
    """The comparison as Markdown."""
    parted = "; ".join(f"after {p.after} tokens, gap {p.gap:.3f}" for p in found.partings)
    return (
        f"Largest difference of a score from PyTorch on the same blocks: {found.difference:.1e} of "
        f"the largest score. Of {PROMPTS} greedy texts of {GREEDY} tokens, "
        f"{PROMPTS - len(found.partings)} are float32's to the end; the others part from it where "
        f"its two best are close: {parted or 'none'}. Perplexity {found.perplexity:.3f}, in "
        f"float32 {found.in_float32:.3f}."
    )


def scores_verdicts(found: Comparison) -> list[Verdict]:
    """The targets of the comparison."""
    gap = max((p.gap for p in found.partings), default=0.0)
    more = 100 * (found.perplexity / found.in_float32 - 1)
    return [
        Verdict("largest difference of a score from PyTorch", found.difference, 1e-3, at_most=True),
        Verdict("largest gap where a greedy text leaves float32's", gap, 0.5, at_most=True),
        Verdict("perplexity, % more than float32's", more, 0.5, at_most=True),
    ]
