"""Kernels: the products that have no layer of their own, and what each one means.

`reference` is the meaning in plain PyTorch. A faster backend is a module with the same products:
`quantized_linear` and `int8_linear`. `triton` holds kernels for NVIDIA GPUs, of other operations
too. `cpu` holds C++ products that round their inputs to 8 bits as well (`quantize_blocks`): a
different meaning, so that they are no backend of these two and have tests of their own.
"""

import importlib
from types import ModuleType

from minillm.kernels import reference, triton


def backends() -> dict[str, ModuleType]:
    """The backends that run on this machine, by name; every one is tested against "reference"."""
    found: dict[str, ModuleType] = {"reference": reference}
    if triton.why_not() is None:
        found["triton"] = importlib.import_module("minillm.kernels.triton.linear")
    return found
