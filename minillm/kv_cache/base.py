"""The contract of every KV cache."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


def new_positions(lengths: Tensor, counts: Sequence[int], width: int) -> Tensor:
    """Where the new tokens of a step stand: row b goes on at lengths[b] with counts[b] tokens.

    lengths: (B,). Returns (B, width), int64, with -1 for the padding on the right.
    Raises ValueError for a number of counts other than B, or a count outside 0 … width.
    """
    added = torch.tensor(counts, dtype=torch.int64)
    if added.shape != lengths.shape or bool(((added < 0) | (added > width)).any()):
        raise ValueError(
            f"counts is {list(counts)}; {len(lengths)} numbers from 0 to {width} are needed"
        )
    new = torch.arange(width)
    return torch.where(new < added[:, None], lengths[:, None] + new, -1)


def kept_lengths(lengths: Tensor, wanted: Sequence[int]) -> Tensor:
    """What `truncate` is asked to keep of rows with `lengths` tokens, (B,).

    Raises ValueError for a number of lengths other than B, or one outside 0 … lengths[b].
    """
    kept = torch.tensor(wanted, dtype=torch.int64)
    if kept.shape != lengths.shape or kept.min() < 0 or (kept > lengths).any():
        raise ValueError(f"lengths is {list(wanted)}; at most {lengths.tolist()} can be kept")
    return kept


class KVCache(ABC):
    """What a forward pass asks of a cache of keys and values, however the cache stores them.

    A forward pass over T new tokens per row is one *step*:

    1. `advance(counts, T)` once: row b brings counts[b] real tokens, the rest of its T places is
       padding on the right. It returns the positions of the new tokens.
    2. `update(layer, k, v)` once per layer: stores the step's keys and values of that layer and
       returns all that its queries may look at.

    Bookkeeping (lengths, positions) stays on the CPU, so that no step waits for a GPU to answer.
    """

    lengths: Tensor
    """(B,), int64, on the CPU: tokens stored per row, the current step included."""

    @abstractmethod
    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """Begin a step of `width` places per row, counts[b] of them real tokens.

        Returns positions (B, width), int64, on the CPU, -1 for padding. Raises ValueError when a
        row would outgrow the cache, before anything changes.
        """

    @abstractmethod
    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store k and v (B, K, T, D) of this step in `layer`.

        Returns keys and values (B, K, S, D) in the dtype of k and v, and their positions (B, S),
        int64, on the CPU, with -1 for a place that holds nothing.
        """

    @abstractmethod
    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget every token from position lengths[b] on, in each row b."""

    @abstractmethod
    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of storage held for keys and values."""
