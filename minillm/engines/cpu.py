"""The C++ engine: a whole forward pass in one call, on one team of threads."""

import ctypes
import os
from collections.abc import Sequence
from ctypes import byref, c_double

import torch
from torch import Tensor

from minillm.config import RopeConfig
from minillm.engines import cpu_structs as c
from minillm.engines.base import Engine, Unsupported
from minillm.engines.cpu_cache import CacheView
from minillm.engines.cpu_model import CpuModel
from minillm.kernels import cpu
from minillm.kv_cache.base import KVCache
from minillm.layers.rope import rope_tables
from minillm.model import Transformer

# Weights in floating point are read once for each of so few tokens; with more of them PyTorch's
# matrix products are faster.
FEW_TOKENS = 8
# RoPE types whose angles depend on the length of the text, not on the position alone.
BY_LENGTH = ("dynamic", "longrope")

_importing_process = os.getpid()


class CpuEngine(Engine):
    """Runs a `Transformer` on a CPU in C++, with the arithmetic in float32.

    It runs the dense families with linear layers of ggml's blocks, of INT8 or INT4 codes
    (`QuantizedLinear`) or in floating point, on dense, sliding and quantized caches. Where a layer
    has codes, its inputs are rounded to 8 bits per 32 columns (`reference.quantize_blocks`). In a
    model of a 16-bit dtype the modules round after each operation, and the engine only at the end.

    Weights in floating point are read in place, codes from a copy that is made here. A module or
    tensor that is replaced afterwards is noticed, and the model read anew; codes that are changed
    in place are not. With forward hooks anywhere in the model the modules run, or the hooks would
    hear nothing. Results carry no gradient.

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
        self._library = _declare(cpu.library())
        self._view: CacheView | None = None
        self._tables: dict[RopeConfig, tuple[Tensor, Tensor]] = {}
        self._seconds: ctypes.Array[c_double] | None = None

    def forward(
        self,
        ids: Tensor,
        cache: KVCache,
        counts: Sequence[int] | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor | None:
        """As of `Engine`."""
        model = self._current()
        if model is None or not self._runs(model, ids, cache, counts):
            return None
        view = self._view_of(cache, model)
        if view is None or (len(ids) != len(cache.lengths)):
            return None
        B, T = ids.shape
        before = cache.lengths
        positions = cache.advance([T] * B if counts is None else counts, T)
        return self._run(model, view, ids, positions, before, lengths)

    def logits(self, hidden: Tensor) -> Tensor | None:
        """As of `Engine`."""
        model = self._current()
        if model is None or model.head is None or hidden.device.type != "cpu":
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
        is waited for; "python" is all outside of C++. Raises ValueError for a step that the engine
        leaves to the modules.
        """
        import time

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

    def _current(self) -> CpuModel | None:
        """The model as it is now, read anew where a part was replaced; None: the modules run it."""
        if self._model is None or not self._model.is_current():
            try:
                self._model = CpuModel(self._source)
            except Unsupported:
                self._model = None
        return None if self._model is None or self._model.is_hooked() else self._model

    def _runs(
        self, model: CpuModel, ids: Tensor, cache: KVCache, counts: Sequence[int] | None
    ) -> bool:
        """Whether this step is one for the engine; what is wrong with it, the modules will say."""
        if ids.ndim != 2 or ids.dtype != torch.int64 or ids.device.type != "cpu" or not len(ids):
            return False
        B, T = ids.shape
        if T == 0 or not (model.all_coded or B * T <= FEW_TOKENS):
            return False
        low, high = ids.aminmax()
        if low < 0 or high >= model.config.vocab_size:
            return False
        sinks = max(layer.sinks for layer in model.config.layers)
        if not sinks:
            return True
        # Past the trained length the sliding cache turns sinks on; that is left to the modules.
        longest = int(cache.lengths.max()) + (T if counts is None else max(counts, default=0))
        return longest <= model.config.max_position_embeddings

    def _view_of(self, cache: KVCache, model: CpuModel) -> CacheView | None:
        if self._view is None or not self._view.is_of(cache):
            self._view = CacheView.of(cache, model.config)
        return self._view

    def _run(
        self,
        model: CpuModel,
        view: CacheView,
        ids: Tensor,
        positions: Tensor,
        before: Tensor,
        lengths: Tensor | None,
    ) -> Tensor:
        """Run the step for the tokens that are there; padding stays 0 in the result."""
        B, T = ids.shape
        real = positions >= 0
        padded = not bool(real.all())
        rows = torch.arange(B)[:, None].expand(B, T)
        ids, rows, flat = (x[real] if padded else x.reshape(-1) for x in (ids, rows, positions))
        starts = torch.zeros(B + 1, dtype=torch.int64)
        starts[1:] = real.sum(dim=1).cumsum(0)
        hidden = torch.empty(len(flat), model.config.hidden_size)
        if len(flat):
            ropes, tables = self._ropes(model, positions, real, lengths)
            step = c.Step(
                N=len(flat), B=B,
                longest=int((starts[1:] - starts[:-1]).max()),
                longest_after=int((before + starts[1:] - starts[:-1]).max()),
                ids=ids.data_ptr(), rows=rows.data_ptr(), positions=flat.data_ptr(),
                starts=starts.data_ptr(), before=before.data_ptr(),
                ropes=ropes, form=ctypes.pointer(view.form), caches=view.layers,
                hidden=hidden.data_ptr(), seconds=self._clock(0), threads=threads(),
            )  # fmt: skip
            if self._library.mm_step(byref(model.struct), byref(step)):
                raise MemoryError(f"no memory for a step of {len(flat)} tokens")
            del tables
        if padded:
            whole = torch.zeros(B, T, model.config.hidden_size)
            whole[real] = hidden
            hidden = whole
        return hidden.view(B, T, -1).to(model.dtype)

    def _clock(self, offset: int) -> "ctypes._Pointer[c_double] | None":
        """Where C++ adds up the seconds of its stages; None: it does not measure."""
        if self._seconds is None:
            return None
        address = ctypes.addressof(self._seconds) + offset * ctypes.sizeof(c_double)
        return ctypes.cast(address, ctypes.POINTER(c_double))

    def _ropes(
        self, model: CpuModel, positions: Tensor, real: Tensor, lengths: Tensor | None
    ) -> tuple[ctypes.Array[c.Rope], list[Tensor]]:
        """The step's tables, one for each kind of rotation; and the tensors that hold them."""
        D = model.config.head_dim
        tables: list[Tensor] = []
        ropes = (c.Rope * len(model.ropes))()
        for rope, config in zip(ropes, model.ropes, strict=True):
            if config.rope_type in BY_LENGTH:  # a row for each token
                both = rope_tables(positions, config, D, lengths)
                cos, sin = (x[:, 0][real].contiguous() for x in both)
            else:  # a row for each position
                cos, sin = self._static_tables(config, D, int(positions.max()) + 1)
            rope.cos, rope.sin, rope.pairs = cos.data_ptr(), sin.data_ptr(), cos.shape[1]
            rope.by_token = config.rope_type in BY_LENGTH
            tables += [cos, sin]
        return ropes, tables

    def _static_tables(self, rope: RopeConfig, D: int, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin for positions up to `count` at least, kept from step to step."""
        known = self._tables.get(rope)
        if known is None or len(known[0]) < count:
            size = max(count, 2 * len(known[0]) if known else 1024)
            cos, sin = rope_tables(torch.arange(size)[None], rope, D)
            known = self._tables[rope] = cos[0, 0].contiguous(), sin[0, 0].contiguous()
        return known


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
