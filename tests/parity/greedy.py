"""Greedy tokens of two programs: where they first part, and how close the top two logits are there.

After the first difference the texts are two, so only the first one counts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minillm import LLM, SamplingParams

NEW_TOKENS = 64
PROMPTS = [
    "The capital of France is",
    "Water boils at",
    "1, 2, 3, 4,",
    "def add(a, b):\n    return",
    "Once upon a time",
    "The opposite of hot is",
    "A list of three fruits:",
    "In the year 1969,",
    "Dear Sir or Madam,",
    "To make bread, you need",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a haiku about the sea."}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name? Then count from 1 to 10."},
    ],
    [{"role": "user", "content": "Explain <|im_start|> to a child — in 3 steps 🙂."}],
]


class Parting(NamedTuple):
    """Two programs pick different tokens at one place.

    prompt: its number. place: how many new tokens are the same before it. gap: our top logit minus
    that of their token, in float32; where they pick our second choice, the gap of the top two.
    """

    prompt: int
    place: int
    ours: int
    theirs: int
    gap: float


def prompt_ids(llm: LLM) -> list[list[int]]:
    """The plain prompts, then the conversations by the model's chat template."""
    return [llm.tokenizer.encode(text) for text in PROMPTS] + [llm.chat_ids(c) for c in CHATS]


def greedy(llm: LLM, prompts: list[list[int]], new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    """Our new tokens for every prompt, end tokens included as any other; one batch."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return [output.token_ids for output in llm.generate(prompts, params)]


def gaps(logits: Tensor) -> Tensor:
    """The top logit minus the second: (..., V) → (...)."""
    top = logits.float().topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def partings(
    llm: LLM,
    prompts: Sequence[list[int]],
    ours: Sequence[list[int]],
    theirs: Sequence[list[int]],
) -> list[Parting]:
    """The first difference of each prompt where there is one."""
    found = []
    for number, (prompt, a, b) in enumerate(zip(prompts, ours, theirs, strict=True)):
        place = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        if place is not None:
            with torch.inference_mode():
                logits = llm.logits(prompt + a[:place])[-1]
            gap = float(logits.max() - logits[b[place]])
            found.append(Parting(number, place, a[place], b[place], gap))
    return found
