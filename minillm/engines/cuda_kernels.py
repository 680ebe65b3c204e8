"""The kernels that a decode step is made of."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.engines.base import Unsupported


@dataclass(frozen=True, slots=True)
class Kernels:
    """Functions with the signatures and the meaning of those in `minillm.kernels.triton`."""

    rms_norm: Callable[..., Tensor]
    add_rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rope_and_cache: Callable[..., Tensor]
    decode_attention: Callable[..., Tensor]
    quantized_decode_attention: Callable[..., Tensor]
    quantized_linear: Callable[..., Tensor]
    swiglu: Callable[..., Tensor]
    geglu: Callable[..., Tensor]
    sample: Callable[..., Tensor]

    @classmethod
    def triton(cls, device: torch.device) -> "Kernels":
        """Triton's kernels; `Unsupported` says why they cannot run on this device."""
        from minillm.kernels import triton

        reason = triton.why_not(device if device.type == "cuda" else None)
        if reason is None and device.type != "cuda" and not triton.interpreted():
            reason = f"the model is on the device {device}"
        if reason is not None:
            raise Unsupported(reason)
        from minillm.kernels.triton import (
            attention,
            cache,
            linear,
            mlp,
            norm,
            quantized_attention,
            sampling,
        )

        try_on(device, norm.rms_norm)
        return cls(
            norm.rms_norm,
            norm.add_rms_norm,
            cache.rope_and_cache,
            attention.decode_attention,
            quantized_attention.quantized_decode_attention,
            linear.quantized_linear,
            mlp.swiglu,
            mlp.geglu,
            sampling.sample,
        )


def try_on(device: torch.device, rms_norm: Callable[..., Tensor]) -> None:
    """Run one kernel. `Unsupported` where that fails: Triton needs a C compiler and Python's
    headers, besides a driver that takes its code, and misses them only when a kernel is launched.
    """
    try:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            one = torch.ones(1, 16, device=device)
            rms_norm(one, one[0], 1e-5)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Unsupported(f"Triton cannot run a kernel here ({reason})") from error
