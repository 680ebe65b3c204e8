"""Kernels: the products that have no layer of their own, and what each one means.

`reference` is the meaning in plain PyTorch. A faster backend is a module with the same products:
`quantized_linear` and `int8_linear`.
"""

from types import ModuleType

from minillm.kernels import reference


def backends() -> dict[str, ModuleType]:
    """The backends that run on this machine, by name; every one is tested against "reference"."""
    return {"reference": reference}
