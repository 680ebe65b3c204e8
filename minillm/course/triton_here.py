"""Triton as the course uses it, whatever this machine has.

`triton` and `tl` are the package itself where it is installed: with a GPU, kernels are compiled and
run there; without one, Triton's interpreter runs them on the CPU, number by number and slowly.
Where the package is not installed, they are the course's stand-in. `HOW` says which, `DEVICE` where
a kernel's tensors have to be.

Import this before anything else that imports triton: it decides between compiler and interpreter
while it is imported.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import import_module
from typing import Any

import torch


def _usable() -> bool:
    """Whether the package is there, and can run kernels on this machine."""
    if importlib.util.find_spec("triton") is None:
        return False
    if not torch.cuda.is_available() and "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported
    from minillm.kernels.triton import why_not

    return why_not() is None


def _open() -> tuple[Any, Any, str, str]:
    if not _usable():
        from minillm.course import triton_stand_in

        missing = "which is not installed, or cannot run kernels here"
        return triton_stand_in, triton_stand_in.language, "cpu", f"a stand-in for Triton, {missing}"
    from minillm.kernels.triton import interpreted

    package, language = import_module("triton"), import_module("triton.language")
    name = f"Triton {package.__version__}"
    if interpreted():
        return package, language, "cpu", f"{name}, its interpreter on the CPU"
    return package, language, "cuda", f"{name} on {torch.cuda.get_device_name()}"


triton, tl, DEVICE, HOW = _open()
