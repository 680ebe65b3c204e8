"""Fixtures of the engines' tests."""

import warnings

import pytest

from minillm.engines import cpu as engine_module
from minillm.engines import graphs
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


@pytest.fixture
def no_warnings():
    """A decode step that could not be recorded, which is a warning, is an error."""
    graphs._warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
