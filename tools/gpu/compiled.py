"""minillm's decode step by `torch.compile`: its kernels in plain PyTorch, which Inductor fuses.

The cache is static, and all of it is read at every step behind a mask: a compiled graph, like a
recorded one, knows no lengths.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.engines.cuda_kernels import Kernels
from minillm.engines.cuda_step import Places, RopeTables, run_step
from minillm.engines.cuda_weights import Weights
from minillm.kernels.reference import quantized_linear
from minillm.layers import mlp, norm
from minillm.layers.rope import apply_rope
from minillm.model import Transformer


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `minillm.layers.norm`."""
    return norm.rms_norm(x, weight, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of a sum, and the sum."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def swiglu(gate_up: Tensor) -> Tensor:
    """gate and up side by side."""
    return mlp.swiglu(*gate_up.chunk(2, dim=-1))


def geglu(gate_up: Tensor) -> Tensor:
    """gate and up side by side."""
    return mlp.geglu(*gate_up.chunk(2, dim=-1))


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    ring: int | None = None,
    sinks: int = 0,
) -> Tensor:
    """One token per row into a dense cache."""
    if cos is not None and sin is not None:
        turn = cos[positions][:, None], sin[positions][:, None]  # (B, 1, 1, R/2)
        q, k = apply_rope(q, *turn), apply_rope(k, *turn)
    rows = torch.arange(len(q), device=q.device)
    keys[rows, :, positions[:, 0]] = k[:, :, 0]
    values[rows, :, positions[:, 0]] = v[:, :, 0]
    return q


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    sinks: int = 0,
    ring: int | None = None,
) -> Tensor:
    """One query per head over the whole cache, the heads of a group in place of queries."""
    B, H, _, D = q.shape
    K, S = keys.shape[1:3]
    seen = torch.arange(S, device=q.device) < lengths[:, None, None, None]  # (B, 1, 1, S)
    grouped = q.reshape(B, K, H // K, D)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen, scale=scale)
    return out.reshape(B, H, 1, D)


def sample(scores: Tensor, *_: Tensor) -> Tensor:
    """Greedy."""
    return scores.argmax(-1)


def tensors_of(thing: Any) -> Iterator[Tensor]:
    """All tensors in dataclasses, sequences and dictionaries, however deep."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_of(value)
    elif isinstance(thing, list | tuple):
        for part in thing:
            yield from tensors_of(part)
    elif is_dataclass(thing):
        for field in fields(thing):
            yield from tensors_of(getattr(thing, field.name))


KERNELS = Kernels(
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    rope_and_cache=rope_and_cache,
    decode_attention=decode_attention,
    quantized_decode_attention=decode_attention,  # no such cache here
    quantized_linear=quantized_linear,
    swiglu=swiglu,
    geglu=geglu,
    sample=sample,
)


class CompiledStep:
    """A greedy decode step over a cache of its own. backend: of `torch.compile`."""

    def __init__(self, model: Transformer, rows: int, capacity: int, backend: str) -> None:
        config, table = model.config, model.embed_tokens.weight
        weights = Weights.of(model)
        shape = (rows, config.num_key_value_heads, capacity, config.head_dim)
        pairs = [(table.new_zeros(shape), table.new_zeros(shape)) for _ in config.layers]
        places = [Places(*pair) for pair in pairs]
        ropes = {layer.rope for layer in config.layers if layer.rope}
        tables = RopeTables(ropes, config.head_dim, capacity, table.device)

        def step(ids: Tensor, positions: Tensor) -> Tensor:
            where = ids[:, None], positions[:, None]
            hidden = run_step(weights, KERNELS, tables, places, *where)[:, 0]
            return weights.head(hidden, KERNELS).argmax(-1)

        # Tensors that stay in place: they would be copied at every replay otherwise.
        for tensor in tensors_of((weights, places, tables.tables)):
            torch._dynamo.mark_static_address(tensor)
        mode = "reduce-overhead" if backend == "inductor" else None
        self._step = torch.compile(step, backend=backend, mode=mode, fullgraph=True)

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids, positions: (B,). Returns the next ids, (B,)."""
        if ids.device.type == "cuda":
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        out: Tensor = self._step(ids, positions)
        return out.clone()
