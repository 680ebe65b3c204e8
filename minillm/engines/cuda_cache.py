"""Storage of KV caches that outlives them, so that a graph recorded on it serves later requests.

A CUDA graph holds addresses. Were the storage of every request its own, every request would record
its own graphs before it could replay any. So storage goes back to a pool when its cache is gone,
and the next request that fits gets it, together with its graphs.
"""

import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.engines.cuda_rows import Rows
from minillm.engines.cuda_step import Places
from minillm.engines.graphs import Recorded
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.sliding import SlidingKVCache, ring_shape

# So many storages are kept for later while nobody uses them; beyond, the longest unused is freed.
IDLE = 2
# Short requests share graphs: no storage has fewer places per row.
LEAST_CAPACITY = 512


def bucket(count: int) -> int:
    """The power of two that is not below count: batches of 5 to 8 rows share a graph.

    >>> [bucket(count) for count in (1, 2, 3, 5, 8, 9)]
    [1, 2, 4, 8, 8, 16]
    """
    return 1 << (count - 1).bit_length()


class Storage:
    """Keys and values of all layers for `rows` texts of up to `capacity` tokens.

    keys, values: one tensor (L, rows, K, capacity, D), or, where a layer has a window, one per
    layer, (rows, K, places, D). state: of each row's text. hidden: (rows, C), what the last step of
    `CudaEngine.forward` gave. graphs: recorded on this storage, by name and number of rows.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        L, K, D = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.config, self.rows, self.capacity = config, rows, capacity
        self.ringed = any(layer.sliding_window is not None for layer in config.layers)
        sizes = [sum(ring_shape(layer, capacity)) for layer in config.layers]
        shapes: list[tuple[int, ...]] = [(L, rows, K, capacity, D)]
        if self.ringed:
            shapes = [(rows, K, size, D) for size in sizes]
        # Ordinary tensors wherever this is called: others could be written in inference mode only.
        with torch.inference_mode(False):
            self.keys = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
            self.values = [torch.zeros_like(keys) for keys in self.keys]
            self.state = Rows(rows, config.vocab_size, device)
            self.hidden = torch.zeros(rows, config.hidden_size, dtype=dtype, device=device)
        self.graphs: dict[tuple[str, int], Recorded] = {}

    def places(self, rows: int) -> list[Places]:
        """The first `rows` rows, layer by layer, for `run_step`."""
        if not self.ringed:
            pairs = zip(self.keys[0], self.values[0], strict=True)
            return [Places(keys[:rows], values[:rows]) for keys, values in pairs]
        first = ([x[:rows] for x in tensors] for tensors in (self.keys, self.values))
        return sliding_places(self.config, *first)

    def keep(self, rows: Sequence[int]) -> None:
        """Move these rows, in ascending order, to the front. No row is overwritten too early."""
        dim = 0 if self.ringed else 1
        for new, old in enumerate(rows):
            if new != old:
                for tensor in (*self.keys, *self.values):
                    tensor.select(dim, new).copy_(tensor.select(dim, old))


def sliding_places(
    config: ModelConfig, keys: Sequence[Tensor], values: Sequence[Tensor]
) -> list[Places]:
    """Keys and values of a sliding cache, layer by layer. A layer with fewer places than window and
    sinks, or without a window, has no ring.
    """
    places = []
    for layer, k, v in zip(config.layers, keys, values, strict=True):
        window = layer.sliding_window
        wraps = window is not None and window + layer.sinks <= k.shape[2]
        places.append(Places(k, v, window if wraps else None))
    return places


class Pool:
    """Storages of one model, in use and idle."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.idle: list[Storage] = []  # the longest unused first

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache, dense or sliding as the model needs, on storage of this pool.

        The storage comes back when the cache is gone: tensors taken from a cache are not to be used
        after it.
        """
        storage = self._take(batch_size, capacity)
        kind = PooledSliding if storage.ringed else PooledDense
        cache = kind(storage, batch_size, capacity)
        weakref.finalize(cache, self._give_back, storage)
        return cache

    def _take(self, rows: int, capacity: int) -> Storage:
        """The smallest idle storage that has the room, or a new one."""
        fit = [s for s in self.idle if s.rows >= rows and s.capacity >= capacity]
        for storage in sorted(fit, key=lambda storage: storage.rows * storage.capacity):
            with suppress(ValueError):  # another thread gave one back, and so freed this one
                self.idle.remove(storage)
                return storage
        with suppress(torch.OutOfMemoryError):
            return self._new(bucket(rows), bucket(max(capacity, LEAST_CAPACITY)))
        # Behind the `with`: the exception, which is gone now, held what was allocated before it.
        self._free(len(self.idle))
        return self._new(rows, capacity)

    def _new(self, rows: int, capacity: int) -> Storage:
        return Storage(self.config, rows, capacity, dtype=self.dtype, device=self.device)

    def _give_back(self, storage: Storage) -> None:
        self.idle.append(storage)
        self._free(len(self.idle) - IDLE)

    def _free(self, count: int) -> None:
        del self.idle[: max(count, 0)]


class PooledDense(DenseKVCache):
    """A dense cache on storage of a pool. storage: None once it has left it."""

    def __init__(self, storage: Storage, batch_size: int, capacity: int) -> None:
        self.storage: Storage | None = storage
        self.capacity = capacity
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self._view(storage, batch_size)
        self.keys.zero_()
        self.values.zero_()

    def _view(self, storage: Storage, rows: int) -> None:
        [keys], [values] = storage.keys, storage.values
        self.keys = keys[:, :rows, :, : self.capacity]
        self.values = values[:, :rows, :, : self.capacity]

    def extend(self, added: Tensor) -> None:
        """Count so many more tokens per row, (B,): what `advance` keeps of a step that ran."""
        self.lengths = self.lengths + added

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order: in place, unless some are to change places."""
        if self.storage is None or not _ascending(rows):
            self.storage = None
            super().select(rows)
            return
        self.storage.keep(rows)
        self.lengths = self.lengths[list(rows)]
        self._view(self.storage, len(rows))


