"""Which kernels the CUDA engine's tests run: those in plain PyTorch, and Triton's."""

import importlib.util
import os
from typing import Any

import pytest
import torch

# Before anything imports triton: without a GPU its kernels run under its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Under the interpreter a step takes seconds: there a few models stand for all.
KERNELS = ["plain", *(["triton"] if torch.cuda.is_available() else [])]
has_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="no triton here")


def engine_of(model, kind="plain") -> Any:
    """A CUDA engine with the kernels of this name, on whatever device the model is."""
    from minillm.engines.cuda import CudaEngine

    return CudaEngine(model, kernels_of(kind))


def kernels_of(kind):
    """The kernels of this name; None stands for those that the engine takes by itself."""
    from dataclasses import fields

    from minillm.engines.cuda_kernels import Kernels
    from tests.engines import plain_kernels

    if kind != "plain":
        return None
    return Kernels(*(getattr(plain_kernels, field.name) for field in fields(Kernels)))
