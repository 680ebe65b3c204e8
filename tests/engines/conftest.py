"""Fixtures of the engines' tests."""

import warnings

import pytest

from minillm.engines import cpu as engine_module
from minillm.engines import graphs
from tests.cpu_variants import variant

__all__ = ["many_tokens", "no_warnings", "variant"]


@pytest.fixture
def many_tokens(monkeypatch):
    """Weights in floating point run in C++ whatever the number of tokens."""
    monkeypatch.setattr(engine_module, "FEW_TOKENS", 10**6)


@pytest.fixture
def no_warnings():
    """A decode step that could not be recorded, which is a warning, is an error."""
    graphs._warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
