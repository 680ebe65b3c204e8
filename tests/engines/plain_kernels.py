"""The CUDA engine's kernels in plain PyTorch, so that its logic is tested on any machine, fast.

Each is written from `minillm.layers` and `minillm.kv_cache`; that the Triton kernels mean the same
is for tests/kernels to show.
"""

import math

import torch
import torch.nn.functional as F

from minillm.kernels.reference import quantized_linear
from minillm.kv_cache.groups import KVGroups, dequantize_kv
from minillm.kv_cache.sliding import held_positions, ring_place
from minillm.layers import norm
from minillm.layers.attention import attention_mask
from minillm.layers.rope import apply_rope
from minillm.sampling import apply_min_p, apply_temperature, apply_top_k, apply_top_p

__all__ = [
    "add_rms_norm",
    "decode_attention",
    "geglu",
    "quantized_decode_attention",
    "quantized_linear",
    "rms_norm",
    "rope_and_cache",
    "sample",
    "swiglu",
]


def rms_norm(x, weight, eps):
    return norm.rms_norm(x, weight, eps).to(x.dtype)


def add_rms_norm(x, residual, weight, eps):
    return rms_norm(x + residual, weight, eps), x + residual


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def geglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def rope_and_cache(q, k, v, cos, sin, keys, values, positions, ring=None, sinks=0):
    """q (B, H, T, D), k and v (B, K, T, D), cos and sin (P, R/2) or None; positions (B, T)."""
    if cos is not None:
        turn = (table[positions.clamp(min=0)][:, None] for table in (cos, sin))
        cos, sin = turn  # (B, 1, T, R/2)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    rows, new = (positions >= 0).nonzero(as_tuple=True)
    places = positions[rows, new]
    places = places if ring is None else ring_place(places, ring, sinks)
    keys[rows, :, places] = k[rows, :, new].to(keys.dtype)
    values[rows, :, places] = v[rows, :, new].to(values.dtype)
    return q


def decode_attention(q, keys, values, lengths, scale, window=None, sinks=0, ring=None):
    """q (B, H, 1, D); keys, values (B, K, places, D); lengths (B,): 0 gives zeros."""
    B, H = q.shape[:2]
    K, S = keys.shape[1:3]
    positions = torch.arange(S, device=q.device).expand(B, S)
    if ring is not None:
        positions = held_positions(lengths.cpu(), ring, sinks).to(q.device)
    mask = attention_mask((lengths - 1)[:, None], positions, window, sinks)
    k, v = (x.float().repeat_interleave(H // K, dim=1) for x in (keys, values))
    scores = q.float() @ k.mT * scale
    out = scores.masked_fill(~mask, -math.inf).softmax(-1) @ v
    return torch.where((lengths > 0)[:, None, None, None], out, 0.0).to(q.dtype)


def quantized_decode_attention(q, keys, values, lengths, scale, window=None, sinks=0):
    """keys, values: codes, scales, minima and the open blocks, see `BlockStore`."""
    blocks = (lengths // 32)[:, None, None].clamp(max=keys[0].shape[2])
    whole = []
    for *groups, newest in (keys, values):
        bits = 8 if groups[0].shape[-1] == q.shape[-1] else 4
        full = dequantize_kv(KVGroups(*groups), bits).to(q.dtype)  # (B, K, N, 32, D)
        stored = torch.cat([full, torch.zeros_like(newest)[:, :, None]], dim=2)
        for row, block in enumerate(blocks.flatten().tolist()):
            stored[row, :, block] = newest[row]
        whole.append(stored.flatten(2, 3))
    k, v = whole
    return decode_attention(q, k, v, lengths, scale, window, sinks)


def sample(logits, temperature, top_k, top_p, min_p, seeds, draws, forbidden):
    """(B, V) to (B,), int64: as `minillm.sampling.sample`; -1 where there is no distribution."""
    tokens = []
    logits = logits.masked_fill(forbidden, -math.inf)
    for row, scores in enumerate(logits.float().cpu()):
        if not math.isfinite(float(scores.max())):
            tokens.append(-1)
        elif float(temperature[row]) == 0:
            tokens.append(int(scores.argmax()))
        else:
            scores = apply_temperature(scores, float(temperature[row]))
            scores = apply_top_k(scores, int(top_k[row]))
            scores = apply_min_p(apply_top_p(scores, float(top_p[row])), float(min_p[row]))
            generator = torch.Generator().manual_seed(int(seeds[row]) ^ (int(draws[row]) << 20))
            tokens.append(int(torch.multinomial(scores.softmax(-1), 1, generator=generator)))
    return torch.tensor(tokens, device=logits.device)
