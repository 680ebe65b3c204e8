"""The quantized KV cache: all but the newest tokens are kept as small whole numbers.

A group of keys is one channel of 32 tokens, so it can be rounded only once all 32 are there. Until
then they are kept exact, and the values with them.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.kv_cache.base import KVCache, kept_lengths, new_positions
from minillm.kv_cache.groups import KVGroups, channels_per_group, dequantize_kv, quantize_kv

# So many tokens are rounded at once.
BLOCK = 32


class BlockStep(NamedTuple):
    """How one step reads and writes every layer.

    A row's new tokens begin in its open block, and may fill that and further ones.
    width: so many blocks, from the open one on, at most.
    tokens: (3, N), for each new token: its row, its place in the step, its place in these blocks.
    filled: (3, M), for each block that becomes full: its row, its number among these, and in all.
    open: (3, B), the same for the block that is open afterwards, one of each row.
    k_positions: (B, S).
    """

    width: int
    tokens: Tensor
    filled: Tensor
    open: Tensor
    k_positions: Tensor

    @classmethod
    def plan(cls, before: Tensor, positions: Tensor, device: torch.device) -> "BlockStep":
        """The step that brings tokens at `positions` (B, T) to rows that hold `before` tokens."""
        after = before + (positions >= 0).sum(dim=1)  # (B,)
        first, last = before // BLOCK, after // BLOCK
        rows, new = (positions >= 0).nonzero(as_tuple=True)
        tokens = torch.stack([rows, new, positions[rows, new] - first[rows] * BLOCK])
        width = int((last - first).max()) + 1
        rows, blocks = (torch.arange(width) < (last - first)[:, None]).nonzero(as_tuple=True)
        filled = torch.stack([rows, blocks, first[rows] + blocks])
        open_ = torch.stack([torch.arange(len(first)), last - first, last])
        places = torch.arange(int(after.max()))
        k_positions = torch.where(places < after[:, None], places, -1)
        return cls(width, tokens.to(device), filled.to(device), open_.to(device), k_positions)


class BlockStore:
    """The keys, or the values, of all layers: full blocks of 32 tokens as codes, the rest exact.

    group: tokens and channels that share a scale. Block n holds the tokens from 32·n on.
    blocks: N blocks per row. Codes (L, B, K, N, 32, D), or D/2 bytes for 4 bits; scales and minima
    (L, B, K, N, 32/t, D/c). open: (L, B, K, 32, D), the unfinished block of each row.
    A place that holds no token is 0.
    """

    def __init__(self, open_: Tensor, num_blocks: int, group: tuple[int, int], bits: int) -> None:
        self.open, self.group, self.bits = open_, group, bits
        one = quantize_kv(open_, group, bits)  # for its shapes
        shapes = [(*x.shape[:3], num_blocks, *x.shape[3:]) for x in one]
        self.blocks = KVGroups(*(x.new_zeros(s) for x, s in zip(one, shapes, strict=True)))

    def append(self, layer: int, x: Tensor, step: BlockStep) -> None:
        """Write x (B, K, T, D) behind the newest tokens, and quantize the blocks that it fills."""
        newest = self.open[layer]
        B, K, _, D = newest.shape
        rows, new, places = step.tokens
        grown = torch.cat([newest, newest.new_zeros(B, K, (step.width - 1) * BLOCK, D)], dim=2)
        grown[rows, :, places] = x[rows, :, new].to(grown.dtype)
        grown = grown.view(B, K, step.width, BLOCK, D)
        rows, found, numbers = step.filled
        if len(rows):
            filled = quantize_kv(grown[rows, :, found], self.group, self.bits)  # (M, K, …)
            for blocks, codes in zip(self.blocks, filled, strict=True):
                blocks[layer][rows, :, numbers] = codes
        rows, found, _ = step.open
        newest.copy_(grown[rows, :, found])

    def read(self, layer: int, step: BlockStep) -> Tensor:
        """All tokens of a layer, (B, K, S, D): what the codes stand for, then the open block."""
        newest, S = self.open[layer], step.k_positions.shape[1]
        full = KVGroups(*(x[layer][:, :, : S // BLOCK] for x in self.blocks))
        values = dequantize_kv(full, self.bits).to(newest.dtype)  # (B, K, S // 32, 32, D)
        out = torch.cat([values, torch.zeros_like(newest)[:, :, None]], dim=2)
        rows, _, numbers = step.open
        out[rows, :, numbers] = newest
        return out.flatten(2, 3)[:, :, :S]

    def truncate(self, row: int, before: int, after: int) -> None:
        """Forget the tokens of a row from position `after` on; `before` were there."""
        number, kept = divmod(after, BLOCK)
        if number < before // BLOCK:
            again = KVGroups(*(x[:, row, :, number] for x in self.blocks))
            self.open[:, row] = dequantize_kv(again, self.bits)
            for x in self.blocks:
                x[:, row, :, number:] = 0
        self.open[:, row, :, kept:] = 0

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self.open = self.open[:, rows]
        self.blocks = KVGroups(*(x[:, rows] for x in self.blocks))

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, minima and open blocks."""
        return self.open.nbytes + sum(x.nbytes for x in self.blocks)


