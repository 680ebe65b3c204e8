"""NF4: its values against the published ones, and the nearest of them by trying all."""

from statistics import NormalDist

import pytest
import torch

from minillm.quantization.int4 import quantize_groups
from minillm.quantization.nf4 import nf4_levels, nf4_round

# Dettmers et al. 2023, appendix E, to four digits.
PUBLISHED = (
    "-1 -0.6962 -0.5251 -0.3949 -0.2844 -0.1848 -0.0911 0 "
    "0.0796 0.1609 0.2461 0.3379 0.4407 0.5626 0.7230 1"
)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_published_values():
    expected = torch.tensor([float(x) for x in PUBLISHED.split()])
    torch.testing.assert_close(nf4_levels(), expected, rtol=0, atol=1e-4)


def test_values_are_quantiles():
    """Steps of equal probability on either side of 0, by another implementation of the quantile."""
    largest = NormalDist().inv_cdf(1 - (1 / 30 + 1 / 32) / 2)
    shares = [NormalDist().cdf(float(x) * largest) for x in nf4_levels()]
    steps = torch.tensor(shares).diff()
    torch.testing.assert_close(steps[:7], steps[:1].expand(7), rtol=1e-5, atol=0)
    torch.testing.assert_close(steps[7:], steps[-1:].expand(8), rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [-1, 4, 32])
def test_nearest_by_trying_all(size):
    weight = random(6, 64)
    found = nf4_round(weight, size)
    groups = weight.view(-1, 64 if size == -1 else size)
    for row, rounded in zip(groups, found.view(groups.shape), strict=True):
        scale = float(rounded.abs().max())  # the largest weight is at -1 or 1
        assert 0 <= scale - float(row.abs().max()) < scale / 1_000  # a float16, rounded up
        values = nf4_levels() * scale
        nearest = (row[:, None] - values).abs().amin(dim=1)
        torch.testing.assert_close((row - rounded).abs(), nearest, rtol=0, atol=1e-6)


def test_normal_weights_fare_better_than_on_an_even_grid(record_property):
    weight = random(256, 256) * 0.02
    error = {
        "NF4": nf4_round(weight),
        "INT4 symmetric": quantize_groups(weight, symmetric=True).dequantize(),
        "INT4 asymmetric": quantize_groups(weight).dequantize(),
    }
    mean = {
        name: float((w - weight).pow(2).mean() / weight.pow(2).mean()) for name, w in error.items()
    }
    text = ", ".join(f"{name} {value:.2%}" for name, value in mean.items())
    record_property("figure", f"squared error on normal weights, groups of 64: {text}")
    assert mean["NF4"] < mean["INT4 symmetric"]


@pytest.mark.parametrize("value", [0.0, -0.0, 5.0, -5.0, 1e-6, 1e-30, 1.4e-45, 60_000.0, -60_000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_q04_zeros_constants_tiny_and_huge(value, dtype):
    weight = torch.full((2, 8), value, dtype=torch.float64).to(dtype)
    found = nf4_round(weight, 4)
    assert found.dtype == torch.float32
    # Below float16's smallest number everything becomes 0.
    torch.testing.assert_close(found.double(), weight.double(), rtol=1e-3, atol=6e-8)
    assert not found[weight == 0].any()


def test_views_and_gradients():
    weight = random(8, 8)
    expected = nf4_round(weight, 4)
    assert torch.equal(nf4_round(weight.T.contiguous().T, 4), expected)
    assert not nf4_round(weight.requires_grad_(), 4).requires_grad


@pytest.mark.parametrize(
    ("weight", "size", "message"),
    [
        (torch.ones(2, 576), 128, "32, 64, 96, 192 would"),
        (torch.ones(2, 8), 0, "group_size is 0"),
        (torch.tensor([[1.0, torch.nan]]), 2, r"\[0, 1\] is nan"),
        (torch.tensor([[1.0, 70_000.0]]), 2, "at most 65504"),
        (torch.ones(4), 2, r"shape \(4,\)"),
        (torch.ones(2, 2, dtype=torch.int32), 2, "torch.int32"),
    ],
)
def test_what_cannot_be_rounded(weight, size, message):
    with pytest.raises(ValueError, match=message):
        nf4_round(weight, size)
