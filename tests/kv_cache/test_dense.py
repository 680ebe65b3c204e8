"""The dense cache: what goes in comes out, at its place, for rows of any length."""

import pytest
import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.kv_cache.dense import DenseKVCache

CONFIG = ModelConfig(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=32,
    layers=(LayerConfig(), LayerConfig()),
)


def kv(B, T, value):
    return torch.full((B, 2, T, 4), float(value)), torch.full((B, 2, T, 4), -float(value))


def test_appends_in_place():
    cache = DenseKVCache(CONFIG, 1, 4)
    storage = cache.keys.data_ptr()
    for step in range(4):
        assert cache.advance([1], 1).tolist() == [[step]]
        for layer in range(2):
            keys, values, positions = cache.update(layer, *kv(1, 1, 10 * layer + step))
            assert keys[0, 0, :, 0].tolist() == [10 * layer + s for s in range(step + 1)]
            assert values[0, 1, :, 3].tolist() == [-(10 * layer + s) for s in range(step + 1)]
            assert positions.tolist() == [list(range(step + 1))]
    assert cache.lengths.tolist() == [4]
    assert cache.keys.data_ptr() == storage


def test_ragged_rows_and_padding():
    cache = DenseKVCache(CONFIG, 3, 6)
    assert cache.advance([3, 1, 0], 3).tolist() == [[0, 1, 2], [0, -1, -1], [-1, -1, -1]]
    k = torch.arange(9.0).view(3, 1, 3, 1).expand(3, 2, 3, 4)
    keys, _, positions = cache.update(0, k, -k)
    assert positions.tolist() == [[0, 1, 2], [0, -1, -1], [-1, -1, -1]]
    assert keys[:, 0, :, 0].tolist() == [[0, 1, 2], [3, 0, 0], [0, 0, 0]]
    assert cache.advance([1, 2, 2], 2).tolist() == [[3, -1], [1, 2], [0, 1]]
    k = torch.arange(10.0, 16).view(3, 1, 2, 1).expand(3, 2, 2, 4)
    keys, _, positions = cache.update(0, k, -k)
    assert keys[:, 1, :, 2].tolist() == [[0, 1, 2, 10], [3, 12, 13, 0], [14, 15, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 3], [0, 1, 2, -1], [0, 1, -1, -1]]


def test_padding_may_hang_over_the_end():
    # Row 0 is full; row 1 brings two tokens. The padding of row 0 must not touch its last key.
    cache = DenseKVCache(CONFIG, 2, 2)
    cache.advance([2, 0], 2)
    cache.update(0, *kv(2, 2, 7))
    cache.advance([0, 2], 2)
    keys, _, _ = cache.update(0, *kv(2, 2, 9))
    assert keys[:, 0, :, 0].tolist() == [[7, 7], [9, 9]]


def test_overflow_is_refused_before_anything_changes():
    cache = DenseKVCache(CONFIG, 1, 2)
    cache.advance([2], 2)
    with pytest.raises(ValueError, match="holds 2 tokens per row; 3 needed"):
        cache.advance([1], 1)
    assert cache.lengths.tolist() == [2]


@pytest.mark.parametrize("counts", [[1, 1], [-1], [3]])
def test_bad_counts(counts):
    with pytest.raises(ValueError, match="counts is"):
        DenseKVCache(CONFIG, 1, 4).advance(counts, 2)


def test_truncate_and_select():
    cache = DenseKVCache(CONFIG, 3, 4)
    cache.advance([4, 3, 2], 4)
    k = torch.arange(12.0).view(3, 1, 4, 1).expand(3, 2, 4, 4)
    cache.update(1, k, k)
    cache.truncate([2, 3, 0])
    assert cache.lengths.tolist() == [2, 3, 0]
    cache.select([1, 0])
    assert cache.lengths.tolist() == [3, 2]
    assert cache.advance([1, 1], 1).tolist() == [[3], [2]]
    keys, _, positions = cache.update(1, *kv(2, 1, 50))
    assert keys[:, 0, :, 0].tolist() == [[4, 5, 6, 50], [0, 1, 50, 3]]
    assert positions.tolist() == [[0, 1, 2, 3], [0, 1, 2, -1]]
    with pytest.raises(ValueError, match="at most"):
        cache.truncate([9, 0])


def test_nbytes_is_the_arithmetic():
    cache = DenseKVCache(CONFIG, 3, 5, dtype=torch.bfloat16)
    assert cache.nbytes == 2 * 2 * 3 * 2 * 5 * 4 * 2  # 2 · L · B · K · capacity · D · bytes
    assert cache.nbytes == 3 * 5 * CONFIG.cache_bytes_per_token(2)


def test_m07_positions_go_on_in_every_row_by_itself():
    cache = DenseKVCache(CONFIG, 2, 8)
    assert cache.advance([3, 5], 5).tolist() == [[0, 1, 2, -1, -1], [0, 1, 2, 3, 4]]
    assert cache.advance([1, 1], 1).tolist() == [[3], [5]]
