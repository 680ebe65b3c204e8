"""No cache: for whole texts that go through a model, or through one block of it, in one step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.kv_cache.base import KVCache


class OnePass(KVCache):
    """No cache at all: one forward pass over whole texts, at positions of the caller's choice.

    positions: (B, T), increasing along each row. A gap in them is a gap in time: nothing stands
    there, but distances count it.
    """

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions
        self.lengths = torch.zeros(len(positions), dtype=torch.int64)

    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """The positions, as they were given."""
        return self.positions

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Nothing is kept: the keys of this pass are all there are."""
        return k, v, self.positions

    def truncate(self, lengths: Sequence[int]) -> None:
        """There is nothing to forget."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep the positions of these rows."""
        self.positions = self.positions[list(rows)]

    @property
    def nbytes(self) -> int:
        """Nothing is held."""
        return 0
