"""INT8: absmax by hand and in bounds, and a layer against whole-number arithmetic in numpy."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minillm.quantization.int8 import Int8Linear, outlier_columns, quantize_absmax

ABSMAX_127 = torch.tensor([-127.0, 0.5, 1.5, 2.5, -0.5, -2.5, 126.4, 0.0])


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(N=7, C=96, bias=True, seed=0):
    layer = nn.Linear(C, N, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(random(N, C, seed=seed))
        if bias:
            layer.bias.copy_(random(N, seed=seed + 1))
    return layer


def absmax_numpy(x):
    """Per row: the definition, number by number, with Python's own rounding."""
    codes, scales = np.zeros(x.shape, dtype=np.int64), np.zeros(len(x))
    for i, row in enumerate(x):
        scales[i] = np.float32(max(abs(float(v)) for v in row)) / np.float32(127)
        if scales[i]:
            codes[i] = [round(float(np.float32(v) / np.float32(scales[i]))) for v in row]
    return codes, scales


def by_hand(layer, x, outliers):
    """What an `Int8Linear` should give for x (T, C), computed in float64."""
    codes, scales = absmax_numpy(layer.weight.detach().numpy())
    rest = np.where(outliers, 0, x.numpy())
    x_codes, x_scales = absmax_numpy(rest)
    y = (x_codes @ codes.T) * x_scales[:, None] * scales
    y += x.double().numpy()[:, outliers] @ (codes * scales[:, None])[:, outliers].T
    return y if layer.bias is None else y + layer.bias.detach().double().numpy()


def test_by_hand():
    """Scale 1; halves go to the even neighbour."""
    codes, scale = quantize_absmax(ABSMAX_127)
    assert (codes.dtype, scale.dtype, float(scale)) == (torch.int8, torch.float32, 1)
    assert codes.tolist() == [-127, 0, 2, 2, 0, -2, 126, 0]


def test_one_scale_or_one_per_row():
    x = torch.tensor([[1.0, -2.0], [100.0, 127.0]])
    codes, _ = quantize_absmax(x)
    assert codes.tolist() == [[1, -2], [100, 127]]
    codes, scales = quantize_absmax(x, dim=-1)
    assert codes.tolist() == [[64, -127], [100, 127]]
    torch.testing.assert_close(scales, torch.tensor([[2 / 127], [1.0]]))
    codes, scales = quantize_absmax(random(2, 3, 5), dim=-1)
    assert (codes.shape, scales.shape) == ((2, 3, 5), (2, 3, 1))


def test_the_most_negative_code_stays_unused():
    codes, _ = quantize_absmax(-random(64, 64).abs(), dim=-1)
    assert codes.amin(dim=-1).tolist() == [-127] * 64


@pytest.mark.parametrize("dim", [None, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "value", [0.0, -0.0, 5.0, -5.0, 1e-6, 6e-8, 1e-30, 1e-38, 1e-44, 1.4e-45, 65_504.0, 3e38]
)
def test_q04_zeros_constants_tiny_and_huge(value, dtype, dim):
    x = torch.full((2, 8), value, dtype=torch.float64)
    x[0] *= torch.tensor([1, -1, 0.3, 0, 1, 0.5, -0.1, 1])
    x = x.to(dtype)
    if not bool(x.isfinite().all()):
        with pytest.raises(ValueError, match="finite"):
            quantize_absmax(x, dim)
        return
    codes, scales = quantize_absmax(x, dim)
    back = codes.double() * scales.double()
    assert bool((scales > 0).all())
    assert not codes[x == 0].any()
    assert bool(((back - x.double()).abs() <= scales.double() * (0.5 + 1e-4)).all())
    assert int(codes.int().abs().max()) <= 127


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40)
)
def test_no_number_is_off_by_more_than_half_a_scale(numbers):
    x = torch.tensor(numbers, dtype=torch.float32)
    codes, scale = quantize_absmax(x)
    assert bool(scale.isfinite())
    error = (codes.double() * scale.double() - x.double()).abs()
    assert float(error.max()) <= float(scale) * (0.5 + 1e-4)
    assert torch.equal(quantize_absmax(-x)[0], -codes)


def test_16_bits_are_computed_in_float32():
    """Of float16's smallest numbers the scale is far below float16."""
    x = torch.tensor([6e-8, -3e-7, 1.2e-7, 0], dtype=torch.float16)
    assert torch.equal(quantize_absmax(x)[0], quantize_absmax(x.float())[0])
    assert quantize_absmax(x)[0].tolist() == [25, -127, 51, 0]


def test_numbers_that_repeat_themselves():
    """What codes and scales stand for has the same codes again."""
    codes, scales = quantize_absmax(random(16, 64), dim=-1)
    again, same = quantize_absmax(codes * scales, dim=-1)
    assert torch.equal(again, codes)
    torch.testing.assert_close(same, scales, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, torch.nan]]), r"\[1, 1\] is nan"),
        (torch.tensor([1.0, -torch.inf]), r"\[1\] is -inf"),
        (torch.tensor([1e39], dtype=torch.float64), r"\[0\] is 1e\+39"),
        (torch.tensor([1, 2]), "torch.int64"),
        (torch.tensor([True]), "torch.bool"),
        (torch.zeros(0), "no numbers"),
        (torch.zeros(2, 0), "no numbers"),
        (torch.tensor(torch.nan), r"\[\] is nan"),
    ],
)
def test_what_cannot_be_quantized(x, message):
    for dim in (None, -1):
        with pytest.raises(ValueError, match=message):
            quantize_absmax(x, dim)


