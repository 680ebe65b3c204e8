"""Attention and its mask: against the formula written out, and the boundary of the window."""

import math

import pytest
import torch

from minillm.layers.attention import attention, attention_mask, causal_mask


def written_out(q, k, v, mask):
    """softmax(q kᵀ / sqrt(D)) v, one head at a time: query head h reads kv head h // (H/K)."""
    H, K = q.shape[1], k.shape[1]
    heads = []
    for h in range(H):
        scores = q[:, h] @ k[:, h // (H // K)].transpose(-1, -2) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, 0], -math.inf)
        heads.append(scores.softmax(-1) @ v[:, h // (H // K)])
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize(("H", "K"), [(6, 6), (6, 2), (6, 1), (4, 2)])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 9), (5, 5), (3, 9)])
def test_equals_the_formula(H, K, T, S):
    generator = torch.Generator().manual_seed(H * 100 + K * 10 + T + S)
    q = torch.randn(2, H, T, 16, generator=generator)
    k, v = torch.randn(2, 2, K, S, 16, generator=generator)
    mask = attention_mask(torch.arange(S - T, S).expand(2, T), torch.arange(S).expand(2, S))
    torch.testing.assert_close(attention(q, k, v, mask), written_out(q, k, v, mask))
    torch.testing.assert_close(attention(q, k, v), written_out(q, k, v, mask))


@pytest.mark.parametrize(("H", "K", "read"), [(4, 2, [0, 0, 1, 1]), (6, 2, [0, 0, 0, 1, 1, 1])])
@pytest.mark.parametrize("T", [1, 3])
def test_m11_order_of_shared_heads(H, K, read, T):
    v = torch.arange(K, dtype=torch.float32)[None, :, None, None].expand(1, K, 4, 8)
    out = attention(torch.randn(1, H, T, 8), torch.randn(1, K, 4, 8), v)
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor(read, dtype=torch.float32))


def test_strided_queries_are_accepted():
    # A projection of one token, seen as heads, is not always laid out head by head.
    q = torch.randn(2, 1, 6, 16).transpose(1, 2)
    k, v = torch.randn(2, 2, 2, 5, 16)
    torch.testing.assert_close(attention(q, k, v), written_out(q, k, v, None))


def test_scale_can_be_given():
    q, k, v = torch.randn(3, 1, 1, 4, 16)
    torch.testing.assert_close(attention(q, k, v, scale=0.25), attention(q, k, v))


def test_m05_window_counts_the_token_itself():
    positions = torch.arange(6)[None]
    seen = attention_mask(positions, positions, 4)[0, 0]
    assert seen.sum(-1).tolist() == [1, 2, 3, 4, 4, 4]
    assert seen[5].nonzero().flatten().tolist() == [2, 3, 4, 5]


def test_mask_of_a_chunk_is_aligned_to_positions():
    # Two new tokens after three cached ones: the first new one sees 4 keys, not 1.
    seen = attention_mask(torch.tensor([[3, 4]]), torch.arange(5)[None])[0, 0]
    assert seen.tolist() == [[True, True, True, True, False], [True] * 5]


def test_causal_mask_is_aligned_to_the_last_key():
    assert causal_mask(2, 4)[0, 0].tolist() == [[True, True, True, False], [True] * 4]


def test_mask_hides_empty_places_and_any_order_of_keys():
    # A ring holds its keys in storage order; -1 is a place that holds nothing.
    seen = attention_mask(torch.tensor([[5]]), torch.tensor([[4, 5, -1, 3]]), 2)[0, 0, 0]
    assert seen.tolist() == [True, True, False, False]


def test_padding_queries_see_something():
    seen = attention_mask(torch.tensor([[0, -1]]), torch.tensor([[0, -1]]))[0, 0]
    assert seen.tolist() == [[True, False], [True, True]]
