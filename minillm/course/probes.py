"""Probes: three small measurements that show whether a change hurts a model, and where.

- DOC, plain English: the mean loss per token. It notices most damage, and misses subtle damage.
- COPY, 40 random tokens twice: the loss on the second copy. Only a model that finds the earlier
  copy by content and position can predict it, so wrong positions, masks, heads and layouts show.
- CAPITALS, seven prompts `The capital of X is`: how many answers are right, and how sure.

Losses are in nats (natural logarithm). A model that knows nothing has ln(V): 10.8 for SmolLM2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from minillm.kv_cache.one_pass import OnePass
from minillm.llm import LLM

CORPUS = Path(__file__).resolve().parents[2] / "data" / "corpus.txt"
CAPITALS = {
    " France": " Paris",
    " Italy": " Rome",
    " Japan": " Tokyo",
    " Germany": " Berlin",
    " Spain": " Madrid",
    " Russia": " Moscow",
    " Greece": " Athens",
}
COPY_TOKENS = 40


@torch.inference_mode()
def forward(llm: LLM, ids: Sequence[int], positions: Tensor | None = None) -> Tensor:
    """The hidden states after the last norm, (T, C), from one pass over a text without a cache.

    positions: (T,), 0 to T - 1 unless given.
    """
    if positions is None:
        positions = torch.arange(len(ids))
    tokens = torch.tensor([list(ids)], device=llm.device)
    hidden: Tensor = llm.model(tokens, OnePass(positions[None]))[0]
    return hidden


@torch.inference_mode()
def losses(
    llm: LLM, ids: Sequence[int], positions: Tensor | None = None, chunk: int = 256
) -> Tensor:
    """How surprised the model is by each token but the first: -ln p(ids[t] | ids[:t]), in nats.

    The logits of `chunk` positions exist at a time (256 · V · 4 bytes are 50 MB for SmolLM2).
    Returns (T - 1,), float32.
    """
    hidden = forward(llm, ids, positions)[:-1]
    targets = torch.tensor(list(ids)[1:], device=llm.device)
    parts = [
        torch.nn.functional.cross_entropy(
            llm.model.logits(hidden[i : i + chunk]).float(),
            targets[i : i + chunk],
            reduction="none",
        )
        for i in range(0, len(targets), chunk)
    ]
    return torch.cat(parts)


def doc_ids(llm: LLM, tokens: int = 300) -> list[int]:
    """The first tokens of the course's own running text."""
    return llm.tokenizer.encode(CORPUS.read_text(encoding="utf-8"))[:tokens]


def doc_loss(llm: LLM, tokens: int = 300) -> float:
    """DOC: the mean loss on running English, in nats per token."""
    return float(losses(llm, doc_ids(llm, tokens)).mean())


def copy_ids(seed: int) -> list[int]:
    """40 random token ids from 1,000 to 19,999, then the same 40 again."""
    generator = torch.Generator().manual_seed(seed)
    first: list[int] = torch.randint(1_000, 20_000, (COPY_TOKENS,), generator=generator).tolist()
    return first + first


def copy_loss(llm: LLM, seeds: Iterable[int] = range(4), gap: int = 0) -> float:
    """COPY: the mean loss on the second copy, in nats per token, averaged over seeds.

    gap: so many positions stay empty between the two copies.
    """
    positions = torch.arange(2 * COPY_TOKENS)
    positions[COPY_TOKENS:] += gap
    found = [losses(llm, copy_ids(seed), positions)[COPY_TOKENS:].mean() for seed in seeds]
    return float(torch.stack(found).mean())


def capital_ids(llm: LLM, country: str = " France") -> list[int]:
    """`The capital of X is`: five tokens, X at position 3."""
    return llm.tokenizer.encode(f"The capital of{country} is")


def capitals(llm: LLM) -> tuple[int, float]:
    """CAPITALS: how many of seven answers are the most likely token, and their mean probability."""
    right, total = 0, 0.0
    for country, capital in CAPITALS.items():
        answer = llm.tokenizer.encode(capital)[0]
        hidden = forward(llm, capital_ids(llm, country))[-1]
        probabilities = llm.model.logits(hidden).float().softmax(-1)
        right += int(probabilities.argmax()) == answer
        total += float(probabilities[answer])
    return right, total / len(CAPITALS)
