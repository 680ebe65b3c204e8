"""A decode step on a `QuantizedKVCache`: its codes are read as they are.

A token goes into the open block of its row, and where that fills it the block is rounded. Which
rows that are the CPU knows, so no step waits for the GPU; but they change from step to step, so
that these steps are not recorded.
"""

from dataclasses import dataclass

from torch import Tensor

from minillm.kernels.triton import CodedTokens
from minillm.kv_cache.groups import quantize_kv
from minillm.kv_cache.quantized import BLOCK, BlockStore, QuantizedKVCache


@dataclass(frozen=True, slots=True)
class CodedPlaces:
    """Where one layer keeps its keys and values. full: rows whose block this step fills, and the
    numbers of these blocks; None where there are none.
    """

    keys: BlockStore
    values: BlockStore
    layer: int
    full: tuple[Tensor, Tensor] | None

    @property
    def open(self) -> tuple[Tensor, Tensor]:
        """The open blocks of keys and values, (B, K, 32, D) each: rings of 32 places."""
        return self.keys.open[self.layer], self.values.open[self.layer]

    def round(self) -> None:
        """Round the blocks that are full now, and open new ones."""
        if self.full is None:
            return
        rows, numbers = self.full
        for store in (self.keys, self.values):
            newest = store.open[self.layer]
            rounded = quantize_kv(newest[rows], store.group, store.bits)  # (M, K, 32, D)
            for blocks, codes in zip(store.blocks, rounded, strict=True):
                blocks[self.layer][rows, :, numbers] = codes
            newest[rows] = 0

    def parts(self) -> tuple[CodedTokens, CodedTokens]:
        """What the kernel reads, of keys and of values."""
        return self._codes(self.keys), self._codes(self.values)

    def _codes(self, store: BlockStore) -> CodedTokens:
        codes, scales, minima = (x[self.layer] for x in store.blocks)
        return CodedTokens(codes, scales, minima, store.open[self.layer])


def coded_places(cache: QuantizedKVCache) -> list[CodedPlaces]:
    """The layers of a cache that has advanced by the token of this step."""
    rows = (cache.lengths % BLOCK == 0).nonzero()[:, 0]
    full = None
    if len(rows):
        device = cache.keys.open.device
        full = rows.to(device), (cache.lengths[rows] // BLOCK - 1).to(device)
    layers = range(len(cache.keys.open))
    return [CodedPlaces(cache.keys, cache.values, layer, full) for layer in layers]
