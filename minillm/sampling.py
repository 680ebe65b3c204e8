"""From logits to a token: the filters that reshape a distribution, and the draw.

The order is the one of transformers and vLLM: repetition penalty, temperature, top-k, top-p, min-p.
It matters: with the temperature first, top-p and min-p see the flattened or sharpened
distribution (llama.cpp's default applies the temperature last).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from torch import Tensor

__all__ = [
    "SamplingParams",
    "apply_min_p",
    "apply_repetition_penalty",
    "apply_temperature",
    "apply_top_k",
    "apply_top_p",
    "sample",
]


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{name} is {value!r}; a whole number of at least {least} is needed")


def _check_between(name: str, value: object, least: float, most: float, allowed: str) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not least <= value <= most:  # type: ignore[operator]  # NaN fails too
        raise ValueError(f"{name} is {value!r}; {allowed} is needed")


def _as_tuple(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise ValueError(f"{name} is {value!r}; a list is needed")
    return tuple(value)


def _check(params: "SamplingParams") -> None:
    """Raise ValueError, quoting the value, for a setting that has no meaning."""
    _check_whole("max_new_tokens", params.max_new_tokens, 1)
    _check_between("temperature", params.temperature, 0, 1e9, "a number from 0 (greedy) to 1e9")
    _check_whole("top_k", params.top_k, -1)
    _check_between("top_p", params.top_p, 0, 1, "a number from 0 to 1")
    _check_between("min_p", params.min_p, 0, 1, "a number from 0 to 1")
    _check_between("repetition_penalty", params.repetition_penalty, 1e-9, 1e9, "from 1e-9 to 1e9")
    if params.seed is not None:
        _check_between("seed", params.seed, -(2**63), 2**63 - 1, "None or a 64-bit whole number")
        _check_whole("seed", params.seed, -(2**63))
    for stop in params.stop:
        if not isinstance(stop, str) or not stop:
            raise ValueError(f"stop contains {stop!r}; text of at least one character is needed")
    for token in params.stop_token_ids:
        _check_whole("stop_token_ids", token, 0)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request picks its tokens and when it stops.

    max_new_tokens: at most this many tokens are generated, the end token included.
    temperature: logits are divided by it; 0 is greedy (the most likely token, always).
    top_k: keep the k most likely tokens; 0 or -1 is off.
    top_p: keep the most likely tokens until their mass reaches top_p; 1 is off, 0 keeps one.
    min_p: keep tokens at least min_p times as likely as the most likely one; 0 is off.
    repetition_penalty: above 1 makes tokens of the prompt and the output less likely; 1 is off.
    seed: of this request's own random generator; None takes a fresh one.
    stop: text that ends the output and is not part of it; one string or several.
    stop_token_ids: ids that end the output, besides the model's own end tokens.
    ignore_eos: go on after the model's end token, up to max_new_tokens.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        # Frozen, so that a request cannot change under way: the two lists become tuples here.
        object.__setattr__(self, "stop", _as_tuple("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        _check(self)


def apply_repetition_penalty(logits: Tensor, seen: Iterable[int], penalty: float) -> Tensor:
    """Make tokens that occurred already less likely: positive logits / penalty, negative · penalty.

    However often a token occurred, it is penalised once. (Dividing a negative logit would make it
    *more* likely.) logits: (V,). seen: ids of prompt and output. Returns (V,).
    Source: Keskar et al. 2019, arXiv 1909.05858, section 4.1.
    """
    ids = torch.tensor(sorted(set(seen)), dtype=torch.int64, device=logits.device)
    chosen = logits[ids]
    penalised = torch.where(chosen > 0, chosen / penalty, chosen * penalty)
    return logits.index_copy(0, ids, penalised)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature: below 1 sharpens the distribution, above 1 flattens it."""
    # The largest logit becomes 0 first, so that a tiny temperature cannot overflow to infinity.
    return (logits - logits.max()) / temperature


def apply_top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits, the others become -inf. k >= V keeps all; 0 or less is off."""
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    kept, ids = logits.topk(k)
    return torch.full_like(logits, -math.inf).scatter(-1, ids, kept)


def apply_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches p, the others become -inf.

    The token that crosses p is kept, so the most likely one always is. [0.5, 0.3, 0.2] with
    p = 0.6 keeps the first two. Source: Holtzman et al. 2019, arXiv 1904.09751, section 3.1.
    """
    if p >= 1:
        return logits
    probabilities = logits.softmax(-1)
    # V tokens below (1 - p)/V have less mass than may go: none of them is needed, nor sorted.
    likely = (probabilities >= (1 - p) / (2 * len(logits))).nonzero()[:, 0]
    ordered, order = probabilities[likely].sort(descending=True, stable=True)
    mass_before = ordered.cumsum(-1) - ordered
    ids = likely[order[mass_before < max(p, 1e-9)]]  # nothing is before the first: it stays
    return torch.full_like(logits, -math.inf).index_copy(0, ids, logits[ids])


def apply_min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens at least p times as likely as the most likely one, the others become -inf.

    Source: Nguyen et al. 2024, arXiv 2407.01082, section 3.
    """
    if p <= 0:
        return logits
    return logits.masked_fill(logits < logits.max() + math.log(p), -math.inf)


def sample(
    logits: Tensor,
    params: SamplingParams,
    seen: Iterable[int] = (),
    generator: torch.Generator | None = None,
) -> int:
    """Pick the next token.

    logits: (V,), any floating dtype. seen: ids of the prompt and the output so far, for the
    repetition penalty. generator: on the device of the logits.
    Returns a token id. Raises ValueError when no distribution can be made of the logits (NaN,
    +inf, or all -inf): a broken model must not look like one that chose token 0.
    """
    logits = logits.float()
    highest = float(logits.max())  # NaN if there is one
    if not math.isfinite(highest):
        found = "NaN" if math.isnan(highest) else "all -inf" if highest < 0 else "+inf"
        raise ValueError(
            f"the logits are {found}: no token can be chosen; the model or its input is broken"
        )
    if params.repetition_penalty != 1:
        logits = apply_repetition_penalty(logits, seen, params.repetition_penalty)
    if params.temperature == 0:
        return int(logits.argmax())
    logits = apply_temperature(logits, params.temperature)
    logits = apply_top_k(logits, params.top_k)
    logits = apply_top_p(logits, params.top_p)
    logits = apply_min_p(logits, params.min_p)
    reached = logits.softmax(-1).cumsum(-1)
    draw = torch.rand(1, generator=generator, device=logits.device)
    # Above 0 and up to the end: the first token to reach it has a probability above 0.
    return int(torch.searchsorted(reached, (1 - draw) * reached[-1]))