class QuantizedKVCache(KVCache):
    """Keys and values with 8 or 4 bits, but the tokens after the last full block of 32 exact.

    keys, values: a `BlockStore` each. A group of values is c = `channels_per_group(D)` channels of
    one token; a group of keys one channel of 32 tokens, or as of values with keys_per="token".
    Bytes: see `quantized_cache_bytes` in minillm.inspection.

    `update` first stores, then returns what is stored: a step that fills a block reads that block
    rounded already. So one token at a time and whole chunks give results that differ by how long
    the tokens of a block were exact, and by nothing else.
    A layer with a window keeps every token, as in the dense cache.
    Raises ValueError for other bits or keys_per, for 4 bits and an odd D, and where sinks would
    have to be turned past the trained length, which only the sliding cache does.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch_size: int,
        capacity: int,
        *,
        bits: int = 8,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        keys_per: Literal["channel", "token"] = "channel",
    ) -> None:
        _check(config, capacity, bits, keys_per)
        L, K, D = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        per_token, per_channel = (1, channels_per_group(D)), (BLOCK, 1)
        key_group = per_channel if keys_per == "channel" else per_token
        newest = torch.zeros(L, batch_size, K, BLOCK, D, dtype=dtype, device=device)
        self.keys = BlockStore(newest, capacity // BLOCK, key_group, bits)
        self.values = BlockStore(newest.clone(), capacity // BLOCK, per_token, bits)
        self.capacity, self.bits = capacity, bits
        self.lengths = torch.zeros(batch_size, dtype=torch.int64)

    def advance(self, counts: Sequence[int], width: int) -> Tensor:
        """Begin a step, and plan it once for all layers."""
        positions = new_positions(self.lengths, counts, width)  # (B, T)
        lengths = self.lengths + (positions >= 0).sum(dim=1)
        if lengths.max() > self.capacity:
            raise ValueError(
                f"the KV cache holds {self.capacity} tokens per row; {int(lengths.max())} needed"
            )
        self._step = BlockStep.plan(self.lengths, positions, self.keys.open.device)
        self.lengths = lengths
        return positions

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store k and v, rounding the blocks that they fill; return all that is stored."""
        step = self._step
        self.keys.append(layer, k, step)
        self.values.append(layer, v, step)
        return self.keys.read(layer, step), self.values.read(layer, step), step.k_positions

    def truncate(self, lengths: Sequence[int]) -> None:
        """Forget from position lengths[b] on.

        What stays of a full block is open again: as it was rounded, and rounded once more when new
        tokens fill the block.
        """
        wanted = kept_lengths(self.lengths, lengths)
        for row in (wanted < self.lengths).nonzero()[:, 0].tolist():
            for store in (self.keys, self.values):
                store.truncate(row, int(self.lengths[row]), int(wanted[row]))
        self.lengths = wanted

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order; copies them."""
        index = torch.tensor(rows, dtype=torch.int64)
        self.lengths = self.lengths[index]
        for store in (self.keys, self.values):
            store.select(index.to(store.open.device))

    @property
    def nbytes(self) -> int:
        """Bytes of both stores, filled or not."""
        return self.keys.nbytes + self.values.nbytes


def _check(config: ModelConfig, capacity: int, bits: int, keys_per: str) -> None:
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits!r}; 4 and 8 are possible")
    if keys_per not in ("channel", "token"):
        raise ValueError(f"keys_per is {keys_per!r}; 'channel' and 'token' are possible")
    if bits == 4 and config.head_dim % 2:
        raise ValueError(
            f"head_dim is {config.head_dim}; 4-bit codes need an even one, to be packed in pairs"
        )
    if any(x.sinks for x in config.layers) and capacity > config.max_position_embeddings:
        raise ValueError(
            f"the KV cache is to hold {capacity} tokens per row; with sinks a quantized one holds "
            f"at most the trained length of {config.max_position_embeddings}"
        )
