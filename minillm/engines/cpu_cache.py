"""KV caches as the C++ engine reads and writes them: where each layer's keys and values lie."""

import ctypes
from typing import NamedTuple
from weakref import ref

from torch import Tensor

from minillm.config import ModelConfig
from minillm.engines import cpu_structs as c
from minillm.kernels.cpu.checks import FLOATS
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.quantized import BLOCK, BlockStore, QuantizedKVCache
from minillm.kv_cache.sliding import SlidingKVCache


class CacheView(NamedTuple):
    """step.h's view of a cache. tensors: what it points into, by which it is known again.

    A view keeps nothing: the memory of a cache goes with the cache.
    """

    form: c.CacheForm
    layers: ctypes.Array[c.LayerCache]
    tensors: list[ref[Tensor]]

    @classmethod
    def of(cls, cache: KVCache, config: ModelConfig) -> "CacheView | None":
        """None for a cache of another kind, or one that does not fit the model."""
        tensors = storage(cache)
        if not tensors or not _fits(cache, config, tensors):
            return None
        form = c.CacheForm(numbers=FLOATS[tensors[0].dtype])
        layers = (c.LayerCache * config.num_hidden_layers)()
        for index, layer in enumerate(layers):
            if isinstance(cache, SlidingKVCache):
                window, layer.sinks = cache.rings[index]
                layer.keys.exact = cache.keys[index].data_ptr()
                layer.values.exact = cache.values[index].data_ptr()
                layer.ring, layer.places = window, window + layer.sinks
            elif isinstance(cache, QuantizedKVCache):
                _point(layer.keys, cache.keys, index)
                _point(layer.values, cache.values, index)
                layer.ring, layer.places = cache.capacity, BLOCK
                layer.blocks = cache.keys.blocks.codes.shape[3]
            else:
                assert isinstance(cache, DenseKVCache)
                layer.keys.exact = cache.keys[index].data_ptr()
                layer.values.exact = cache.values[index].data_ptr()
                layer.ring = layer.places = cache.capacity
        if isinstance(cache, QuantizedKVCache):
            form.bits, form.value_channels = cache.bits, cache.values.group[1]
            form.key_channels = 0 if cache.keys.group == (BLOCK, 1) else cache.keys.group[1]
        return cls(form, layers, list(map(ref, tensors)))

    def is_of(self, cache: KVCache) -> bool:
        """Whether the cache still has the tensors that this view points into."""
        tensors = storage(cache)
        return len(tensors) == len(self.tensors) and all(
            a is b() for a, b in zip(tensors, self.tensors, strict=True)
        )


def storage(cache: KVCache) -> list[Tensor]:
    """The tensors that a cache keeps keys and values in; none for a kind that is not known."""
    if type(cache) is DenseKVCache:
        return [cache.keys, cache.values]
    if type(cache) is SlidingKVCache:
        return [*cache.keys, *cache.values]
    if type(cache) is QuantizedKVCache:
        stores = cache.keys, cache.values
        return [x for store in stores for x in (store.open, *store.blocks)]
    return []


def _point(to: c.Store, store: BlockStore, index: int) -> None:
    """The parts of one layer."""
    to.exact = store.open[index].data_ptr()
    codes, scales, minima = store.blocks
    to.codes, to.scales, to.minima = (x[index].data_ptr() for x in (codes, scales, minima))


def _fits(cache: KVCache, config: ModelConfig, tensors: list[Tensor]) -> bool:
    """Whether the storage is what C++ takes it to be."""
    L, K, D = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    B = len(cache.lengths)
    if any(not x.is_contiguous() or x.device.type != "cpu" for x in tensors):
        return False
    exact: list[Tensor]
    shapes: list[tuple[int, ...]]
    if isinstance(cache, SlidingKVCache):
        if cache.config is not config and cache.config != config:
            return False
        exact = tensors
        shapes = [(B, K, sum(ring), D) for ring in [*cache.rings, *cache.rings]]
    elif isinstance(cache, QuantizedKVCache):
        exact, shapes = [cache.keys.open, cache.values.open], [(L, B, K, BLOCK, D)] * 2
        N, bytes_ = cache.capacity // BLOCK, D * cache.bits // 8
        for store in (cache.keys, cache.values):
            t, channels = store.group
            scales = (L, B, K, N, BLOCK // t, D // channels)
            found = [tuple(x.shape) for x in store.blocks]
            if found != [(L, B, K, N, BLOCK, bytes_), scales, scales]:
                return False
    else:
        assert isinstance(cache, DenseKVCache)
        exact, shapes = tensors, [(L, B, K, cache.capacity, D)] * 2
    same = [tuple(x.shape) for x in exact] == shapes and {x.dtype for x in exact} <= set(FLOATS)
    return same and len({x.dtype for x in exact}) == 1 and all(0 not in s for s in shapes)
