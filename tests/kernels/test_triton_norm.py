"""RMSNorm in Triton against the layer's own function in float64."""

import pytest
import torch

from minillm.layers.norm import rms_norm as reference
from tests.kernels.triton_device import DEVICES, DTYPES, EPS, close, random

from minillm.kernels.triton.norm import add_rms_norm, rms_norm  # isort: skip - after the skip

pytestmark = pytest.mark.parametrize("device", DEVICES)
SHAPES = [(1, 576), (1, 1, 1), (3, 100), (2, 3, 64), (2, 5, 9, 80), (1, 4096), (0, 64), (2, 16384)]


def wide(x, weight, eps):
    """In float64, where `rms_norm` of the layers would go down to float32."""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(shape, dtype, device):
    x = random(*shape, seed=0, dtype=dtype, device=device) * 3
    weight = random(shape[-1], seed=1, dtype=dtype, device=device)
    found = rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    if x.numel():
        close(found, wide(x, weight, 1e-5), 4 * EPS[dtype])
        close(found, reference(x, weight, 1e-5), 4 * EPS[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm(shape, dtype, device):
    x = random(*shape, seed=0, dtype=dtype, device=device)
    residual = random(*shape, seed=1, dtype=dtype, device=device)
    weight = random(shape[-1], seed=2, dtype=dtype, device=device)
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    assert normed.dtype == total.dtype == dtype
    if x.numel():
        close(total, x.double() + residual.double(), 2 * EPS[dtype])
        close(normed, wide(total, weight, 1e-5), 4 * EPS[dtype])


def test_the_weight_may_be_wider_and_x_a_view(device):
    x = random(4, 6, 32, seed=0, dtype=torch.float16, device=device).transpose(0, 1)
    weight = random(64, seed=1, dtype=torch.float32, device=device)[::2]
    assert not x.is_contiguous()
    found = rms_norm(x, weight, 1e-6)
    assert found.dtype == torch.float16
    close(found, wide(x, weight, 1e-6), 2.0**-9)


def test_large_numbers_do_not_overflow_and_small_ones_keep_eps(device):
    """300² is beyond float16; and eps stands inside the root."""
    x = torch.full((1, 64), 300.0, dtype=torch.float16, device=device)
    one = torch.ones(64, dtype=torch.float16, device=device)
    assert torch.equal(rms_norm(x, one, 1e-5), one[None])
    tiny = torch.full((1, 64), 1e-3, device=device)
    expected = 1e-3 / (1e-6 + 1e-5) ** 0.5
    close(rms_norm(tiny, one.float(), 1e-5), torch.full_like(tiny, expected), 1e-6)
    assert torch.equal(rms_norm(x * 0, one, 1e-5), x * 0)


def test_nan_stays_in_its_row(device):
    x = random(3, 50, seed=0, dtype=torch.float32, device=device)
    x[1, 7] = float("nan")
    found = rms_norm(x, torch.ones(50, device=device), 1e-5)
    assert found.isnan().any(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("weight", [(63,), (1, 64), ()], ids=str)
def test_a_weight_that_does_not_fit_is_refused(weight, device):
    x = torch.ones(2, 64, device=device)
    with pytest.raises(ValueError, match=r"x has 64 columns and the weight shape"):
        rms_norm(x, torch.ones(weight, device=device), 1e-5)
    with pytest.raises(ValueError, match=r"x has 64 columns and the weight shape"):
        add_rms_norm(x, x, torch.ones(weight, device=device), 1e-5)


def test_other_shapes_are_refused(device):
    x, one = torch.ones(2, 64, device=device), torch.ones(64, device=device)
    with pytest.raises(ValueError, match="have to be alike"):
        add_rms_norm(x, x[:1], one, 1e-5)
    with pytest.raises(ValueError, match="have to be alike"):
        add_rms_norm(x, x.half(), one, 1e-5)
    with pytest.raises(ValueError, match="from 1 to 16384"):
        rms_norm(torch.ones(1, 16385, device=device), torch.ones(16385, device=device), 1e-5)
