"""AWQ's search: what it measures, and what it gains where."""

import math

import pytest
import torch

from minillm.quantization.awq import activation_scales, search_scales
from minillm.quantization.scheme import Scheme
from minillm.quantization.statistics import Statistics

GROUPS_64 = Scheme("awq", 4, 64, symmetric=False)
GROUPS_8 = Scheme("awq", 4, 8, symmetric=False)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def layer(outliers, factor, seed=0, N=192, C=256, tokens=2_048):
    """Weights, and calibration and held-out inputs: of rank C/4 plus noise, some channels large."""
    g = generator(seed)
    weight = torch.randn(N, C, generator=g) * 0.05
    mixed = torch.randn(C // 4, C, generator=g) / (C // 4) ** 0.5
    size = torch.ones(C)
    size[torch.randperm(C, generator=g)[:outliers]] = factor
    x = torch.randn(2 * tokens, C // 4, generator=g) @ mixed
    x = (x + 0.3 * torch.randn(2 * tokens, C, generator=g)) * size
    return weight, x[:tokens], x[tokens:]


def statistics_of(x):
    found = Statistics(x.shape[-1])
    found.add(x)
    return found


def error(weight, scales, x, scheme):
    """Mean squared error of the outputs, from the inputs themselves, in numpy and float64."""
    rounded = scheme.round(weight * scales).dequantize().double().numpy() / scales.double().numpy()
    return float((((rounded - weight.double().numpy()) @ x.double().numpy().T) ** 2).mean())


def gain(weight, found, x, scheme):
    """Error of rounding to nearest over that of AWQ."""
    plain = error(weight, torch.ones_like(found.scales), x, scheme)
    return plain / error(weight, found.scales, x, scheme)


def alpha(found):
    return found.alphas[found.errors.index(min(found.errors))]


@pytest.mark.parametrize("scheme", [GROUPS_64, Scheme("awq", 4, 64, True)], ids=["asym", "sym"])
def test_gains_where_some_channels_are_large(scheme, record_property):
    for outliers, factor in [(4, 10), (4, 20), (8, 20)]:
        weight, calibration, held_out = layer(outliers, factor)
        found = search_scales([weight], statistics_of(calibration), scheme)
        gains = [gain(weight, found, x, scheme) for x in (calibration, held_out)]
        record_property(
            "figure",
            f"AWQ, 4 bits, groups of 64, {'' if scheme.symmetric else 'a'}symmetric, {outliers} of "
            f"256 channels {factor} times as large: mean squared output error {gains[0]:.2f} times "
            f"smaller than rounding's, on held-out inputs {gains[1]:.2f} (α = {alpha(found):.2f})",
        )
        assert min(gains) > 1.5


def test_gains_little_where_all_channels_are_alike(record_property):
    """Correlated or not: with nothing large to protect, there is nothing to gain."""
    weight, calibration, held_out = layer(0, 1)
    found = search_scales([weight], statistics_of(calibration), GROUPS_64)
    gains = [gain(weight, found, x, GROUPS_64) for x in (calibration, held_out)]
    record_property(
        "figure",
        "AWQ, 4 bits, groups of 64, no large channels: mean squared output error "
        f"{gains[0]:.2f} times smaller than rounding's, on held-out inputs {gains[1]:.2f}",
    )
    assert 1 <= gains[0] < 1.1
    assert 0.95 < gains[1] < 1.1


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group_size", [32, -1])
def test_errors_are_the_outputs_own_and_never_above_roundings(bits, symmetric, group_size):
    scheme = Scheme("awq", bits, group_size, symmetric)
    weight, x, _ = layer(3, 15, seed=bits, N=24, C=64, tokens=300)
    found = search_scales([weight], statistics_of(x), scheme)
    assert found.alphas[0] == 0
    assert found.alphas[-1] == 1
    assert len(found.alphas) == len(found.errors) == 20
    assert found.errors[0] == pytest.approx(error(weight, torch.ones(64), x, scheme), rel=1e-4)
    assert min(found.errors) == pytest.approx(error(weight, found.scales, x, scheme), rel=1e-4)
    assert min(found.errors) <= found.errors[0]
    for exponent, measured in zip(found.alphas, found.errors, strict=True):
        scales = x.abs().double().mean(dim=0) ** exponent
        scales = (scales / (scales.max() * scales.min()) ** 0.5).float()
        assert measured == pytest.approx(error(weight, scales, x, scheme), rel=0.01)


def test_weights_that_share_an_input_share_scales():
    """As if they were one matrix: what counts is the error of all outputs together."""
    weight, x, _ = layer(3, 15, N=48, C=64, tokens=300)
    parts = [weight[:8], weight[8:20] * 5, weight[20:] * 0.2]
    whole = search_scales([torch.cat(parts)], statistics_of(x), GROUPS_8)
    found = search_scales(parts, statistics_of(x), GROUPS_8)
    assert found.errors == pytest.approx(whole.errors, rel=1e-4)
    torch.testing.assert_close(found.scales, whole.scales)


def test_scales_by_hand():
    sizes = torch.tensor([1.0, 4.0, 16.0])
    assert activation_scales(sizes, 0).tolist() == [1, 1, 1]
    torch.testing.assert_close(activation_scales(sizes, 0.5), torch.tensor([0.5, 1, 2]))
    torch.testing.assert_close(activation_scales(sizes, 1), torch.tensor([0.25, 1, 4]))
    torch.testing.assert_close(activation_scales(sizes * 1e20, 1), torch.tensor([0.25, 1, 4]))


@pytest.mark.parametrize(
    "sizes",
    [[0, 0, 0], [0, 1, 2], [1e-45, 0, 0], [3e38, 1, 0], [1e-30, 1, 1e30], [5], [0]],
    ids=str,
)
def test_dead_and_extreme_channels_keep_scales_sane(sizes):
    mean_abs = torch.tensor(sizes, dtype=torch.float32)
    for exponent in (0, 0.3, 1):
        scales = activation_scales(mean_abs, exponent)
        assert bool(((scales >= 0.00999) & (scales <= 100.1)).all())
        order = mean_abs.argsort(stable=True)
        assert bool((scales[order].diff() >= 0).all())


def test_no_inputs_and_zero_weights_leave_scales_at_one():
    for weight, statistics in [
        (torch.randn(4, 16, generator=generator(0)), Statistics(16)),
        (torch.zeros(4, 16), statistics_of(torch.randn(9, 16, generator=generator(0)))),
    ]:
        found = search_scales([weight], statistics, GROUPS_8)
        assert found.scales.tolist() == [1] * 16
        assert found.errors == [0] * 20


def test_a_dead_channel_and_one_that_is_huge():
    weight, x, _ = layer(0, 1, N=24, C=64, tokens=300)
    x[:, 3], x[:, 9] = 0, x[:, 9] * 1e6
    found = search_scales([weight], statistics_of(x), GROUPS_8)
    assert all(map(math.isfinite, found.errors))
    assert gain(weight, found, x, GROUPS_8) > 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights(dtype):
    weight, x, _ = layer(3, 15, N=24, C=64, tokens=300)
    low = search_scales([weight.to(dtype)], statistics_of(x), GROUPS_8)
    same = search_scales([weight.to(dtype).float()], statistics_of(x), GROUPS_8)
    assert low.errors == same.errors
    assert low.scales.dtype == torch.float32


def test_refused():
    weight, x, _ = layer(3, 15, N=24, C=64, tokens=300)
    statistics = statistics_of(x)
    for weights, message in [
        ([], r"the weights are \[\]; matrices of 64 columns"),
        ([weight, weight[:, :32]], "matrices of 64 columns"),
        ([weight[0]], r"\(64,\)"),
        ([weight.where(weight != weight[1, 2], math.nan)], r"\[1, 2\] is nan"),
    ]:
        with pytest.raises(ValueError, match=message):
            search_scales(weights, statistics, GROUPS_8)
    with pytest.raises(ValueError, match="steps is 0"):
        search_scales([weight], statistics, GROUPS_8, steps=0)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="NaN or infinite"):
            search_scales([weight], statistics_of(x.where(x != x[1, 2], bad)), GROUPS_8)


def test_q05_group_size_that_does_not_fit():
    weight, x, _ = layer(0, 1, N=24, C=64, tokens=300)
    with pytest.raises(ValueError, match=r"group_size is 48, which does not divide .* 64"):
        search_scales([weight], statistics_of(x), Scheme("awq", 4, 48, symmetric=False))
