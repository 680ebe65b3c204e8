"""The sliding KV cache: a layer with a window keeps its last tokens in a ring, and its sinks.

What a layer sees lies in its configuration (`LayerConfig.sliding_window` and `sinks`), and the mask
decides it. The cache only stops storing what no later query can see, so that the logits are those
of a dense cache, in constant memory.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minillm.config import LayerConfig, ModelConfig
from minillm.kv_cache.base import KVCache, new_positions
from minillm.layers.rope import apply_rope, rope_frequencies

__all__ = [
    "RingStep",
    "SlidingKVCache",
    "held_positions",
    "ring_place",
    "ring_shape",
    "ring_step",
    "turn_keys",
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
    rows, new, places: token new[i] of row rows[i] is written to places[i].
    """

    stored: int
    in_place: bool
    k_positions: Tensor
    rows: Tensor
    new: Tensor
    places: Tensor


def ring_step(before: Tensor, positions: Tensor, window: int, sinks: int = 0) -> RingStep:
    """Plan a step of T places per row on rings that have seen `before` tokens.

    Of a chunk only sinks and the last `window` tokens are written: no two go to the same place.

    before: (B,). positions: (B, T), those of the new tokens, -1 for padding.
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
    return RingStep(stored, in_place, k_positions, rows, new, places)


def turn_keys(keys: Tensor, tokens: Tensor, frequencies: Tensor) -> Tensor:
    """Make keys look as if they stood `tokens` further on: turn each pair by tokens · θ.

    Rotations add up: a key stored at position i is turned by i·θ already, and by (i + n)·θ after.

    keys: (B, K, s, D). tokens: (B,). frequencies: (D/2,) or (B, D/2), radians per token.
    Returns (B, K, s, D).
    """
    angles = (tokens.double()[:, None] * frequencies)[:, None, None]  # (B, 1, 1, D/2)
    return apply_rope(
        keys, angles.cos().float().to(keys.device), angles.sin().float().to(keys.device)
    )


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
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; at least 1 is needed")
        self.config, self.capacity = config, capacity
        self.rings = [ring_shape(layer, capacity) for layer in config.layers]
        windows = [(layer.sliding_window, layer.sinks) for layer in config.layers]
        self.endless = windows == self.rings
        K, D = config.num_key_value_heads, config.head_dim
        shapes = [(batch_size, K, window + sinks, D) for window, sinks in self.rings]
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)
        self._reached = self.lengths  # (B,), as lengths, but a truncation does not lower it

    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """Begin a step; plan it once for all layers with the same ring."""
        positions = new_positions(self.lengths, counts, width)  # (B, T)
        lengths = self.lengths + (positions >= 0).sum(dim=1)
        trained = self.config.max_position_embeddings
        if not self.endless and lengths.max() > self.capacity:
            raise ValueError(
                f"the KV cache holds {self.capacity} tokens per row; {int(lengths.max())} needed"
            )
        sinks = max(sinks for _, sinks in self.rings)
        if sinks and lengths.max() > trained and width > trained - sinks:
            raise ValueError(
                f"a step of {width} places; past the trained length of {trained} tokens a step "
                f"may have {trained - sinks}, or sinks would follow the queries"
            )
        self._beyond = (lengths - trained).clamp(min=0)
        device = self.keys[0].device
        self._steps = {}
        for ring in set(self.rings):
            step = ring_step(self.lengths, positions, *ring)
            index = torch.stack([step.rows, step.new, step.places]).to(device)
            self._steps[ring] = step._replace(rows=index[0], new=index[1], places=index[2])
        self.lengths, self._reached = lengths, torch.maximum(self._reached, lengths)
        return positions

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store what later steps need of k and v; return what this step's queries may look at."""
        step = self._steps[self.rings[layer]]
        seen = []
        for stored, new in ((self.keys[layer], k), (self.values[layer], v)):
            old = stored[:, :, : step.stored]
            seen.append(old if step.in_place else torch.cat([old, new], dim=2))
            stored[step.rows, :, step.places] = new[step.rows, :, step.new]
        return self._turn_sinks(seen[0], layer), seen[1], step.k_positions

    def _turn_sinks(self, keys: Tensor, layer: int) -> Tensor:
        rope, sinks = self.config.layers[layer].rope, self.rings[layer][1]
        if not sinks or rope is None or not self._beyond.any():
            return keys
        frequencies = rope_frequencies(rope, self.config.head_dim, self.lengths)
        turned = turn_keys(keys[:, :, :sinks], self._beyond, frequencies)
        return torch.cat([turned, keys[:, :, sinks:]], dim=2)

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from position lengths[b] on, as far as the rings still hold the window there.

        Raises ValueError for a length whose window is overwritten. That leaves all lengths before
        the ring wraps; after that, the length itself, one less, and up to the number of sinks.
        """
        wanted, reached = torch.tensor(lengths, dtype=torch.int64), self._reached
        if wanted.shape != self.lengths.shape or wanted.min() < 0 or (wanted > self.lengths).any():
            raise ValueError(
                f"lengths is {list(lengths)}; at most {self.lengths.tolist()} can be kept"
            )
        back = wanted < reached - 1  # the last token overwrote one that was leaving the window
        for window, sinks in set(self.rings):
            lost = back & (reached > sinks + window) & (wanted > sinks)
            for row in lost.nonzero().flatten().tolist():
                raise ValueError(
                    f"row {row} cannot go back to {lengths[row]} tokens: after {int(reached[row])} "
                    f"a window of {window} is overwritten; {int(reached[row]) - 1} or more can be "
                    f"kept, or {sinks} or fewer"
                )
        self.lengths, self._reached = wanted, torch.where(back, wanted, reached)

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
