"""The fixture with which a test runs once for each variant of the C++ kernels."""

import pytest

from minillm.kernels import cpu


@pytest.fixture(params=cpu.variants())
def variant(request):
    """Every variant that this machine has, one after the other; then the one that was in use."""
    before = str(cpu.variant())
    cpu.use(request.param)
    yield request.param
    cpu.use(before)
