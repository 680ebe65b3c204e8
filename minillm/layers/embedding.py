"""Token embedding: a list of ids becomes a list of vectors, one row of a table each."""

from torch import Tensor

__all__ = ["embed"]


def embed(ids: Tensor, table: Tensor) -> Tensor:
    """Look up one row of the embedding table per token id.

    The same as a one-hot matrix (B, T, V) times the table (V, C), at the cost of reading T rows
    instead of 2·T·V·C FLOPs.

    ids: (B, T), int64, each in [0, V). table: (V, C).
    Returns (B, T, C) in the table's dtype. Raises IndexError for an id outside the table.
    """
    return table[ids]
