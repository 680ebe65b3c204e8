"""Keys and values as groups of codes: by hand, and against a reference that knows one group."""

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.kv_cache.groups import (
    KVGroups,
    channels_per_group,
    dequantize_kv,
    quantize_kv,
    rounded_up,
)
from minillm.quantization.int4 import pack_nibbles, quantize_groups
from tests.kv_cache.rounding import bfloat16_below, round_trip

HEAD_DIMS = (8, 16, 48, 64, 80, 96, 128, 256)


def back(x, group, bits):
    return dequantize_kv(quantize_kv(x, group, bits), bits)


def random_keys(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# By hand


def test_keys_by_hand():
    """Two channels of four tokens: from 0 to 30 in steps of 2, and from -4 to 3.5 in steps of ½."""
    keys = torch.tensor([[0.0, -4.0], [30.0, 3.5], [6.8, 0.0], [9.2, -1.3]])
    groups = quantize_kv(keys, (4, 1), 4)
    assert groups.scales.tolist() == [[2.0, 0.5]]
    assert groups.minima.tolist() == [[0.0, -4.0]]
    # The first code of a pair is in the low four bits: 0 0, 15 15, 3 8, 5 5.
    assert groups.codes.tolist() == [[0x00], [0xFF], [0x83], [0x55]]
    assert dequantize_kv(groups, 4).tolist() == [[0, -4], [30, 3.5], [6, 0], [10, -1.5]]


def test_values_by_hand():
    """A token's four channels in two groups, with 8 bits: from 10 to 265 and from -1 to 0.275."""
    groups = quantize_kv(torch.tensor([[10.0, 265.0, -51.0, 0.0]]), (1, 2), 8)
    assert groups.codes.tolist() == [[0, 255, 0, 255]]
    assert groups.minima.tolist() == [[10.0, -51.0]]
    scale = groups.scales[0, 1].item()
    assert (groups.scales[0, 0].item(), scale) == (1.0, 0.2001953125)  # 0.2, rounded up
    expected = torch.tensor([[10.0, 265.0, -51.0, 255 * scale - 51]])
    torch.testing.assert_close(dequantize_kv(groups, 8), expected)


def test_a_zero_point_would_cost_what_a_minimum_does_not():
    """Channels from 100 to 101.5: 15 steps there are 0.1 each, and from 0 on 6.8 each."""
    keys = torch.arange(16)[:, None].expand(16, 2) / 10 + 100
    assert float((back(keys, (16, 1), 4) - keys).abs().max()) <= 0.051
    zero_point = quantize_groups(keys.T, 16).dequantize().T
    assert float((zero_point - keys).abs().max()) > 0.5


def test_one_large_channel_costs_the_others_nothing_with_keys_per_channel():
    keys = random_keys(32, 32)
    plain = back(keys, (32, 1), 4) - keys
    keys[:, 5] = 50 + keys[:, 5]
    per_channel, per_token = back(keys, (32, 1), 4) - keys, back(keys, (1, 32), 4) - keys
    others = [c for c in range(32) if c != 5]
    assert torch.equal(per_channel[:, others], plain[:, others])
    assert per_token[:, others].square().mean() > 25 * per_channel[:, others].square().mean()


# Against the reference


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_the_reference_group_by_group(head_dim, bits, dtype):
    x = (random_keys(2, 64, head_dim) * 3 + 1).to(dtype)
    for group in ((32, 1), (1, channels_per_group(head_dim)), (2, 4)):
        expected = round_trip(x.float().numpy(), group, bits)
        found = back(x, group, bits)
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found.numpy(), expected)


@settings(deadline=None)
@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=32),
    st.sampled_from([4, 8]),
    st.sampled_from([1.0, 1e-30, 1e-38, 1e-44]),
)
def test_no_value_is_off_by_more_than_half_a_scale(numbers, bits, unit):
    x = torch.tensor(numbers)[:, None].expand(-1, 2) * unit
    groups = quantize_kv(x, (len(numbers), 1), bits)
    off = (dequantize_kv(groups, bits).double() - x.double()).abs()
    # Of float32 itself: numbers, and steps down to its least one, 1.4e-45.
    rounding = 2.0**-22 * x.double().abs().max() + 2e-45 * 2**bits
    assert (off <= groups.scales.double() / 2 + rounding).all()
    # The scale is at most 1/128 coarser than the range asks for, the minimum as much lower.
    low, high = x.double().amin(dim=0), x.double().amax(dim=0)
    step = (high - low + low.abs() / 128 + 1e-40) / (2**bits - 1)
    assert (groups.scales <= step * (1 + 1 / 128) + 1e-40).all()


@given(st.floats(-(2.0**127), 2.0**127, width=32))
def test_rounded_up_is_the_next_bfloat16(number):
    found = rounded_up(torch.tensor([number]))
    assert found.dtype == torch.bfloat16
    assert found.item() == -bfloat16_below(-number)


