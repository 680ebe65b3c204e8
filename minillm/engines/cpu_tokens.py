"""The tokens of one step as the C++ engine wants them, and the tables that turn them."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from minillm.config import RopeConfig
from minillm.engines import cpu_structs as c
from minillm.engines.cpu_model import CpuModel
from minillm.layers.rope import rope_tables

# RoPE types whose angles depend on the length of the text, not on the position alone.
BY_LENGTH = ("dynamic", "longrope")
# Positions of which a table is kept: 4 MB for D = 64. Texts may be longer, and some are endless.
KEPT = 8_192


class Tokens(NamedTuple):
    """The N tokens of a step, row after row, without padding; all int64.

    ids, rows, positions: (N,). starts: (B + 1,), where each row's tokens begin.
    longest: the most tokens of a row. real: (B, T), bool, which places are no padding; None: all.
    """

    ids: Tensor
    rows: Tensor
    positions: Tensor
    starts: Tensor
    longest: int
    real: Tensor | None
    shape: tuple[int, ...]

    @classmethod
    def none(cls) -> "Tokens":
        """No tokens at all."""
        empty = torch.empty(0, dtype=torch.int64)
        return cls(empty, empty, empty, empty, 0, None, (0, 0))

    @classmethod
    def of(cls, ids: Tensor, positions: Tensor, whole: bool, last: "Tokens") -> "Tokens":
        """The tokens ids (B, T) at `positions` (B, T), -1 for padding; whole: there is none.

        last: those of the step before, of which a decode step takes over what stays.
        """
        B, T = ids.shape
        ids, positions = ids.contiguous(), positions.contiguous()
        if whole and last.real is None and last.shape == ids.shape:
            return last._replace(ids=ids.reshape(-1), positions=positions.reshape(-1))
        rows = torch.arange(B)[:, None].expand(B, T)
        real = positions >= 0
        if whole or bool(real.all()):
            starts = torch.arange(B + 1) * T
            flat = ids.reshape(-1), rows.reshape(-1), positions.reshape(-1)
            return cls(*flat, starts, T, None, tuple(ids.shape))
        counts = real.sum(dim=1)
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        longest = int(counts.max())
        return cls(ids[real], rows[real], positions[real], starts, longest, real, tuple(ids.shape))


class Tables:
    """cos and sin for each kind of rotation, kept where they depend on the position alone."""

    def __init__(self) -> None:
        self._known: dict[RopeConfig, tuple[Tensor, Tensor]] = {}

    def of(
        self,
        model: CpuModel,
        positions: Tensor,
        real: Tensor | None,
        held: int,
        lengths: Tensor | None,
    ) -> tuple[ctypes.Array[c.Rope], list[Tensor]]:
        """The tables of a step at positions (B, T) below `held`, and the tensors that hold them."""
        D = model.config.head_dim
        tables: list[Tensor] = []
        ropes = (c.Rope * len(model.ropes))()
        for rope, config in zip(ropes, model.ropes, strict=True):
            rope.by_token = config.rope_type in BY_LENGTH or held > KEPT
            if rope.by_token:  # a row for each token
                both = rope_tables(positions, config, D, lengths)
                kept = torch.ones_like(positions, dtype=torch.bool) if real is None else real
                cos, sin = (x[:, 0][kept].contiguous() for x in both)
            else:  # a row for each position
                cos, sin = self._static(config, D, held)
            rope.cos, rope.sin, rope.pairs = cos.data_ptr(), sin.data_ptr(), cos.shape[1]
            tables += [cos, sin]
        return ropes, tables

    def _static(self, rope: RopeConfig, D: int, count: int) -> tuple[Tensor, Tensor]:
        """For positions up to `count` at least, which is no more than KEPT."""
        known = self._known.get(rope)
        if known is None or len(known[0]) < count:
            size = min(KEPT, max(count, 2 * len(known[0]) if known else 1024))
            cos, sin = rope_tables(torch.arange(size)[None], rope, D)
            known = self._known[rope] = cos[0, 0].contiguous(), sin[0, 0].contiguous()
        return known
