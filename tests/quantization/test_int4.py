"""INT4: groups that are zero, constant, tiny or huge; bounds; and bytes against bytes by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.kernels.reference import unpack_nibbles
from minillm.quantization.int4 import (
    Quantized,
    group_grid,
    nearest_codes,
    pack_nibbles,
    quantize_groups,
    stored_scales,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# Half a scale, and what float32 rounds off in the division.
HALF = 0.5 + 1e-4


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_bounds(weight, quantized, symmetric):
    """What holds for every group: all weights within half a scale, zeros exact, codes in range."""
    codes, scales, zeros, bits, order = quantized
    assert order is None
    assert (codes.dtype, scales.dtype, zeros.dtype) == (torch.uint8, torch.float16, torch.uint8)
    assert (codes.shape, scales.shape) == (weight.shape, zeros.shape)
    assert int(codes.max()) < 2**bits
    assert int(zeros.max()) < 2**bits
    assert bool(scales.isfinite().all())
    assert bool((scales > 0).all())
    back = quantized.dequantize().double()
    steps = scales.double().repeat_interleave(quantized.group_size, dim=1)
    assert bool(((back - weight.double()).abs() <= steps * HALF).all())
    assert not back[weight == 0].any()
    if symmetric:
        assert zeros.unique().tolist() == [2 ** (bits - 1)]
        assert int(codes.min()) > 0


def test_by_hand():
    """From -1 to 2 in steps of 0.2: 0.0 has code 5."""
    weight = torch.tensor([[-1.0, 2.0, 0.0, 0.5, 0.29, 0.31, -0.4, 1.9]])
    codes, scales, zeros, bits, _ = quantize_groups(weight, 8)
    assert 0.2 < scales.item() < 0.2002  # rounded up
    assert (zeros.item(), bits) == (5, 4)
    assert codes.tolist() == [[0, 15, 5, 7, 6, 7, 3, 14]]
    codes, scales, zeros, _, _ = quantize_groups(weight * 3.5, 8, symmetric=True)
    assert (scales.item(), zeros.item()) == (1, 8)
    assert codes.tolist() == [[4, 15, 8, 10, 9, 9, 7, 15]]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "value", [0.0, -0.0, 5.0, -5.0, 1e-6, -6e-8, 1e-30, 1e-38, 1.4e-45, 65_280.0, -65_280.0]
)
def test_q04_constant_groups(value, dtype, bits, symmetric):
    weight = torch.full((2, 8), value, dtype=torch.float64).to(dtype)
    check_bounds(weight, quantize_groups(weight, 4, bits=bits, symmetric=symmetric), symmetric)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-7, 1e-6, 1e-3, 1.0, 65_280.0])
def test_q04_mixed_groups(size, symmetric):
    """A group of zeros beside one of numbers, signs mixed and one-sided."""
    row = [0, 0, 0, 0, 1, -1, 0.3, -0.01, 1, 0.9, 0.5, 0.7, -1, -0.9, -0.5, -0.7]
    weight = torch.tensor([row, [-x for x in row]], dtype=torch.float64) * size
    for dtype in DTYPES:
        given = weight.to(dtype)
        for bits in (2, 4, 8):
            check_bounds(
                given, quantize_groups(given, 4, bits=bits, symmetric=symmetric), symmetric
            )


def test_q04_weights_too_large_for_a_float16_scale():
    weight = torch.tensor([[3e38, -3e38, 1.0, 2.0]])
    for symmetric in (False, True):
        with pytest.raises(ValueError, match="at most 65504 fits in float16"):
            quantize_groups(weight, 2, symmetric=symmetric)
    # In bfloat16 it is 65,536.
    row = torch.full((1, 2), 65_504.0)
    check_bounds(row, quantize_groups(row.half(), 2, bits=2, symmetric=True), True)
    with pytest.raises(ValueError, match="a scale is 65536"):
        quantize_groups(row.bfloat16(), 2, bits=2, symmetric=True)
    # 15 steps of 65,504 reach this far.
    largest = torch.tensor([[15 * 65_504.0, 0.0]])
    check_bounds(largest, quantize_groups(largest, 2), False)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_weight_is_off_by_more_than_half_a_scale(data):
    N, G, size = (data.draw(st.integers(1, 4)) for _ in range(3))
    number = st.floats(-60_000, 60_000, width=32) | st.floats(-(2.0**-17), 2.0**-17, width=32)
    numbers = data.draw(st.lists(number, min_size=N * G * size, max_size=N * G * size))
    weight = torch.tensor(numbers, dtype=torch.float32).view(N, G * size)
    bits, symmetric = data.draw(st.integers(2, 8)), data.draw(st.booleans())
    quantized = quantize_groups(weight, size, bits=bits, symmetric=symmetric)
    check_bounds(weight, quantized, symmetric)
    assert quantized.group_size == size


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_what_a_grid_can_hold_is_kept(data):
    """Weights on a grid whose scale is a float16, both ends in use, come back as they are."""
    bits, symmetric = data.draw(st.integers(2, 8)), data.draw(st.booleans())
    top = 2**bits - 1
    scale = data.draw(st.floats(2.0**-14, 100, width=16))
    zero = (top + 1) // 2 if symmetric else data.draw(st.integers(0, top))
    ends = [zero + top // 2] if symmetric else [0, top]
    low = 1 if symmetric else 0
    codes = ends + data.draw(st.lists(st.integers(low, top), min_size=1, max_size=10))
    weight = (torch.tensor([codes]) - zero).float() * scale
    quantized = quantize_groups(weight, -1, bits=bits, symmetric=symmetric)
    assert torch.equal(quantized.dequantize(), weight)
    assert quantized.codes.tolist() == [codes]
    assert (quantized.zeros.item(), quantized.scales.item()) == (zero, scale)


def test_rounding_twice_is_rounding_once():
    once = quantize_groups(random(8, 64), 32, symmetric=True)
    twice = quantize_groups(once.dequantize(), 32, symmetric=True)
    assert torch.equal(once.codes, twice.codes)
    assert torch.equal(once.dequantize(), twice.dequantize())


def test_smaller_groups_and_zero_points_are_closer():
    weight = random(64, 256) + 0.3
    error = {
        (size, symmetric): float(
            (quantize_groups(weight, size, symmetric=symmetric).dequantize() - weight).pow(2).mean()
        )
        for size in (-1, 64, 32)
        for symmetric in (True, False)
    }
    for symmetric in (True, False):
        assert error[32, symmetric] < error[64, symmetric] < error[-1, symmetric]
    assert error[64, False] < error[64, True]


@pytest.mark.parametrize("symmetric", [False, True])
def test_only_the_numbers_count(symmetric):
    """Neither strides, nor gradients, nor a type that holds the same numbers, change anything."""
    weight = random(16, 64).bfloat16()
    expected = quantize_groups(weight, 32, symmetric=symmetric)
    double = weight.double()
    versions = [
        weight.T.contiguous().T,
        torch.stack([weight, weight], dim=-1)[..., 0],
        weight.float().requires_grad_(),
        torch.nn.Parameter(double),
        double,
    ]
    for version in versions:
        found = quantize_groups(version, 32, symmetric=symmetric)
        for a, b in zip(found[:3], expected[:3], strict=True):
            assert torch.equal(a, b)
            assert not a.requires_grad
            assert a.is_contiguous()


def test_one_column_and_one_group_per_row():
    for weight in (random(5, 1), random(1, 1), random(3, 7)):
        quantized = quantize_groups(weight, -1)
        check_bounds(weight, quantized, False)
        assert quantized.group_size == weight.shape[1]
    check_bounds(weight, quantize_groups(weight, 1), False)


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        ((2, 288), 256, r"256, .* width of 288 columns; 32, 96 would, or -1"),
        ((2, 192), 128, r"128, .* width of 192 columns; 32, 64, 96, 192 would"),
        ((2, 576), 128, r"128, .* width of 576 columns; 32, 64, 96, 192 would"),
        ((2, 7), 2, "width of 7 columns; 7, 1 would"),
        ((2, 8), 16, "width of 8 columns; 8, 4, 2, 1 would"),
        ((2, 8), 0, "group_size is 0;"),
        ((2, 8), -2, "group_size is -2;"),
        ((2, 8), True, "group_size is True;"),
        ((2, 8), 4.0, "group_size is 4.0;"),
        ((2, 8), "4", "group_size is '4';"),
        ((2, 8), None, "group_size is None;"),
    ],
)
def test_q05_group_sizes_that_do_not_fit(shape, size, message):
    with pytest.raises(ValueError, match=message):
        quantize_groups(random(*shape), size)


@pytest.mark.parametrize("bits", [1, 0, -4, 9, 16, 4.0, True, "4", None])
def test_bits_out_of_range(bits):
    with pytest.raises(ValueError, match=r"bits is .*; a whole number from 2 to 8"):
        quantize_groups(random(2, 8), 4, bits=bits)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.tensor([[1.0, 2.0], [torch.nan, 3.0]]), r"\[1, 0\] is nan"),
        (torch.tensor([[1.0, -torch.inf]]), r"\[0, 1\] is -inf"),
        (torch.tensor([[1.0, 1e39]], dtype=torch.float64), r"\[0, 1\] is 1e\+39"),
        (torch.ones(4), r"shape \(4,\)"),
        (torch.ones(2, 2, 2), r"shape \(2, 2, 2\)"),
        (torch.ones(()), r"shape \(\)"),
        (torch.ones(0, 4), r"shape \(0, 4\)"),
        (torch.ones(4, 0), r"shape \(4, 0\)"),
        (torch.ones(2, 2, dtype=torch.int64), "torch.int64"),
        (torch.ones(2, 2, dtype=torch.complex64), "torch.complex64"),
    ],
)
def test_what_is_no_weight(weight, message):
    for size in (2, -1):
        with pytest.raises(ValueError, match=message):
            quantize_groups(weight, size)


@settings(max_examples=300, deadline=None)
@given(st.floats(0, 65_504, width=32))
def test_a_stored_scale_is_the_next_float16(scale):
    found = stored_scales(torch.tensor([scale])).numpy()[0]
    if scale == 0:
        assert found == 1
    else:
        below = np.nextafter(found, np.float16(-1))
        assert float(below) < scale <= float(found)


def test_scales_beyond_float16():
    for scale in (65_505.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match="at most 65504 fits"):
            stored_scales(torch.tensor([1.0, scale]))
    assert stored_scales(torch.zeros(0)).shape == (0,)


def test_a_grid_and_its_codes():
    """Shapes of any rank, as callers other than `quantize_groups` use them."""
    groups = random(2, 3, 4, 16)
    scales, zeros = group_grid(groups, 4, False)
    codes = nearest_codes(groups, scales[..., None], zeros[..., None], 4)
    assert (codes.shape, scales.shape, zeros.shape) == ((2, 3, 4, 16), (2, 3, 4), (2, 3, 4))
    flat = quantize_groups(groups.reshape(6, 64), 16)
    assert torch.equal(codes.flatten(), flat.codes.flatten())
    with pytest.raises(ValueError, match="bits is 9"):
        group_grid(groups, 9, False)


def test_columns_in_another_order():
    order = torch.tensor([2, 0, 3, 1])
    weight = random(3, 4)
    plain = quantize_groups(weight[:, order], 2)
    moved = Quantized(*plain[:4], order)
    assert torch.equal(moved.dequantize()[:, order], plain.dequantize())
    assert bool(((moved.dequantize() - weight).abs() < 0.2).all())


def test_bytes_by_hand():
    codes = torch.tensor([[1, 2, 15, 0], [0, 15, 8, 7]], dtype=torch.uint8)
    assert pack_nibbles(codes).tolist() == [[0x21, 0x0F], [0xF0, 0x78]]
    every = torch.arange(256, dtype=torch.uint8)
    assert unpack_nibbles(every).view(-1, 2).tolist() == [[b % 16, b // 16] for b in range(256)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=3), st.integers(0, 9), st.randoms())
def test_unpacking_undoes_packing(leading, half, rng):
    shape = (*leading, 2 * half)
    count = int(np.prod(shape))
    codes = torch.tensor([rng.randrange(16) for _ in range(count)], dtype=torch.uint8).view(shape)
    packed = pack_nibbles(codes)
    assert (packed.shape, packed.dtype) == ((*leading, half), torch.uint8)
    assert torch.equal(unpack_nibbles(packed), codes)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.uint8), "3 codes a row"),
        (torch.tensor([1, 16], dtype=torch.uint8), "a code is 16"),
        (torch.tensor([1, -1], dtype=torch.int8), "torch.int8"),
        (torch.tensor([1.0, 2.0]), "torch.float32"),
    ],
)
def test_what_does_not_pack(codes, message):
    with pytest.raises(ValueError, match=message):
        pack_nibbles(codes)
