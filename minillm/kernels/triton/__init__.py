"""Kernels for NVIDIA GPUs, written in Triton; a reference in plain PyTorch says what each means.

Importing a module of this package needs the `triton` package, running a kernel a GPU as well.
Without a GPU they run under Triton's interpreter: set the environment variable TRITON_INTERPRET=1
before anything imports triton. It is slow, and exact enough to test with.
"""

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

OLDEST_TRITON = (3, 4)  # the first that stores what autotuning has found (`cache_results`)
OLDEST = (7, 5)  # sm_75, Turing: the first whose tensor cores multiply whole numbers too
# The most numbers of a row that is normalised, of a head, and of a float32 head beside a cache of
# codes: more would spill registers.
WIDEST_ROW = 16_384
WIDEST_HEAD = 256
WIDEST_HEAD_ON_CODES = 128


class CodedTokens(NamedTuple):
    """Keys or values of one layer, as `minillm.kv_cache.quantized.BlockStore` has them.

    codes: (B, K, N, 32, D), uint8, or D/2 bytes of two 4-bit codes each. scales, minima:
    (B, K, N, 32/t, D/c), bfloat16, where t tokens × c channels share them. newest: (B, K, 32, D),
    the unfinished block, exact.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor
    newest: Tensor


def interpreted() -> bool:
    """Whether kernels run under Triton's interpreter, on tensors of any device."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    # Decided when triton is first imported: later its own functions are for compilation only.
    return not isinstance(tl.sum, JITFunction)


def why_not(device: torch.device | None = None) -> str | None:
    """Why these kernels cannot run here, to complete "because …"; None where they can.

    device: the GPU that is meant; the current one unless given.
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed (pip install 'minillm-course[gpu]')"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"triton is {triton.__version__}; {'.'.join(map(str, OLDEST_TRITON))} is needed"
    if interpreted():
        return None
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    found = torch.cuda.get_device_capability(device)
    if found < OLDEST:
        return f"the GPU has compute capability {found}; {OLDEST} is needed"
    return None


def tensor_cores() -> bool:
    """Whether Triton multiplies on tensor cores here: from sm_80 on.

    On older GPUs it multiplies on ordinary ones, with whole rows in registers, so that blocks have
    to be smaller.
    """
    from triton.runtime.driver import driver

    return interpreted() or driver.active.get_current_target().arch >= 80
