"""Fixtures of the C++ engine's tests."""

import pytest

from minillm.engines import cpu as engine_module
from minillm.kernels import cpu


@pytest.fixture
def many_tokens(monkeypatch):
    """Weights in floating point run in C++ whatever the number of tokens."""
    monkeypatch.setattr(engine_module, "FEW_TOKENS", 10**6)


@pytest.fixture(params=cpu.variants())
def variant(request):
    """Every variant that this machine has, one after the other."""
    before = str(cpu.variant())
    cpu.use(request.param)
    yield request.param
    cpu.use(before)
