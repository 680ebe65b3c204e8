"""Fixtures of the kernels' tests."""

from tests.cpu_variants import variant

__all__ = ["variant"]
