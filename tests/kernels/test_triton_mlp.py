"""The gates in Triton against the layers' own functions."""

import pytest
import torch

from minillm.layers import mlp as reference
from tests.kernels.triton_device import DEVICES, DTYPES, EPS, close, random

from minillm.kernels.triton import mlp  # isort: skip - after the skip

pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 3072), (1, 2), (2, 3, 2 * 1025), (0, 8), (6,)], ids=str)
def test_gates(shape, dtype, name, device):
    gate_up = random(*shape, seed=0, dtype=dtype, device=device) * 4
    found = getattr(mlp, name)(gate_up)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert found.dtype == dtype
    if found.numel():
        close(found, getattr(reference, name)(gate, up), 8 * EPS[dtype])


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_far_from_zero(name, device):
    """exp(200) overflows; the gate is then 0, or lets everything pass."""
    gate = torch.tensor([-200.0, -50.0, 0.0, 50.0, 200.0], device=device)
    found = getattr(mlp, name)(torch.cat([gate, torch.full_like(gate, 2.0)]))
    assert torch.allclose(found, gate.clamp(min=0) * 2, atol=1e-6)


def test_gate_and_up_are_not_exchanged(device):
    found = mlp.swiglu(torch.tensor([[1.0, 10.0]], device=device))
    assert abs(float(found) - 7.310586) < 1e-5


def test_an_odd_width_is_refused(device):
    for width in (0, 7):
        with pytest.raises(ValueError, match=f"gate_up has {width} columns"):
            mlp.swiglu(torch.ones(2, width, device=device))
