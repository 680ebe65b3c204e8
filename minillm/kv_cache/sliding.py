"""The sliding KV cache: a layer with a window keeps its last tokens in a ring, and its sinks.

What a layer sees lies in its configuration (`LayerConfig.sliding_window` and `sinks`), and the mask
decides it. The cache only stops storing what no later query can see, so that the logits are those
of a dense cache, in constant memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minillm.config import LayerConfig, ModelConfig, RopeConfig
from minillm.kv_cache.base import KVCache, kept_lengths, new_positions
from minillm.layers.rope import apply_rope, rope_frequencies

__all__ = [
    "RingStep",
    "SlidingKVCache",
    "held_positions",
    "is_overwritten",
    "ring_place",
    "ring_shape",
    "ring_step",
    "sink_turns",
    "turn_sinks",
]


def ring_place(positions: Tensor, window: int, sinks: int = 0) -> Tensor:
    """Where a token is stored: a sink at its position, any other in a ring of `window` places.

    place(p) = p for p < sinks, else sinks + (p - sinks) mod window: a token takes the place of the
    one `window` before it, which has just left the window.

    positions: any shape, int64. Returns the same shape, places from 0 to sinks + window - 1.
    """
    return torch.where(positions < sinks, positions, sinks + (positions - sinks) % window)


def held_positions(lengths: Tensor, window: int, sinks: int = 0) -> Tensor:
    """The inverse of `ring_place`: which token each place holds after `lengths` tokens.

    Token i is the first to take place i; each further lap of the ring brings the token `window`
    later. A window of 4 and 1 sink hold, after 7 tokens, [0, 5, 6, 3, 4].

    lengths: (B,). Returns (B, sinks + window), int64, -1 for a place that holds nothing yet.
    """
    places, last = torch.arange(sinks + window), lengths[:, None] - 1
    laps = torch.where(places < sinks, 0, (last - places) // window)
    return torch.where(places <= last, places + laps * window, -1)


class RingStep(NamedTuple):
    """How one step reads and writes every layer with the same ring.

    stored: so many places are read. k_positions: (B, S), positions of the keys the queries get.
    in_place: what is new overwrites nothing that a query of this step needs, so it is written first
    and read where it is stored; otherwise the queries get the old places followed by the chunk.
    writes: (3, N), three numbers for each token that is kept: its row, its place in the step, and
    its place in the ring.
    """

    stored: int
    in_place: bool
    k_positions: Tensor
    writes: Tensor


def ring_step(
    before: Tensor,
    positions: Tensor,
    window: int,
    sinks: int = 0,
    device: torch.device | str = "cpu",
) -> RingStep:
    """Plan a step of T places per row on rings that have seen `before` tokens.

    Of a chunk only sinks and the last `window` tokens are written: no two go to the same place.

    before: (B,). positions: (B, T), those of the new tokens, -1 for padding.
    device: where the storage is.
    """
    after = before + (positions >= 0).sum(dim=1)  # (B,)
    in_place = positions.shape[1] == 1 or int(after.max()) <= sinks + window
    read = after if in_place else before
    stored = min(int(read.max()), sinks + window)
    k_positions = held_positions(read, window, sinks)[:, :stored]
    if not in_place:
        k_positions = torch.cat([k_positions, positions], dim=1)
    kept = (positions >= after[:, None] - window) | (positions < sinks)
    rows, new = (kept & (positions >= 0)).nonzero(as_tuple=True)
    places = ring_place(positions[rows, new], window, sinks)
    writes = torch.stack([rows, new, places]).to(device)
    return RingStep(stored, in_place, k_positions, writes)


def is_overwritten(lengths: Tensor, reached: Tensor, window: int, sinks: int = 0) -> Tensor:
    """Whether a ring that has seen `reached` tokens lacks part of the window at `lengths`.

    The next query would see the tokens from lengths - window + 1 on, and those before
    reached - window are gone. So one step back is always possible, because the newest token took
    the place of one that had left the window; more only before the ring wraps, or to the sinks.

    lengths, reached: (B,). Returns (B,), bool.
    """
    first = (lengths - window + 1).clamp(min=sinks)
    return first < torch.minimum(lengths, reached - window)


def sink_turns(
    config: ModelConfig, lengths: Tensor, width: int, device: torch.device | str = "cpu"
) -> dict[RopeConfig | None, tuple[Tensor, Tensor]]:
    """cos and sin that move sinks on, so that no distance to them exceeds the trained length.

    A row of n tokens, this step's included, moves them by n - max_position_embeddings tokens, but
    never back. Rotations add up: a key stored at position i is turned by i·θ already, and by
    (i + shift)·θ then. YaRN's attention factor is in the stored key, and stays out of these tables.

    lengths: (B,) tokens. width: places per row of this step. Returns for each RoPE two tensors
    (B, 1, 1, D/2), float32; nothing where no row is too long. Raises ValueError for a step so long
    that sinks would overtake its first query.
    """
    trained, most = config.max_position_embeddings, max(layer.sinks for layer in config.layers)
    shift = (lengths - trained).clamp(min=0)
    if not most or not shift.any():
        return {}
    if width > trained - most:
        raise ValueError(
            f"a step of {width} tokens per row; with {most} sinks, beyond the trained length of "
            f"{trained}, it may have {trained - most}"
        )
    turns: dict[RopeConfig | None, tuple[Tensor, Tensor]] = {}
    for rope in {layer.rope for layer in config.layers if layer.rope}:
        angles = shift.double()[:, None] * rope_frequencies(rope, config.head_dim, lengths)
        angles = angles[:, None, None]  # (B, 1, 1, D/2)
        turns[rope] = angles.cos().float().to(device), angles.sin().float().to(device)
    return turns


def turn_sinks(keys: Tensor, sinks: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the first `sinks` keys (B, K, S, D), as `apply_rope` does, and leave the others."""
    return torch.cat([apply_rope(keys[:, :, :sinks], cos, sin), keys[:, :, sinks:]], dim=2)