class PooledSliding(SlidingKVCache):
    """A sliding cache on storage of a pool. storage: None once it has left it."""

    def __init__(self, storage: Storage, batch_size: int, capacity: int) -> None:
        self.storage: Storage | None = storage
        config = storage.config
        self.config, self.capacity = config, capacity
        self.rings = [ring_shape(layer, capacity) for layer in config.layers]
        self.endless = self.rings == [(x.sliding_window, x.sinks) for x in config.layers]
        self.lengths = self._reached = torch.zeros(batch_size, dtype=torch.int64)
        self._view(storage, batch_size)
        for tensor in (*self.keys, *self.values):
            tensor.zero_()

    def _view(self, storage: Storage, rows: int) -> None:
        sizes = [sum(ring) for ring in self.rings]
        self.keys = [x[:rows, :, :n] for x, n in zip(storage.keys, sizes, strict=True)]
        self.values = [x[:rows, :, :n] for x, n in zip(storage.values, sizes, strict=True)]

    def extend(self, added: Tensor) -> None:
        """Count so many more tokens per row, (B,): what `advance` keeps of a step that ran."""
        self.lengths = self.lengths + added
        self._reached = torch.maximum(self._reached, self.lengths)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order: in place, unless some are to change places."""
        if self.storage is None or not _ascending(rows):
            self.storage = None
            super().select(rows)
            return
        self.storage.keep(rows)
        index = list(rows)
        self.lengths, self._reached = self.lengths[index], self._reached[index]
        self._view(self.storage, len(index))


Pooled = PooledDense | PooledSliding


def _ascending(rows: Sequence[int]) -> bool:
    return bool(rows) and rows[0] >= 0 and all(a < b for a, b in pairwise(rows))
