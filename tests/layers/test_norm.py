"""RMSNorm: by hand, against PyTorch, and where half precision overflows."""

import pytest
import torch

from minillm.layers.norm import rms_norm


def test_by_hand():
    # mean of squares of (3, 4) is 12.5
    out = rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(out, torch.tensor([3, 8]) / 12.5**0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_torch(dtype):
    x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.linspace(0.5, 2, 48).to(dtype)
    expected = torch.nn.functional.rms_norm(x.float(), (48,), weight.float(), 1e-5)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    out = rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


def test_m10_half_precision_does_not_overflow():
    x = torch.tensor([1000.0, -1000, 500, -500], dtype=torch.float16)
    out = rms_norm(x, torch.ones(4, dtype=torch.float16), 1e-5)
    expected = torch.tensor([1.2649, -1.2649, 0.6325, -0.6325])
    torch.testing.assert_close(out.float(), expected, atol=1e-3, rtol=0)


def test_zero_vector_stays_zero():
    assert torch.equal(rms_norm(torch.zeros(4), torch.ones(4), 1e-5), torch.zeros(4))
