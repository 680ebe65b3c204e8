"""GPTQ: against least squares solved anew at each column, and what it gains on whose inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minillm.quantization.gptq import gptq, inverse_factor
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.statistics import Statistics, output_error


def correlated(
    tokens: int, width: int, seed: int = 0, large: int = 0, factor: float = 30
) -> Tensor:
    """Inputs of rank width/4 plus noise, the first `large` channels `factor` times larger.

    What mixes the channels is always the same, so another seed gives other tokens of the same text.
    """
    mix = torch.randn(width // 4, width, generator=torch.Generator().manual_seed(1_000))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, width // 4, generator=generator) @ mix / (width // 4) ** 0.5
    x += 0.1 * torch.randn(tokens, width, generator=generator)
    x[:, torch.arange(large) * 7 % width] *= factor
    return x


def weights(rows: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 0.05


def hessian_of(x: Tensor) -> Tensor:
    statistics = Statistics(x.shape[-1])
    statistics.add(x)
    return statistics.hessian


def by_least_squares(weight, hessian, size, bits, symmetric, damping) -> np.ndarray:
    """The values that GPTQ must give, without a factor, an inverse or blocks, in float64.

    After each column the columns still free are set to what makes the output best again, the
    rounded ones being fixed: ΔW_free = -ΔW_done · H[done, free] · H[free, free]⁻¹.
    """
    w, h = weight.double().numpy(), hessian.double().numpy()
    h = h + damping * h.diagonal().mean() * np.eye(len(h))
    out = np.empty_like(w)
    for j in range(len(h)):
        done, free = slice(0, j), slice(j, None)
        change = (out - w)[:, done] @ h[done, free] @ np.linalg.inv(h[free, free])
        now = w[:, free] - change
        if j % size == 0:
            group = now[:, :size]
            if symmetric:
                scale, zero = abs(group).max(1) / (2 ** (bits - 1) - 1), 2 ** (bits - 1)
            else:
                low, high = np.minimum(group.min(1), 0), np.maximum(group.max(1), 0)
                scale = (high - low) / (2**bits - 1)
            stored = scale.astype(np.float16)
            stored = np.where(stored < scale, np.nextafter(stored, np.float16(np.inf)), stored)
            scale = stored.astype(float)
            zero = zero if symmetric else np.round(-low / scale)
        code = np.clip(np.round(now[:, 0] / scale) + zero, 0, 2**bits - 1)
        out[:, j] = (code - zero) * scale
    return out


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "size"), [(4, 8), (3, 48), (2, 16), (8, 12)])
def test_each_column_leaves_the_best_to_those_that_follow(bits, size, symmetric):
    weight, hessian = weights(20, 48), hessian_of(correlated(400, 48, large=3))
    found = gptq(weight, hessian, size, bits=bits, symmetric=symmetric, damping=0.01).dequantize()
    expected = by_least_squares(weight, hessian, size, bits, symmetric, 0.01)
    # A weight halfway between two codes may fall either way, and its row then goes another way.
    rows = np.isclose(found.numpy(), expected, rtol=1e-4, atol=1e-7).all(axis=1)
    assert rows.mean() >= 0.9


def test_two_inputs_that_are_always_equal():
    """0.4 + 0.4 rounds to 0 + 0; GPTQ hands the first 0.4 on and rounds 0.8, to 1."""
    weight = torch.tensor([[0.4, 0.4, 7.0]])
    hessian = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    rounded = quantize_groups(weight, -1, symmetric=True)
    found = gptq(weight, hessian, -1, symmetric=True, damping=1e-4)
    assert (rounded.codes - rounded.zeros).tolist() == [[0, 0, 7]]
    assert (found.codes - found.zeros).tolist() == [[0, 1, 7]]


@pytest.mark.parametrize("symmetric", [True, False])
def test_inputs_without_correlation_are_rounding(symmetric):
    weight = weights(30, 64)
    hessian = torch.diag(torch.logspace(-3, 3, 64))
    found = gptq(weight, hessian, 16, symmetric=symmetric)
    expected = quantize_groups(weight, 16, symmetric=symmetric)
    for ours, theirs in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(ours, theirs)


def gain(weight: Tensor, calibration: Tensor, held_out: Tensor, **options) -> tuple[float, float]:
    """By what the output's mean squared error is divided, on the text that was seen and another."""
    rounded = quantize_groups(weight, 64).dequantize() - weight
    found = gptq(weight, hessian_of(calibration), 64, **options).dequantize() - weight
    hessians = hessian_of(calibration), hessian_of(held_out)
    seen, other = (output_error(rounded, h) / output_error(found, h) for h in hessians)
    return seen, other