def ring_shape(layer: LayerConfig, capacity: int) -> tuple[int, int]:
    """Window and sinks of a layer's ring; one that never wraps where the layer has to keep all."""
    window, sinks = layer.sliding_window, layer.sinks
    return (capacity, 0) if window is None or window + sinks > capacity else (window, sinks)


class SlidingKVCache(KVCache):
    """Sinks and a ring for each layer with a window; every token for a layer without one.

    A layer with window W and s sinks has s + W places where those fit in `capacity`, and may go on
    for ever. Any other layer has `capacity` places, and then no row may outgrow them.
    Bytes: 2 · B · K · D · (places of all layers) · bytes per value.

    Up to `max_position_embeddings` tokens the results are those of a dense cache. Past it a sink
    lies further back than the model ever saw. It is then read as if it followed the text: turned so
    that the first sink is max_position_embeddings - 1 tokens before the last query of the step (in
    the mask it keeps its position). Earlier queries of a chunk see it nearer by their distance to
    the last, so that past the trained length the result depends a little on the chunk size.
    The bound is the one that holds without windows too: the longest text that the model's makers
    declare, context extension included.
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
        self.config, self.capacity = config, capacity
        self.rings = [ring_shape(layer, capacity) for layer in config.layers]
        self.endless = self.rings == [(x.sliding_window, x.sinks) for x in config.layers]
        K, D = config.num_key_value_heads, config.head_dim
        shapes = [(batch_size, K, window + sinks, D) for window, sinks in self.rings]
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self._reached = self.lengths  # (B,), as lengths, but a truncation does not lower it

    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """Begin a step, and plan it once for all layers with the same ring."""
        positions = new_positions(self.lengths, counts, width)  # (B, T)
        lengths = self.lengths + (positions >= 0).sum(dim=1)
        longest, device = int(lengths.max()), self.keys[0].device
        if not self.endless and longest > self.capacity:
            raise ValueError(f"the KV cache holds {self.capacity} tokens per row; {longest} needed")
        self._turns = sink_turns(self.config, lengths, width, device)
        self._steps = {r: ring_step(self.lengths, positions, *r, device) for r in set(self.rings)}
        self.lengths, self._reached = lengths, torch.maximum(self._reached, lengths)
        return positions

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store what later steps need of k and v; return what this step's queries may look at."""
        step, (_, sinks) = self._steps[self.rings[layer]], self.rings[layer]
        rows, new, places = step.writes
        seen = []
        for storage, x in ((self.keys[layer], k), (self.values[layer], v)):
            old, x = storage[:, :, : step.stored], x.to(storage.dtype)
            seen.append(old if step.in_place else torch.cat([old, x], dim=2))
            storage[rows, :, places] = x[rows, :, new]
        turn = self._turns.get(self.config.layers[layer].rope) if sinks else None
        keys, values = (x.to(k.dtype) for x in seen)
        return turn_sinks(keys, sinks, *turn) if turn else keys, values, step.k_positions

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from position lengths[b] on; ValueError where the window there is overwritten."""
        wanted = kept_lengths(self.lengths, lengths)
        if any(is_overwritten(wanted, self._reached, *ring).any() for ring in set(self.rings)):
            raise ValueError(
                f"lengths is {lengths}: part of a window is overwritten; from "
                f"{self._reached.tolist()} a row can go back by one token, or to its sinks"
            )
        self._reached = torch.where(wanted < self._reached - 1, wanted, self._reached)
        self.lengths = wanted

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; copies them."""
        index = torch.tensor(rows, dtype=torch.int64)
        self.lengths, self._reached = self.lengths[index], self._reached[index]
        index = index.to(self.keys[0].device)
        self.keys = [keys[index] for keys in self.keys]
        self.values = [values[index] for values in self.values]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' keys and values, filled or not."""
        return sum(tensor.nbytes for tensor in [*self.keys, *self.values])
