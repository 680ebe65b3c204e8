"""Decode attention in Triton against `attention` and `attention_mask` in float64."""

import pytest
import torch

from minillm.kv_cache.sliding import held_positions
from minillm.layers.attention import attention, attention_mask
from tests.kernels.triton_device import DEVICES, DTYPES, EPS, close, random

from minillm.kernels.triton.attention import decode_attention, split_count  # isort: skip

pytestmark = pytest.mark.parametrize("device", DEVICES)
TOLERANCE = {dtype: 4 * EPS[dtype] for dtype in DTYPES} | {torch.float32: 3e-6}
HEADS = {"9 on 3": (9, 3), "5 on 1": (5, 1), "4 on 4": (4, 4), "20 on 1": (20, 1)}


def inputs(B, H, K, S, D, dtype, device):
    q = random(B, H, 1, D, seed=0, dtype=dtype, device=device)
    keys, values = random(2, B, K, S, D, seed=1, dtype=dtype, device=device)
    return q, keys, values


def expected(q, keys, values, lengths, window=None, sinks=0, held=None, scale=None):
    """Rows without a token are zeros."""
    S = keys.shape[2]
    lengths = lengths.cpu().long()
    k_positions = torch.arange(S).expand(len(lengths), S) if held is None else held
    mask = attention_mask(lengths[:, None] - 1, k_positions, window, sinks)
    out = attention(q.double().cpu(), keys.double().cpu(), values.double().cpu(), mask, scale)
    out[lengths == 0] = 0
    return out.to(q.device)


@pytest.mark.parametrize("D", [64, 80, 96, 128, 256])
@pytest.mark.parametrize(
    ("heads", "dtype"),
    [(heads, torch.float32) for heads in HEADS] + [("9 on 3", dtype) for dtype in DTYPES[1:]],
    ids=str,
)
def test_heads_and_widths(heads, D, dtype, device):
    H, K = HEADS[heads]
    q, keys, values = inputs(2, H, K, 70, D, dtype, device)
    lengths = torch.tensor([70, 33], device=device)
    found = decode_attention(q, keys, values, lengths)
    assert found.dtype == dtype
    assert found.is_contiguous()
    close(found, expected(q, keys, values, lengths), TOLERANCE[dtype])


@pytest.mark.parametrize("whole", [torch.int32, torch.int64], ids=str)
def test_empty_and_short_caches(whole, device):
    """What lies beyond a row's length is never read: here NaN."""
    lengths = torch.tensor([0, 1, 2, 63, 64, 65, 128], dtype=whole, device=device)
    q, keys, values = inputs(7, 9, 3, 128, 64, torch.float32, device)
    want = expected(q, keys, values, lengths)
    for row, length in enumerate(lengths.tolist()):
        keys[row, :, length:], values[row, :, length:] = float("nan"), float("nan")
    found = decode_attention(q, keys, values, lengths)
    close(found, want, 3e-6)
    assert not found[0].any()
    assert torch.allclose(found[1, 0], values[1, 0, :1])


@pytest.mark.parametrize("sinks", [0, 1, 4])
@pytest.mark.parametrize("window", [1, 31, 32, 33, 100])
def test_window_edges(window, sinks, device):
    lengths = torch.tensor([1, 30, 31, 32, 33, 34, 99, 100, 101, 104, 105, 150], device=device)
    q, keys, values = inputs(12, 4, 2, 150, 16, torch.float32, device)
    found = decode_attention(q, keys, values, lengths, window=window, sinks=sinks)
    close(found, expected(q, keys, values, lengths, window, sinks), 3e-6)


