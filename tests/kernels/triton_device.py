"""Where the Triton kernels are tested: on a GPU, or else on the CPU under Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton", reason="there is no triton for this system")

from minillm.kernels.triton import interpreted

DEVICES = [
    pytest.param(
        "cpu", marks=pytest.mark.skipif(not interpreted(), reason="Triton runs on the GPU here")
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# The relative error of one rounding. The interpreter cuts bfloat16 numbers off, where a GPU rounds.
EPS = {torch.float32: 2.0**-23, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
if interpreted():
    EPS[torch.bfloat16] *= 2


def random(*shape: int, seed: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Numbers drawn on the CPU, so that they are the same for every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Every number within `tolerance` of the expected one, relative to it and to a typical one."""
    assert found.shape == expected.shape
    assert not found.isnan().any()
    expected = expected.double()
    allowed = tolerance * (expected.abs() + expected.square().mean().sqrt())
    worst = ((found.double() - expected).abs() / allowed.clamp(min=1e-30)).max()
    assert worst <= 1, f"off by {float(worst):.2f} times what is allowed"