def test_no_rows_are_no_error():
    codes, scales = quantize_absmax(torch.zeros(0, 4), dim=-1)
    assert (codes.shape, scales.shape) == ((0, 4), (0, 1))


def test_outlier_columns():
    x = torch.tensor([[1.0, 6.0, -7.0, 5.99], [2.0, 0.0, 0.0, torch.nan]])
    assert outlier_columns(x, 6.0).tolist() == [False, True, True, True]
    assert outlier_columns(x[:1], 6.0).tolist() == [False, True, True, False]
    assert outlier_columns(torch.zeros(0, 4), 6.0).tolist() == [False] * 4


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("threshold", [None, 6.0, 1e-9])
@pytest.mark.parametrize("size", [(7, 96), (1, 33), (5, 1)])
def test_layer_equals_whole_number_arithmetic(size, threshold, bias):
    N, C = size
    layer, x = linear(N, C, bias), random(9, C, seed=5)
    x[:, ::17] *= 30
    outliers = (x.abs() >= (threshold or np.inf)).any(dim=0).numpy()
    assert outliers.any() == (threshold is not None)
    found = Int8Linear.from_linear(layer, threshold)(x)
    expected = by_hand(layer, x, outliers)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_outliers_cost_nothing_once_they_are_kept_apart(record_property):
    layer, x = linear(64, 256), random(50, 256, seed=3)
    x[:, 7] *= 60
    exact = layer(x).detach()
    error = {
        threshold: float((Int8Linear.from_linear(layer, threshold)(x) - exact).pow(2).mean())
        for threshold in (None, 6.0)
    }
    record_property(
        "figure",
        f"INT8 inputs with one outlier column of 256: {error[None] / error[6.0]:.0f} × less squared"
        " error with the column kept apart",
    )
    assert error[6.0] < error[None] / 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_in_and_out(dtype):
    layer, x = linear(), random(2, 3, 96, seed=1).to(dtype)
    quantized = Int8Linear.from_linear(layer)
    found = quantized(x)
    assert found.dtype == dtype
    assert torch.equal(found, quantized(x.float()).to(dtype))


def test_any_leading_shape():
    quantized, x = Int8Linear.from_linear(linear(), None), random(2, 3, 96, seed=1)
    rows = quantized(x)
    assert rows.shape == (2, 3, 7)
    # A token's scale is its own, and its sums are exact: the others change nothing.
    assert torch.equal(quantized(x[1, 2]), rows[1, 2])
    assert quantized(x[:0]).shape == (0, 3, 7)
    turned = x.transpose(0, 1)
    assert torch.equal(quantized(turned), rows.transpose(0, 1))


@pytest.mark.parametrize("threshold", [None, 6.0])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_stays_with_its_token(value, threshold):
    quantized, x = Int8Linear.from_linear(linear(), threshold), random(3, 96)
    x[1, 5] = value
    found = quantized(x)
    assert not found[1].isfinite().any()
    assert bool(found[[0, 2]].isfinite().all())


def test_zero_inputs_give_the_bias():
    layer = linear()
    assert torch.equal(Int8Linear.from_linear(layer)(torch.zeros(2, 96))[1], layer.bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_change_of_type_leaves_scales_alone(dtype):
    layer = linear()
    with torch.no_grad():
        layer.weight.mul_(1e-9)  # scales below float16's smallest number
    quantized, x = Int8Linear.from_linear(layer), random(4, 96)
    moved = copy.deepcopy(quantized)
    nn.Sequential(moved).to(dtype)
    types = {name: buffer.dtype for name, buffer in moved.named_buffers()}
    assert types == {"codes": torch.int8, "scales": torch.float32, "bias": dtype}
    assert torch.equal(moved.scales, quantized.scales)
    assert moved(x.to(dtype)).dtype == dtype


def test_state_bytes_and_gradients():
    quantized, x = Int8Linear.from_linear(linear()), random(4, 96)
    assert quantized.nbytes == 7 * 96 + 7 * 4 + 7 * 4
    assert Int8Linear.from_linear(linear(bias=False)).nbytes == 7 * 96 + 7 * 4
    assert not list(quantized.parameters())
    assert not quantized(x.requires_grad_()).requires_grad
    other = Int8Linear.from_linear(linear(seed=9))
    assert not torch.equal(other(x), quantized(x))
    other.load_state_dict(quantized.state_dict())
    assert torch.equal(other(x), quantized(x))


@pytest.mark.parametrize(
    ("weight", "bias", "threshold", "message"),
    [
        (torch.ones(3), None, 6.0, r"\(3,\)"),
        (torch.ones(0, 3), None, 6.0, r"\(0, 3\)"),
        (torch.ones(2, 3, dtype=torch.int8), None, 6.0, "torch.int8"),
        (torch.tensor([[1.0, torch.nan]]), None, 6.0, r"\[0, 1\] is nan"),
        (torch.ones(2, 3), torch.ones(3), 6.0, r"bias has shape \(3,\)"),
        (torch.ones(2, 3), None, 0.0, "threshold is 0.0"),
        (torch.ones(2, 3), None, torch.nan, "threshold is nan"),
        (torch.ones(2, 3), None, -6.0, "threshold is -6.0"),
        (torch.ones(2, 3), None, "6", "threshold is '6'"),
        (torch.ones(2, 3), None, True, "threshold is True"),
    ],
)
def test_what_is_no_layer(weight, bias, threshold, message):
    with pytest.raises(ValueError, match=message):
        Int8Linear(weight, bias, threshold)