@pytest.mark.parametrize("sinks", [0, 3])
def test_ring(sinks, device):
    """The storage of a sliding cache: `window` places after those of the sinks, in laps."""
    window = 50
    lengths = torch.tensor([1, 3, 49, 50, 51, 53, 54, 500, 12_345], device=device)
    q, keys, values = inputs(9, 6, 2, window + sinks, 32, torch.float32, device)
    held = held_positions(lengths.cpu(), window, sinks)
    found = decode_attention(q, keys, values, lengths, window=window, sinks=sinks, ring=window)
    close(found, expected(q, keys, values, lengths, window, sinks, held), 3e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_8k_context(dtype, device):
    q, keys, values = inputs(1, 3, 1, 8192, 64, dtype, device)
    lengths = torch.tensor([8192 if dtype == torch.float32 else 8100], device=device)
    found = decode_attention(q, keys, values, lengths)
    close(found, expected(q, keys, values, lengths), TOLERANCE[dtype])


def test_128k_places_of_which_few_are_used(device):
    keys = torch.zeros(1, 1, 131_072, 64, dtype=torch.float16, device=device)
    q, keys[:, :, :300], values = inputs(1, 4, 1, 300, 64, torch.float16, device)
    storage = torch.zeros_like(keys)
    storage[:, :, :300] = values
    lengths = torch.tensor([300], device=device)
    found = decode_attention(q, keys, storage, lengths)
    close(found, expected(q, keys[:, :, :300], values, lengths), 2.0**-9)


def test_one_key_outweighs_all_others(device):
    """Scores of thousands: exp of them overflows unless the largest is taken away first."""
    q, keys, values = inputs(1, 4, 2, 200, 64, torch.float32, device)
    keys[:, :, 137] = q[:, ::2, 0] * 1000
    found = decode_attention(q, keys, values, torch.tensor([200], device=device))
    assert torch.allclose(found[:, ::2, 0], values[:, :, 137])


def test_scale_and_strides(device):
    """Heads that lie apart in a fused product, and rows of a cache that has another layer."""
    fused = random(2, 6 * 48, seed=0, dtype=torch.float32, device=device)
    q = fused.view(2, 6, 1, 48)[:, 1:5]
    keys, values = random(2, 2, 3, 40, 48, seed=1, dtype=torch.float32, device=device)[:, :, :2]
    lengths = torch.tensor([40, 7], device=device)
    found = decode_attention(q, keys, values, lengths, scale=0.3)
    close(found, expected(q, keys, values, lengths, scale=0.3), 3e-6)


def test_offsets_beyond_32_bits(device):
    """The third key head lies 2^31 numbers behind the first; what is between them is never read."""
    q, keys, values = inputs(1, 3, 3, 20, 16, torch.float16, device)
    storage = torch.empty(2**31 + 1000, dtype=torch.float16, device=device)
    apart = keys.shape, (2**32, 2**30, 16, 1)
    far_keys, far_values = storage.as_strided(*apart), storage[400:].as_strided(*apart)
    far_keys.copy_(keys), far_values.copy_(values)
    lengths = torch.tensor([20], device=device)
    found = decode_attention(q, far_keys, far_values, lengths)
    close(found, expected(q, keys, values, lengths), 2.0**-9)


def test_lengths_may_be_a_view(device):
    q, keys, values = inputs(2, 4, 2, 50, 16, torch.float32, device)
    lengths = torch.tensor([7, 1, 50, 1], device=device)
    found = decode_attention(q, keys, values, lengths[::2])
    close(found, expected(q, keys, values, lengths[::2]), 3e-6)


def test_a_cache_of_16_bits_beside_activations_of_32(device):
    q, keys, values = inputs(1, 4, 2, 50, 64, torch.float32, device)
    keys, values = keys.half(), values.half()
    lengths = torch.tensor([50], device=device)
    found = decode_attention(q, keys, values, lengths)
    assert found.dtype == torch.float32
    close(found, expected(q, keys, values, lengths), 3e-6)


def test_the_number_of_splits_depends_on_shapes_only(device):
    assert split_count(8, 131_072, 64) == 32
    assert split_count(1, 131_072, 64) == 64
    assert split_count(8 * 64, 131_072, 64) == 1
    assert split_count(8, 1, 64) == 1


def test_what_does_not_fit_is_refused(device):
    q, keys, values = inputs(2, 4, 2, 8, 16, torch.float32, device)
    lengths = torch.tensor([1, 2], device=device)
    good = {"q": q, "keys": keys, "values": values, "lengths": lengths}
    bad = [
        ({"q": q.expand(2, 4, 2, 16)}, "q has shape"),
        ({"q": q[:, :3]}, "q has shape"),
        ({"q": q[..., :8]}, "both need"),
        ({"values": values[:1]}, "both need"),
        ({"keys": keys.transpose(1, 2).contiguous().transpose(1, 2)}, "keys have strides"),
        ({"lengths": lengths[:1]}, "lengths are"),
        ({"lengths": lengths.float()}, "lengths are"),
        ({"window": 0}, "window is 0"),
        ({"sinks": -1}, "sinks -1"),
        ({"ring": 9}, "8 places"),
    ]
    for change, message in bad:
        with pytest.raises(ValueError, match=message):
            decode_attention(**(good | change))
    wide = torch.zeros(1, 1, 1, 257, device=device)
    with pytest.raises(ValueError, match="D up to 256"):
        decode_attention(wide, wide, wide, lengths[:1])
