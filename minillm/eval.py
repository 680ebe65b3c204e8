"""How well a model predicts a text, and how far its predictions are from another model's.

`read` runs a model over a text in windows and hands out one `Reading` per window: the hidden states
from which the scored tokens are predicted. `perplexity` takes the readings of one model, `compare`
those of two. Logits exist a few rows at a time, whatever the text and the vocabulary.

Readings are small (4·C bytes a token in float32, where log-probabilities would take 4·V), so that
one model at a time in memory is enough: `before = list(read(llm, text))`, then change the weights,
then `compare(before, read(llm, text))`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.llm import LLM

# A window's length unless told: more context costs time, and says little more about a model.
CONTEXT = 2_048
# So many logits exist at a time: 8 MB in float32. A comparison holds four such tensors at most.
LOGITS_AT_A_TIME = 2**21


class Window(NamedTuple):
    """ids[start:stop] run through the model; of these the tokens ids[first:stop] are scored."""

    start: int
    first: int
    stop: int


def windows(num_tokens: int, context: int, stride: int) -> list[Window]:
    """Windows of `context` tokens, each `stride` after the last, that score each token once.

    A window scores what those before it have not: all but the first one score their last `stride`
    tokens, which see at least context - stride tokens. The first token of a window has nothing to
    be predicted from. So the first token of the text is never scored (one that the tokenizer adds,
    where there is a BOS), and with stride = context neither is that of any other window.

    >>> [tuple(window) for window in windows(7, context=4, stride=2)]
    [(0, 1, 4), (2, 4, 6), (4, 6, 7)]

    Raises: ValueError for fewer than 2 tokens, a context below 2, a stride outside 1 … context.
    Source: "Perplexity of fixed-length models" in the documentation of transformers.
    """
    if num_tokens < 2:
        raise ValueError(f"the text has {num_tokens} tokens; at least 2 are needed to score one")
    if context < 2:
        raise ValueError(f"context is {context}; at least 2 tokens are needed to score one")
    if not 1 <= stride <= context:
        raise ValueError(f"stride is {stride}; a whole number from 1 to the context of {context}")
    found, scored = [], 1
    for start in range(0, num_tokens - 1, stride):
        stop = min(start + context, num_tokens)
        found.append(Window(start, max(scored, start + 1), stop))
        scored = stop
        if stop == num_tokens:
            break
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model makes of one window: all that is needed to score its tokens.

    hidden: (N, C), the last norm's output at the position before each scored token.
    targets: (N,), int64, the scored tokens. start: position of the first of them in the text.
    head: (n, C) → logits (n, V). It is the model's own: where its weights change after the reading,
    the reading changes too, unless `dataclasses.replace` gives it the old head.
    """

    hidden: Tensor
    targets: Tensor
    start: int
    head: Callable[[Tensor], Tensor]
    vocab_size: int

    @torch.inference_mode()
    def scores(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A few positions at a time: log p of every vocabulary entry, (n, V), and targets, (n,).

        The log-softmax is computed in float32. Raises ValueError for a logit that is not finite.
        """
        rows = max(LOGITS_AT_A_TIME // self.vocab_size, 1)
        for hidden, targets in zip(
            torch.split(self.hidden, rows), torch.split(self.targets, rows), strict=True
        ):
            yield self._log_probs(hidden), targets

    def _log_probs(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden).float()
        if not logits.isfinite().all():
            raise ValueError(
                f"the model gives NaN or infinite scores within the window whose first scored "
                f"token is number {self.start}: its weights are damaged, or its dtype has too "
                "small a range"
            )
        return logits.log_softmax(dim=-1)


def read(
    llm: LLM, text: str | Sequence[int], *, context: int | None = None, stride: int | None = None
) -> Iterator[Reading]:
    """Run a model over a text, window by window; see `windows`.

    text: a string, encoded as the tokenizer does (with its BOS, special tokens in it being plain
    text), or token ids. context, stride: see `window_shape`.
    Raises ValueError for a token id outside the vocabulary, and for what `window_shape` and
    `windows` refuse, before anything is computed.
    """
    config = llm.config
    ids = torch.tensor(llm.tokenizer.encode(text) if isinstance(text, str) else list(text))
    whole = ids.dtype == torch.int64
    if len(ids) and not (whole and 0 <= ids.min() <= ids.max() < config.vocab_size):
        raise ValueError(
            f"the token ids go from {ids.min()} to {ids.max()}; allowed are whole numbers from 0 "
            f"to {config.vocab_size - 1}"
        )
    parts = windows(len(ids), *window_shape(config, context, stride))
    return _read(llm, ids.to(llm.device), parts)


def window_shape(
    config: ModelConfig, context: int | None = None, stride: int | None = None
) -> tuple[int, int]:
    """Context and stride in tokens, where they are not given by default.

    The context is 2,048, or the model's own where that is less; the stride is half of it, so that
    past the first window every scored token sees at least as many before it.
    Raises ValueError for a context that is longer than the model's.
    """
    if context is None:
        context = min(CONTEXT, config.max_position_embeddings)
    if config.context is not None and context > config.context:
        raise ValueError(f"context is {context}; the model's holds {config.context} tokens")
    return context, max(context // 2, 1) if stride is None else stride


@torch.inference_mode()
def _read(llm: LLM, ids: Tensor, parts: list[Window]) -> Iterator[Reading]:
    for start, first, stop in parts:
        seen = ids[start : stop - 1]  # the last token is scored, and nothing follows from it
        cache = llm.new_cache(1, len(seen))
        chunks = torch.split(seen[None], llm.chunk_size(1), dim=1)
        length = torch.tensor([stop - start])
        hidden = torch.cat([llm.model(chunk, cache, lengths=length)[0] for chunk in chunks])
        hidden = hidden[first - 1 - start :].clone()  # so that the other rows are freed
        yield Reading(hidden, ids[first:stop], first, llm.model.logits, llm.config.vocab_size)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text. nll: mean over `tokens` of -ln p(token), in nats."""

    tokens: int
    nll: float

    @property
    def perplexity(self) -> float:
        """exp(nll): as unsure as if it chose evenly among so many tokens."""
        return math.exp(self.nll) if self.nll < 709 else math.inf

    def bits_per_byte(self, tokens_per_byte: float) -> float:
        """nll / ln 2 · tokens_per_byte: comparable between tokenizers, as perplexity is not."""
        return self.nll / math.log(2) * tokens_per_byte


def perplexity(readings: Iterable[Reading]) -> Perplexity:
    """Perplexity of the scored tokens: exp(-1/N · Σ ln p(token | those before it)).

    Raises ValueError where there is nothing to score, or a score is not finite.
    """
    nll: list[float] = []
    for reading in readings:
        for log_probs, targets in reading.scores():
            nll += _nll(log_probs, targets)
    return _perplexity(nll)


def _nll(log_probs: Tensor, targets: Tensor) -> list[float]:
    """-ln p(target) at each position.

    As numbers: small tensors that stay would lie between the large ones that go, and keep their
    memory from being used again (500 MB over 2,000 tokens).
    """
    found: list[float] = log_probs.gather(1, targets[:, None])[:, 0].neg().tolist()
    return found


def _perplexity(nll: list[float]) -> Perplexity:
    if not nll:
        raise ValueError("there are no readings, so there is nothing to score")
    return Perplexity(len(nll), fmean(nll))


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the predictions of `other` are from those of `reference`, over the same tokens.

    mean, median, percentile_99, maximum: of KL(reference ‖ other) over the positions, in nats.
    same_top: share of positions where both have the same most likely token.
    """

    reference: Perplexity
    other: Perplexity
    mean: float
    median: float
    percentile_99: float
    maximum: float
    same_top: float

    @property
    def same_top_error(self) -> float:
        """Standard error of same_top, as if positions were independent: √(s · (1 - s) / N)."""
        return math.sqrt(self.same_top * (1 - self.same_top) / self.reference.tokens)


@torch.inference_mode()
def compare(reference: Iterable[Reading], other: Iterable[Reading]) -> Divergence:
    """KL divergence between two models' predictions of one text, read in the same windows.

    KL(P ‖ Q) = Σ p · (ln p - ln q) over the vocabulary, at each scored position. It is 0 where both
    predict alike, and else positive; float32 computes it to about 1e-6.

    reference, other: `read` of the same tokens; a list or as they come.
    Raises ValueError for readings of different windows or vocabularies, and for what `perplexity`
    refuses.
    """
    nll_p: list[float] = []
    nll_q: list[float] = []
    kl: list[float] = []
    same_top = 0
    for mine, theirs in zip(reference, other, strict=True):
        _check_same(mine, theirs)
        for (log_p, targets), (log_q, _) in zip(mine.scores(), theirs.scores(), strict=True):
            log_q = log_q.to(log_p.device)
            nll_p += _nll(log_p, targets)
            nll_q += _nll(log_q, targets)
            kl += kl_divergence(log_p, log_q).tolist()
            same_top += int((log_p.argmax(dim=-1) == log_q.argmax(dim=-1)).sum())
    perplexities = _perplexity(nll_p), _perplexity(nll_q)
    kl.sort()
    return Divergence(
        *perplexities,
        mean=fmean(kl),
        median=kl[len(kl) // 2],
        percentile_99=kl[len(kl) * 99 // 100],
        maximum=kl[-1],
        same_top=same_top / len(kl),
    )


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(P ‖ Q) of each row, in nats: (n, V) log-probabilities in float32 → (n,)."""
    # Rounding may leave a row of equal distributions at -1e-7.
    return log_p.exp().mul_(log_p - log_q).sum(dim=-1).clamp(min=0)


def _check_same(mine: Reading, theirs: Reading) -> None:
    if mine.vocab_size != theirs.vocab_size:
        raise ValueError(
            f"the vocabularies have {mine.vocab_size} and {theirs.vocab_size} entries; a "
            "comparison needs models with the same vocabulary"
        )
    if not torch.equal(mine.targets.cpu(), theirs.targets.cpu()):
        raise ValueError(
            f"the windows from tokens {mine.start} and {theirs.start} on hold different tokens; a "
            "comparison needs the same text, context and stride, and tokenizers that cut alike"
        )