@pytest.mark.parametrize("large", [0, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_correlated_inputs_gain(record_property, act_order, large):
    weight = weights(256, 256)
    seen, other = gain(
        weight, correlated(4_096, 256, 1, large), correlated(4_096, 256, 2, large),
        act_order=act_order,
    )  # fmt: skip
    assert min(seen, other) >= 1.5
    order = ", in order of activation" if act_order else ""
    record_property(
        "figure",
        f"GPTQ{order}, 256 inputs of rank 64, {large} of them 30 times larger: squared error of "
        f"outputs {seen:.2f} times lower than by rounding ({other:.2f} on other inputs)",
    )


def test_uncorrelated_inputs_gain_nothing(record_property):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 16_384, 256, generator=generator)
    seen, other = gain(weights(256, 256), x[0], x[1])
    assert seen == pytest.approx(1, abs=0.05)
    assert other == pytest.approx(1, abs=0.05)
    record_property(
        "figure",
        f"GPTQ, 256 inputs without correlation: squared error of outputs {seen:.3f} times lower "
        f"than by rounding ({other:.3f} on other inputs)",
    )


@pytest.mark.parametrize("block_size", [1, 5, 16, 24, 96, 1_000])
def test_blocks_change_nothing_but_the_time(block_size):
    weight, hessian = weights(16, 96), hessian_of(correlated(400, 96))
    expected = gptq(weight, hessian, 24).dequantize()
    found = gptq(weight, hessian, 24, block_size=block_size).dequantize()
    rows = torch.isclose(found, expected, rtol=1e-4, atol=1e-7).all(dim=1)
    assert rows.float().mean() >= 0.8  # halves may fall either way
    errors = [output_error(w - weight, hessian) for w in (found, expected)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


def test_order_of_activation_is_the_order_of_columns():
    weight, hessian = weights(16, 64), hessian_of(correlated(500, 64, large=5))
    found = gptq(weight, hessian, 16, act_order=True)
    assert found.order is not None
    diagonal = hessian.diagonal()[found.order]
    assert (diagonal[:-1] >= diagonal[1:]).all()
    sorted_before = gptq(weight[:, found.order], hessian[found.order][:, found.order], 16)
    assert torch.equal(found.codes, sorted_before.codes)
    assert torch.equal(found.dequantize()[:, found.order], sorted_before.dequantize())
    assert gptq(weight, hessian, 16).order is None


def test_dead_columns_are_rounded_and_disturb_nothing():
    x = correlated(400, 64)
    x[:, [3, 20, 63]] = 0
    weight, hessian = weights(16, 64), hessian_of(x)
    for act_order in (False, True):
        found = gptq(weight, hessian, 16, act_order=act_order).dequantize()
        assert found.isfinite().all()
        steps = gptq(weight, hessian, 16).scales.float().amax()
        assert ((found - weight)[:, [3, 20, 63]].abs() <= 0.51 * steps).all()


def test_inputs_that_were_never_there_are_rounding():
    weight = weights(5, 32)
    found, expected = gptq(weight, torch.zeros(32, 32), 8), quantize_groups(weight, 8)
    assert torch.equal(found.codes, expected.codes)


def test_fewer_tokens_than_columns():
    weight, hessian = weights(16, 64), hessian_of(correlated(5, 64))
    rounded = quantize_groups(weight, 16).dequantize()
    found = gptq(weight, hessian, 16).dequantize()
    errors = [output_error(w - weight, hessian) for w in (found, rounded)]
    assert errors[0] < errors[1] / 5


def test_the_factor_is_that_of_the_inverse():
    hessian = hessian_of(correlated(400, 48, large=4))
    upper = inverse_factor(hessian, 0.02).double()
    assert torch.equal(upper, upper.triu())
    damped = hessian.double() + 0.02 * hessian.diagonal().double().mean() * torch.eye(48)
    product = upper.T @ upper @ damped
    torch.testing.assert_close(product, torch.eye(48).double(), rtol=0, atol=1e-3)


def test_damping_is_raised_where_rounding_errors_left_no_factor():
    x = torch.ones(3, 32)
    hessian = hessian_of(x)
    hessian[0, 1:] *= 1.002  # as from sums in another order: an eigenvalue below 0
    hessian[1:, 0] *= 1.002
    assert torch.linalg.eigvalsh(hessian + 1e-3 * torch.eye(32)).min() < 0
    assert inverse_factor(hessian, 1e-3).isfinite().all()


def test_the_weight_stays_as_it_is():
    weight = weights(8, 32)
    before = weight.clone()
    gptq(weight, hessian_of(correlated(100, 32)), 8)
    gptq(weight, hessian_of(correlated(100, 32)), 8, act_order=True)
    assert torch.equal(weight, before)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5),
    groups=st.integers(1, 6),
    size=st.integers(1, 40),
    bits=st.integers(2, 8),
    symmetric=st.booleans(),
    act_order=st.booleans(),
    exponent=st.integers(-30, 3),
    seed=st.integers(0, 99),
)
def test_q04_any_shape_and_size_of_weights_is_finite(
    rows, groups, size, bits, symmetric, act_order, exponent, seed
):
    width = groups * size
    weight = weights(rows, width, seed) * 10.0**exponent
    weight[0] = 0
    x = torch.randn(30, width, generator=torch.Generator().manual_seed(seed))
    options = {"bits": bits, "symmetric": symmetric, "act_order": act_order}
    found = gptq(weight, hessian_of(x), size, **options)
    assert found.codes.shape == (rows, width)
    assert found.scales.shape == found.zeros.shape == (rows, groups)
    assert int(found.codes.max()) < 2**bits
    assert found.dequantize().isfinite().all()
    assert not found.dequantize()[0].any()
