"""Engines: ways to run a whole step faster than module by module, and the choice between them."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

from minillm import generate
from minillm.engines.base import Accelerated, Engine, Unsupported
from minillm.generate import Request
from minillm.kv_cache import new_cache
from minillm.kv_cache.base import KVCache
from minillm.model import Transformer
from minillm.quantization.blocks import BLOCK_BYTES
from minillm.quantization.scheme import Scheme
from minillm.weights.source import ModelSource

BACKENDS = ("auto", "torch", "cpu", "cuda")
# What a packed matrix takes beside its blocks: less than 2 lines of 64 bytes.
PACKING_BYTES = 128


def accelerate(model: Transformer, backend: str = "auto") -> Transformer:
    """The model, run by the engine of this name where there is one.

    backend: "torch" is plain PyTorch, module by module; "cpu" the C++ engine; "cuda" Triton kernels
    and CUDA graphs; "auto" the one that fits the model's device, or plain PyTorch with one warning
    that says why. Raises ValueError for an unknown name, and where a named engine cannot run here.
    """
    device = next(model.parameters()).device
    check_backend(backend, device)
    # Plain PyTorch is the fast path on Apple's MPS.
    if backend == "torch" or device.type not in ("cpu", "cuda"):
        return model
    try:
        return Accelerated(model, open_engine(device.type, model))
    except Unsupported as reason:
        if backend != "auto":
            raise ValueError(f"backend {backend!r} cannot run this model: {reason}") from reason
        _warn_once(f"running on plain PyTorch, which is slower: {reason}")
        return model


def check_backend(backend: str, device: torch.device) -> None:
    """Raise ValueError for an unknown backend, or one that works on other devices than this."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is {backend!r}; known are {', '.join(BACKENDS)}")
    if backend not in ("auto", "torch", device.type):
        raise ValueError(
            f"backend {backend!r} cannot run this model: the model is on the device {device.type}"
        )


def fastest_form(
    backend: str,
    source: ModelSource,
    device: torch.device,
    dtype: str | torch.dtype,
    quantize: str | Scheme | None,
    kv_cache: str | None,
) -> tuple[str | Scheme | None, str | None]:
    """How to store weights and cache for this backend: `quantize` and `kv_cache`, or less.

    For the C++ engine, where neither quantize nor dtype was given and a GGUF file is there, it is
    the blocks of that, the fewest bytes to read, and float16 for a cache that was left open too.
    Raises ValueError as `check_backend`, and for a GGUF file that cannot be read: where "auto" was
    asked for, a warning says it, and the other weights are taken.
    """
    check_backend(backend, device)
    free = quantize is None and dtype == "auto" and device.type == "cpu"
    if not free or backend not in ("auto", "cpu") or source.gguf is None:
        return quantize, kv_cache
    from minillm.kernels import cpu

    if cpu.why_not():
        return quantize, kv_cache
    try:
        kinds = {tensor.kind for tensor in source.block_weights.values()}
    except ValueError as error:
        if backend != "auto" or source.gguf == source.path:
            raise
        _warn_once(f"the blocks of a GGUF file are not used: {error}")
        return quantize, kv_cache
    if kinds.isdisjoint(BLOCK_BYTES):
        return quantize, kv_cache
    return "gguf", kv_cache or "float16"


def room_for_weights(
    backend: str, source: ModelSource, device: torch.device, quantize: str | Scheme | None
) -> AbstractContextManager[None]:
    """A block in which a model is loaded: memory for what the C++ engine packs is there then."""
    if quantize != "gguf" or backend not in ("auto", "cpu") or device.type != "cpu":
        return nullcontext()
    from minillm.kernels import cpu
    from minillm.kernels.cpu.products import room

    weights = source.block_weights
    untied = any(name.startswith("lm_head.") for name in weights)
    packed = (
        tensor.data.nbytes
        for name, tensor in weights.items()
        if tensor.kind in BLOCK_BYTES and not (untied and "embed_tokens" in name)
    )
    return nullcontext() if cpu.why_not() else room(sum(packed) + len(weights) * PACKING_BYTES)


def open_engine(name: str, model: Transformer) -> Engine:
    """The engine "cpu" or "cuda" for this model; `Unsupported` says why there is none."""
    with torch.inference_mode():
        if name == "cpu":
            from minillm.engines.cpu import CpuEngine

            return CpuEngine(model)
        from minillm.engines.cuda import CudaEngine

        return CudaEngine(model)


def cache_for(
    model: Transformer, batch_size: int, capacity: int, *, kind: str | None = None
) -> KVCache:
    """An empty KV cache for a model, of the dtype and on the device of its weights.

    kind: as of `new_cache`. On storage of the model's engine, where that has some and kind is None.
    """
    if kind is None and isinstance(model, Accelerated) and model.in_charge:
        cache = model.engine.new_cache(batch_size, capacity)
        if cache is not None:
            return cache
    weight = next(model.parameters())
    sizes = model.config, batch_size, capacity
    return new_cache(*sizes, dtype=weight.dtype, device=weight.device, kind=kind)


def decode(
    model: Transformer, cache: KVCache, logits: Tensor, requests: Sequence[Request]
) -> Iterator[tuple[Request, int]]:
    """`minillm.generate.decode`, or the loop that the model's engine has for such requests."""
    steps = None
    if isinstance(model, Accelerated) and model.in_charge:
        steps = model.engine.decode(cache, logits, requests)
    return generate.decode(model, cache, logits, requests) if steps is None else steps


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=4)