def test_rounded_up_keeps_what_is_no_number():
    assert rounded_up(torch.tensor([math.inf, -math.inf])).tolist() == [math.inf, -math.inf]
    assert math.isnan(rounded_up(torch.tensor([math.nan])).item())
    assert rounded_up(torch.tensor([0.0, -0.0])).tolist() == [0.0, 0.0]


def test_the_reference_rounds_down():
    assert [bfloat16_below(x) for x in (1.0, 1.001, -1.001, 0.0)] == [1.0, 1.0, -1.0078125, 0.0]
    assert struct.pack(">f", bfloat16_below(math.pi)) == bytes([0x40, 0x49, 0, 0])


# Q04: nothing to divide by


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [(32, 1), (1, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 5.003, 1e-6, 1e-30, -1e-30, 1e-45, 60000.0])
def test_q04_equal_values(value, dtype, group, bits):
    x = torch.full((32, 32), value, dtype=dtype)
    found = back(x, group, bits)
    assert found.isfinite().all()
    torch.testing.assert_close(found, x.float(), rtol=1 / 128 / 15, atol=1e-40)
    if value in (0.0, 5.0, -5.0):
        assert torch.equal(found, x.float())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [(32, 1), (1, 32)])
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-6, 1.0, 7e4, 1e30, 1e38])
def test_q04_tiny_and_huge_values_stay_finite(size, group, bits):
    """1e38 is beyond what a float16 scale could hold, and 1e-30 below."""
    for dtype in (torch.float32, torch.bfloat16):
        x = (random_keys(32, 32).clamp(-1.6, 1.6) * size).to(dtype)
        found, step = back(x, group, bits), 3.2 * size / (2**bits - 1)
        assert found.isfinite().all()
        assert float((found - x.float()).abs().max()) <= 0.52 * step + 1e-40
        mixed = x.clone()
        mixed[:, ::2] = 0
        assert back(mixed, group, bits).isfinite().all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [(32, 1), (1, 32)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_never_becomes_one(bad, group, bits):
    """It spoils its own group, as it would spoil the logits, and no other."""
    x = random_keys(32, 32)
    x[3, 7] = bad
    found = back(x, group, bits)
    spoiled = torch.zeros(32, 32, dtype=torch.bool)
    spoiled[(slice(None), 7) if group == (32, 1) else (3, slice(None))] = True
    assert found[spoiled].isnan().all()
    assert found[~spoiled].isfinite().all()


@pytest.mark.parametrize("bits", [4, 8])
def test_q04_a_range_too_small_for_a_scale(bits):
    """1e-45 is float32's smallest number: a 15th of it is 0, and the step infinite."""
    x = torch.tensor([[0.0, 5.0], [1e-45, 5.0]])
    assert torch.equal(back(x, (2, 1), bits), torch.tensor([[0.0, 5.0], [0.0, 5.0]]))


def test_a_range_beyond_float32_does_not_pass_for_a_number():
    x = torch.zeros(32, 1)
    x[0], x[1] = 3.3e38, -3.3e38
    assert not back(x, (32, 1), 8).isfinite().any()


# Shapes


def test_channels_per_group_divide_the_head():
    found = {head_dim: channels_per_group(head_dim) for head_dim in (*HEAD_DIMS, 2, 7, 37, 74)}
    assert found == {
        8: 8, 16: 16, 48: 24, 64: 32, 80: 20, 96: 32, 128: 32, 256: 32, 2: 2, 7: 7, 37: 1, 74: 2,
    }  # fmt: skip


def test_shapes_and_packing():
    x = random_keys(2, 3, 64, 48)
    eight, four = quantize_kv(x, (32, 1), 8), quantize_kv(x, (1, 24), 4)
    assert [tuple(part.shape) for part in eight] == [(2, 3, 64, 48), (2, 3, 2, 48), (2, 3, 2, 48)]
    assert [tuple(part.shape) for part in four] == [(2, 3, 64, 24), (2, 3, 64, 2), (2, 3, 64, 2)]
    assert {part.dtype for part in (*eight[1:], *four[1:])} == {torch.bfloat16}
    # 4 bits are the same codes, two to a byte; a group is all that a code needs to be read.
    codes = torch.randint(0, 16, (4, 6), dtype=torch.uint8)
    scales, minima = torch.rand(2, 3).bfloat16(), torch.rand(2, 3).bfloat16()
    unpacked = dequantize_kv(KVGroups(codes, scales, minima), 8)
    packed = dequantize_kv(KVGroups(pack_nibbles(codes), scales, minima), 4)
    assert torch.equal(packed, unpacked)
    one = codes[3, 4].float() * scales[1, 2].float() + minima[1, 2].float()
    assert unpacked[3, 4] == one


def test_views_and_nothing_at_all():
    x = random_keys(2, 32, 3, 8).transpose(1, 2)  # as attention hands them over
    assert torch.equal(back(x, (32, 1), 8), back(x.contiguous(), (32, 1), 8))
    assert back(torch.zeros(0, 3, 32, 8), (32, 1), 4).shape == (0, 3, 32, 8)
