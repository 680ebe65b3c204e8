"""The CUDA engine: Triton kernels, and CUDA graphs for the decode step."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from minillm.engines.base import Engine, Unsupported
from minillm.engines.cuda_cache import (
    Pool,
    PooledDense,
    PooledSliding,
    Storage,
    bucket,
    sliding_places,
)
from minillm.engines.cuda_coded import CodedPlaces, coded_places
from minillm.engines.cuda_decode import DeviceLoop
from minillm.engines.cuda_kernels import Kernels
from minillm.engines.cuda_step import Places, RopeTables, run_step
from minillm.engines.cuda_weights import Coded, Weights
from minillm.engines.graphs import GraphMemory, Recorded
from minillm.generate import Request
from minillm.kernels.triton import WIDEST_HEAD_ON_CODES
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.kv_cache.sliding import SlidingKVCache
from minillm.model import Transformer


class CudaEngine(Engine):
    """Runs steps of one new token per row, and prompts from their beginnings.

    On a cache of `new_cache` a step of one token is recorded as a CUDA graph, once for each storage
    and each power of two of rows, and replayed from then on; rows that pad a batch write nothing.
    Prompts, and steps on other caches, are launched kernel by kernel.

    The model's projections of the same input are joined, see `cuda_weights`; a weight that is
    exchanged or moved afterwards is not noticed.

    kernels: those of `minillm.kernels.triton` unless others of the same meaning are given, which
    may run on any device and are not recorded. Raises `Unsupported` where they cannot run, or not
    this model.
    """

    def __init__(self, model: Transformer, kernels: Kernels | None = None) -> None:
        weight = model.embed_tokens.weight
        self.config, self.dtype, self.device = model.config, weight.dtype, weight.device
        if others := {x.device for x in model.state_dict().values()} - {self.device}:
            where = ", ".join(sorted(map(str, {self.device, *others})))
            raise Unsupported(f"its weights are on several devices: {where}")
        self.kernels = kernels or Kernels.triton(self.device)
        self.weights = Weights.of(model)
        self.pool = Pool(self.config, self.dtype, self.device)
        recorded = self.device.type == "cuda" and kernels is None
        self.name = "cuda (Triton kernels, graphs)" if recorded else f"{self.device}, not recorded"
        self._graph_memory = GraphMemory() if recorded else None
        self._tables: dict[int, RopeTables] = {}
        self._one_at_a_time = Lock()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make the model's GPU the current one, where kernels are launched, for one thread.

        A recording bears neither another one beside it nor a thread that waits for the whole GPU.
        """
        gpu = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with self._one_at_a_time, gpu:
            yield

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache in the model's dtype, dense or sliding, on storage that keeps its graphs.

        Its tensors are not to be used once the cache is gone.
        """
        with torch.no_grad(), self.on_device():
            return self.pool.new_cache(batch_size, capacity)

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        counts: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | None:
        """As `Transformer.forward`, for one token per row, and for prompts from their beginnings.

        None for parts of a prompt after the first, for rings that the prompt would wrap around, and
        for prompts into a cache of codes.
        """
        B, T = ids.shape
        fresh = T > 1 and self._may_begin(cache, T)
        next_ = T == 1 and (counts is None or list(counts) == [1] * B)
        if not (fresh or next_) or not self._may_reach(cache, int(cache.lengths.max()) + T):
            return None
        if not self._same_rotation(cache, lengths, T):
            return None
        with torch.no_grad(), self.on_device():
            positions = cache.advance([T] * B if counts is None else counts, T)
            storage = storage_of(cache)
            if storage is None or fresh:
                where = ids, positions.to(self.device)
                return self._step(places_of(cache), *where, int(positions.max()) + 1)
            storage.state.place(positions[:, 0].tolist())
            storage.state.ids[:B] = ids[:, 0]
            self._launch(storage, B, "hidden")
            return storage.hidden[:B, None].clone()

    def logits(self, hidden: Tensor) -> Tensor | None:
        """As `Transformer.logits`: None, but for a head of coded weights."""
        rows = hidden.flatten(0, -2)
        if not isinstance(self.weights.head, Coded) or not len(rows):
            return None
        with torch.no_grad(), self.on_device():
            return self.weights.head(rows, self.kernels).view(*hidden.shape[:-1], -1)

    def decode(
        self, cache: KVCache, logits: Tensor, requests: Sequence[Request]
    ) -> Iterator[tuple[Request, int]] | None:
        """As `minillm.generate.decode`, with sampling on the device: see `DeviceLoop`.

        A request's generator gives a seed for all of its tokens, so sampled text differs from that
        of `decode` with the same seed, and is the same in any batch; greedy text is equal. Both but
        for the rounding of products, which on a GPU may depend on the number of rows.
        None, before anything has changed, for what is left to `decode`: a cache that is not from
        `new_cache` or lacks the room, and texts past the trained length with sinks.
        """
        if any(request.finish_reason for request in requests):
            return None
        left = [r.params.max_new_tokens - len(r.token_ids) - 1 for r in requests]
        longest = int((cache.lengths + torch.tensor(left)).max())
        if storage_of(cache) is None or not self._may_reach(cache, longest):
            return None
        assert isinstance(cache, PooledDense | PooledSliding)
        endless = isinstance(cache, PooledSliding) and cache.endless
        if longest > cache.capacity and not endless:
            return None
        return iter(DeviceLoop(self, cache, logits, requests))

    def launch(self, storage: Storage, rows: int) -> None:
        """Launch a step of `DeviceLoop`: from the state of the first rows to their next tokens."""
        self._launch(storage, rows, "greedy" if storage.state.greedy else "sampled")

    def _launch(self, storage: Storage, count: int, name: str) -> None:
        rows = min(bucket(count), storage.rows)
        if (name, rows) not in storage.graphs:
            step = CudaEngine._hidden_step if name == "hidden" else CudaEngine._token_step
            # Without a reference to its owners: their memory is to be free as soon as they are.
            owners, places = (weakref.proxy(self), weakref.proxy(storage)), storage.places(rows)
            run = partial(step, *owners, places, rows)
            storage.graphs[name, rows] = Recorded(run, self._graph_memory)
        storage.graphs[name, rows]()

    def _hidden_step(self, storage: Storage, places: Sequence[Places], rows: int) -> None:
        state = storage.state
        where = state.ids[:rows, None], state.positions[:rows, None]
        storage.hidden[:rows] = self._step(places, *where, storage.capacity)[:, 0]

    def _token_step(self, storage: Storage, places: Sequence[Places], rows: int) -> None:
        state = storage.state
        ids, positions = state.ids[:rows], state.positions[:rows]
        hidden = self._step(places, ids[:, None], positions[:, None], storage.capacity)[:, 0]
        positions.add_(positions >= 0)  # from here on: where the token stands that is chosen now
        state.choose(self.weights.head(hidden, self.kernels), self.kernels)

    def _step(
        self, places: Sequence[Places | CodedPlaces], ids: Tensor, positions: Tensor, longest: int
    ) -> Tensor:
        """`run_step` on rows of up to `longest` tokens."""
        tables = self._rope_tables(longest)
        return run_step(self.weights, self.kernels, tables, places, ids, positions)

    def _rope_tables(self, longest: int) -> RopeTables:
        length = bucket(longest)
        if length not in self._tables:
            ropes = {layer.rope for layer in self.config.layers if layer.rope}
            self._tables[length] = RopeTables(ropes, self.config.head_dim, length, self.device)
        return self._tables[length]

    def _may_reach(self, cache: KVCache, longest: int) -> bool:
        """Whether this engine runs rows of up to `longest` tokens, as far as the cache has room."""
        if not isinstance(cache, DenseKVCache | SlidingKVCache | QuantizedKVCache):
            return False
        wide = self.dtype == torch.float32 and self.config.head_dim > WIDEST_HEAD_ON_CODES
        if wide and isinstance(cache, QuantizedKVCache):
            return False
        storage = storage_of(cache)
        if storage is not None and longest > storage.capacity:
            return False  # an endless ring: there are no rotations for such positions
        # Beyond, a sliding cache turns its sinks for every step.
        sinks = any(layer.sinks for layer in self.config.layers)
        trained = self.config.max_position_embeddings
        return not (sinks and isinstance(cache, SlidingKVCache) and longest > trained)

    def _may_begin(self, cache: KVCache, count: int) -> bool:
        """Whether plain causal attention does for the first `count` tokens of every row."""
        if not isinstance(cache, DenseKVCache | SlidingKVCache) or bool(cache.lengths.any()):
            return False
        windows = (layer.sliding_window for layer in self.config.layers)
        return cache.keys[0].dtype == self.dtype and all(w is None or w >= count for w in windows)

    def _same_rotation(self, cache: KVCache, lengths: Tensor | None, count: int) -> bool:
        """Whether each of `count` tokens is turned as the last one of a text is."""
        if count == 1 and (lengths is None or torch.equal(lengths, cache.lengths + 1)):
            return True
        ropes = (layer.rope for layer in self.config.layers if layer.rope)
        return all(rope.rope_type not in ("dynamic", "longrope") for rope in ropes)


def storage_of(cache: KVCache) -> Storage | None:
    """The storage of a cache from an engine's pool, unless it has left it."""
    return cache.storage if isinstance(cache, PooledDense | PooledSliding) else None


def places_of(cache: KVCache) -> Sequence[Places | CodedPlaces]:
    """Where a cache keeps its keys and values, layer by layer."""
    if isinstance(cache, QuantizedKVCache):
        return coded_places(cache)
    if isinstance(cache, SlidingKVCache):
        return sliding_places(cache.config, cache.keys, cache.values)
    assert isinstance(cache, DenseKVCache)
    pairs = zip(cache.keys, cache.values, strict=True)
    return [Places(keys, values) for keys, values in pairs]
