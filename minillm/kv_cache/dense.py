"""The dense KV cache: room for every token, allocated once, written in place."""

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.kv_cache.base import KVCache, kept_lengths, new_positions

__all__ = ["DenseKVCache"]


class DenseKVCache(KVCache):
    """Keys and values of every layer in two preallocated tensors, (L, B, K, capacity, D) each.

    The place of a token is its position. Appending writes only the new tokens; nothing is copied.
    Bytes: 2 · L · B · K · capacity · D · bytes per value. The storage starts as zeros, never as
    uninitialised memory: a NaN there would spread through attention even with weight 0.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        L, K, D = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.keys = torch.zeros(L, batch_size, K, capacity, D, dtype=dtype, device=device)
        self.values = torch.zeros_like(self.keys)
        self.capacity = capacity
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)

    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """Begin a step: the new tokens of row b stand at lengths[b], lengths[b] + 1, …"""
        positions = new_positions(self.lengths, counts, width)  # (B, T)
        lengths = self.lengths + (positions >= 0).sum(dim=1)
        if lengths.max() > self.capacity:
            raise ValueError(
                f"the KV cache holds {self.capacity} tokens per row; {int(lengths.max())} needed"
            )
        self.lengths = lengths
        places = torch.arange(int(lengths.max()))
        self._k_positions = torch.where(places < lengths[:, None], places, -1)  # (B, S)
        # Where all rows write the same places a slice does it; else each real token by its index.
        same = bool((positions == positions[0]).all()) and bool((positions >= 0).all())
        self._slice = slice(int(positions[0, 0]), int(positions[0, -1]) + 1) if same else None
        rows, new = (positions >= 0).nonzero(as_tuple=True)
        index = torch.stack([rows, new, positions[rows, new]])
        self._rows, self._new, self._places = index.to(self.keys.device)
        return positions

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write the step's k and v at their positions; return views of all that is stored."""
        keys, values = self.keys[layer], self.values[layer]  # (B, K, capacity, D)
        wide, k, v = k.dtype, k.to(keys.dtype), v.to(values.dtype)
        if self._slice is not None:
            keys[:, :, self._slice], values[:, :, self._slice] = k, v
        else:
            keys[self._rows, :, self._places] = k[self._rows, :, self._new]
            values[self._rows, :, self._places] = v[self._rows, :, self._new]
        S = self._k_positions.shape[1]
        return keys[:, :, :S].to(wide), values[:, :, :S].to(wide), self._k_positions

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from position lengths[b] on: only the length changes."""
        self.lengths = kept_lengths(self.lengths, lengths)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; copies them."""
        index = torch.tensor(rows, dtype=torch.int64)
        self.lengths = self.lengths[index]
        self.keys = self.keys[:, index.to(self.keys.device)]
        self.values = self.values[:, index.to(self.values.device)]

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors, filled or not."""
        return self.keys.nbytes + self.values.nbytes
