"""Rotary position embedding (RoPE): a query or key is turned by an angle that grows with position.

The D values of a head are D/2 pairs. Pair i is a point in the plane; at position p it is turned by
p · θ_i radians. A dot product of two turned points depends on the difference of their angles only,
so a score depends on the distance between query and key, not on where they stand.

Two layouts of the pairs exist, for the same rotation:

- half-split (used here, and by Hugging Face checkpoints): pair i is (x[i], x[i + D/2]);
- interleaved (the original paper, Meta's files, GGUF for Llama): pair i is (x[2i], x[2i + 1]).

A checkpoint is trained for one of them; reading it with the other scrambles every head. The two
are converted into each other by reordering the rows of the query and key projections.

Source: Su et al. 2021, arXiv 2104.09864, section 3.2.
"""

import math

import torch
from torch import Tensor

from minillm.config import RopeConfig

__all__ = ["apply_rope", "rope_frequencies", "rope_tables"]


def rope_frequencies(rope: RopeConfig, head_dim: int, lengths: Tensor | None = None) -> Tensor:
    """Angle per token of each pair: θ_i = rope_theta^(-2i/D), stretched as `rope_type` says.

    A stretch is a choice of what each pair keeps of its speed: kept·θ_i + (1 - kept)·θ_i / factor.

    - linear: kept is 0 for every pair (Chen et al. 2023, arXiv 2306.15595);
    - llama3: 1 for pairs that turn `high_freq_factor` times or more within the trained length, 0
      below `low_freq_factor` turns, between them in proportion to the turns (Llama 3.1);
    - yarn: the same idea, in proportion to the pair's index (Peng et al. 2023, arXiv 2309.00071,
      section 3.2);
    - dynamic: every pair by a larger base, once a row is longer than the trained length
      (NTK-aware; it needs `lengths`, and each row gets its own frequencies);
    - longrope: each pair by a factor of its own, out of one table for rows up to the trained length
      and another past it (Ding et al. 2024, arXiv 2402.13753; `lengths` too).

    With `partial_rotary_factor` only the first D values of a head count, as if they were all.

    lengths: (B,) tokens in each row, the whole prompt included; only "dynamic" and "longrope" look
    at it. Nothing is kept from call to call, so a long row never changes what a later or a
    neighbouring one gets. Keys in a cache keep the frequencies of the step that stored them.
    Returns float64, (D/2,), or (B, D/2) where it depends on lengths, in radians per token.
    """
    D, trained = rope.rotated(head_dim), rope.trained_length
    base = torch.tensor(rope.rope_theta, dtype=torch.float64)
    if rope.rope_type == "dynamic" and lengths is not None:
        stretch = (lengths.double() / trained).clamp(min=1.0)  # 1 up to the trained length
        growth = torch.where(stretch > 1, rope.factor * stretch - (rope.factor - 1), 1.0)
        base = (base * growth ** (D / max(D - 2, 1)))[:, None]
    frequencies = base ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    if rope.rope_type in ("default", "dynamic"):
        return frequencies
    if rope.rope_type == "longrope":
        short, long = torch.tensor([rope.short_factor, rope.long_factor], dtype=torch.float64)
        past = torch.tensor(False) if lengths is None else (lengths > trained)[:, None]
        return frequencies / torch.where(past, long, short)
    kept = torch.zeros_like(frequencies)
    if rope.rope_type == "llama3":
        turns = trained * frequencies / (2 * math.pi)  # full turns within the trained length
        kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    if rope.rope_type == "yarn":
        kept = 1 - _yarn_ramp(rope, D)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> Tensor:
    """0 for pairs that turn more than beta_fast times within the trained length, 1 for the slow."""

    def pair_that_turns(turns: float) -> float:
        """Index i, a fraction, at which trained · θ_i = turns · 2π."""
        wavelength = rope.trained_length / (turns * 2 * math.pi)  # 1 / θ_i, in tokens per radian
        return head_dim * math.log(wavelength) / (2 * math.log(rope.rope_theta))

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    # The reference clamps to D - 1, not to the last pair.
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp, without dividing by zero
    pairs = torch.arange(head_dim // 2, dtype=torch.float64)
    return ((pairs - low) / (high - low)).clamp(0, 1)


def rope_tables(
    positions: Tensor, rope: RopeConfig, head_dim: int, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle that one forward pass needs, computed once for all layers.

    positions: (B, T), whole numbers; -1 marks padding. Angles are computed in float64: at position
    8,191 half precision would round to multiples of 4. lengths: (B,), see `rope_frequencies`; the
    last position + 1 unless given.
    Returns cos and sin, each (B, 1, T, D/2) in float32, both times `rope.attention_scale`.
    """
    lengths = positions.amax(dim=1) + 1 if lengths is None else lengths
    frequencies = rope_frequencies(rope, head_dim, lengths)  # (D/2,) or (B, D/2)
    frequencies = frequencies if frequencies.dim() == 2 else frequencies[None]
    angles = positions.double()[:, :, None] * frequencies[:, None, :]  # (B, T, D/2)
    cos, sin = angles.cos() * rope.attention_scale, angles.sin() * rope.attention_scale
    return cos.float()[:, None], sin.float()[:, None]  # one entry for every head


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) by its angle.

    (a, b) → (a·cos − b·sin, a·sin + b·cos), computed in float32.

    x: (B, H, T, D), queries or keys. cos, sin: (B, 1, T, D/2) from `rope_tables`; where they are
    narrower, the values of x beyond their pairs stay as they are.
    Returns (B, H, T, D) in x's dtype.
    """
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1).to(x.dtype)
