"""The C++ engine: a whole forward pass in one call, on one team of threads."""

import ctypes
import os
import time
from collections.abc import Sequence
from ctypes import byref, c_double

import torch
from torch import Tensor

from minillm.engines import cpu_structs as c
from minillm.engines.base import Engine, Unsupported
from minillm.engines.cpu_cache import CacheView
from minillm.engines.cpu_model import CpuModel
from minillm.engines.cpu_tokens import Tables, Tokens
from minillm.kernels import cpu
from minillm.kv_cache.base import KVCache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.kv_cache.sliding import SlidingKVCache
from minillm.model import Transformer

# Weights in floating point are read once for each of so few tokens; with more of them PyTorch's
# matrix products are faster.
FEW_TOKENS = 8

# From so many tokens of a row on, a cache lies in large pages: a step of SmolLM2 at 4,096 tokens
# took 0.3 ms less. For memory that nothing was written to yet this costs nothing, as when a long
# prompt comes first; a text that has grown so long, 0.25 s in 16 bits and 0.12 s in 8, once (AMD
# EPYC, 2 threads, 2026-11-30).
LONG_CACHE = 1024

_importing_process = os.getpid()


class CpuEngine(Engine):
    """Runs a `Transformer` on a CPU in C++, with the arithmetic in float32.

    It runs the dense families with linear layers of ggml's blocks, of INT8 or INT4 codes
    (`QuantizedLinear`) or in floating point, on dense, sliding and quantized caches. Where a layer
    has codes, its inputs are rounded to 8 bits per 32 columns (`reference.quantize_blocks`). In a
    model of a 16-bit dtype the modules round after each operation, and the engine only at the end.

    Weights in floating point are read in place, codes from a copy that is made here. What is
    replaced, or changed in place, is noticed when the next text begins (at a step of several
    tokens, or on another cache), and the model is read anew: modules, tensors, other attributes. It
    is not noticed where PyTorch does not count it: codes changed in place through `.data` or made
    in inference mode. Forward hooks are looked for at the same moments: with one anywhere in the
    model the modules run, or it would hear nothing; and where gradients of a weight are recorded.

    It uses as many threads as PyTorch does (`torch.set_num_threads`), and one in a forked process,
    where OpenMP's threads are not there any more.
    Raises `Unsupported` where there is no library, and for models it cannot run.
    """

    def __init__(self, model: Transformer) -> None:
        if reason := cpu.why_not():
            raise Unsupported(reason)
        self.name = f"cpu ({cpu.variant()})"
        self._source = model
        self._model: CpuModel | None = CpuModel(model)
        self._library = _declare(cpu.load_library())
        self._view: CacheView | None = None
        self._in_large_pages = False
        self._tables, self._tokens = Tables(), Tokens.none()
        self._seconds: ctypes.Array[c_double] | None = None

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        counts: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | None:
        """As of `Engine`."""
        if ids.shape[-1] > 1 or self._view is None or not self._view.is_of(cache):
            self._look(cache)
        model, view = self._model, self._view
        if model is None or view is None or not self._runs(model, ids, cache, counts):
            return None
        B, T = ids.shape
        before = cache.lengths
        positions = _advance(cache, [T] * B if counts is None else counts, T)
        self._tokens = tokens = Tokens.of(ids, positions, counts is None, self._tokens)
        hidden = self._run(model, view, tokens, before, positions, lengths)
        if tokens.real is not None:  # padding stays 0
            whole = torch.zeros(B, T, model.config.hidden_size)
            whole[tokens.real] = hidden
            hidden = whole
        return hidden.view(B, T, -1).to(model.dtype)

    def logits(self, hidden: Tensor) -> Tensor | None:
        """As of `Engine`."""
        model = self._model
        if model is None or model.head is None or hidden.device.type != "cpu":
            return None
        if hidden.requires_grad and torch.is_grad_enabled():
            return None
        head, M = model.head, hidden.numel() // max(hidden.shape[-1], 1)
        if hidden.shape[-1] != head.shape[1] or not (head.coded or M <= FEW_TOKENS):
            return None
        values = hidden.detach().reshape(M, head.shape[1]).float().contiguous()
        scores = torch.empty(M, head.shape[0])
        seconds = self._clock(len(c.STAGES))
        if M and self._library.mm_head(
            head.handle, values.data_ptr(), M, scores.data_ptr(), threads(), seconds
        ):
            raise MemoryError(f"no memory for the logits of {M} tokens")
        return scores.view(*hidden.shape[:-1], head.shape[0]).to(hidden.dtype)

    def profile(self, ids: Tensor, cache: KVCache) -> dict[str, float]:
        """Run one step and its logits; return the seconds of each part, of all layers together.

        ids: (B, T). The cache gains the step. Waiting for the slowest thread counts as part of what
        is waited for; "python" is all outside of C++'s stages. Raises ValueError for a step that
        the engine leaves to the modules.
        """
        self._seconds = (c_double * (len(c.STAGES) + len(c.HEAD_STAGES)))()
        try:
            start = time.perf_counter()
            hidden = self.forward(ids, cache)
            scores = None if hidden is None else self.logits(hidden[:, -1])
            whole = time.perf_counter() - start
            parts = dict(zip(c.STAGES + c.HEAD_STAGES, self._seconds, strict=True))
        finally:
            self._seconds = None
        if scores is None:
            raise ValueError(f"the modules run a step of shape {tuple(ids.shape)} on this cache")
        return parts | {"python": whole - sum(parts.values())}

    def _look(self, cache: KVCache) -> None:
        """Read the model anew where a part of it was replaced, and see where the cache lies."""
        if self._model is None or not self._model.is_current():
            try:
                self._model = CpuModel(self._source)
            except Unsupported:
                self._model = None
        self._view, self._in_large_pages = None, False
        if self._model is not None and not self._model.needs_modules():
            self._view = CacheView.of(cache, self._model.config)

    def _runs(
        self, model: CpuModel, ids: Tensor, cache: KVCache, counts: Sequence[int] | None
    ) -> bool:
        """Whether this step is one for the engine; what is wrong with it, the modules will say."""
        if ids.ndim != 2 or ids.dtype != torch.int64 or ids.device.type != "cpu":
            return False
        B, T = ids.shape
        few = model.all_coded or B * T <= FEW_TOKENS
        if len(cache.lengths) != B or B * T == 0 or not few:
            return False
        low, high = ids.aminmax()
        if low < 0 or high >= model.config.vocab_size:
            return False
        # Past the trained length the sliding cache turns sinks on; that is left to the modules.
        if not model.has_sinks or not isinstance(cache, SlidingKVCache):
            return True
        added = T if counts is None else max(counts, default=0)
        trained: int = model.config.max_position_embeddings
        return int(cache.lengths.max()) + added <= trained

    def _run(
        self,
        model: CpuModel,
        view: CacheView,
        tokens: Tokens,
        before: Tensor,
        positions: Tensor,
        lengths: Tensor | None,
    ) -> Tensor:
        """The hidden states (N, C) of the tokens that are there."""
        N = len(tokens.ids)
        hidden = torch.empty(N, model.config.hidden_size)
        if not N:
            return hidden
        held = int((before + tokens.longest).max())  # at least what the longest row holds now
        if held >= LONG_CACHE and not self._in_large_pages:
            self._use_large_pages(view)
        ropes, tables = self._tables.of(model, positions, tokens.real, held, lengths)
        step = c.Step(
            N=N, B=len(before), longest=tokens.longest, longest_after=held,
            ids=tokens.ids.data_ptr(), rows=tokens.rows.data_ptr(),
            positions=tokens.positions.data_ptr(), starts=tokens.starts.data_ptr(),
            before=before.data_ptr(), ropes=ropes, form=ctypes.pointer(view.form),
            caches=view.layers, hidden=hidden.data_ptr(), seconds=self._clock(0),
            threads=threads(),
        )  # fmt: skip
        if self._library.mm_step(byref(model.struct), byref(step)):
            raise MemoryError(f"no memory for a step of {N} tokens")
        del tables  # until here C++ read them
        return hidden

    def _use_large_pages(self, view: CacheView) -> None:
        """Put a long cache into large pages: a step reads all of it, as it does the weights."""
        for tensor in view.tensors:
            if (found := tensor()) is not None:
                self._library.mm_in_large_pages(found.data_ptr(), found.nbytes)
        self._in_large_pages = True

    def _clock(self, offset: int) -> "ctypes._Pointer[c_double] | None":
        """Where C++ adds up the seconds of its stages; None: it does not measure."""
        if self._seconds is None:
            return None
        address = ctypes.addressof(self._seconds) + offset * ctypes.sizeof(c_double)
        return ctypes.cast(address, ctypes.POINTER(c_double))


def _advance(cache: KVCache, counts: Sequence[int], T: int) -> Tensor:
    """`cache.advance`, without what only `cache.update` asks for: 0.2 ms on an 8-bit cache."""
    plain = T == 1 and all(count == 1 for count in counts) and len(counts) == len(cache.lengths)
    if not plain or not isinstance(cache, DenseKVCache | QuantizedKVCache):
        return cache.advance(counts, T)
    if cache.lengths.max() >= cache.capacity:
        return cache.advance(counts, T)  # it says what is wrong
    positions = cache.lengths[:, None]
    cache.lengths = cache.lengths + 1
    return positions


def threads() -> int:
    """As many as PyTorch uses; in a forked process one, for there the others are gone."""
    return torch.get_num_threads() if os.getpid() == _importing_process else 1


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of this engine's two functions."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.mm_step.argtypes = [pointer, pointer]
    library.mm_head.argtypes = [pointer, pointer, number, pointer, number, pointer]
    library.mm_step.restype = library.mm_head.restype = ctypes.c_int32
    return library
