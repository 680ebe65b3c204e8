"""Compile every Triton kernel for several GPUs, and print what it uses. No GPU is needed.

    python tools/triton_usage.py [--arch 75 80 90] [--only TEXT] [--json]

The package's own functions are called, on tensors without data, and a launch compiles instead of
running: so what is measured is what would run, all configurations of the autotuner included.
Registers are per thread, shared memory per block of threads. Spilled bytes, per thread, are
registers that did not fit and went to memory; there should be none.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from minillm.kernels.triton import CodedTokens, attention, cache, linear, mlp, norm, sampling
from minillm.kernels.triton import quantized_attention as quantized
from minillm.kv_cache.groups import channels_per_group

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
Case = tuple[str, Callable[[], object]]
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


class Usage(NamedTuple):
    """What one compiled kernel needs."""

    case: str
    kernel: str
    arch: int
    warps: int
    registers: int
    shared: int
    spilled: int


class CompileOnly(DriverBase):  # type: ignore[misc]  # triton is not analysed
    """A driver for a GPU that is not there: it knows what to compile for."""

    def __init__(self, arch: int) -> None:
        self.arch, self.compiled = arch, []  # type: tuple[int, list[Any]]

    @classmethod
    def is_active(cls) -> bool:
        """Never found by itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        """The architecture, with warps of 32 threads."""
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        """A number of its own for each architecture, under which Triton keeps its kernels."""
        return self.arch

    def get_current_stream(self, device: int) -> int:
        """Not used."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors without data are."""
        return torch.device("meta")

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Not used."""
        return ty

    def get_benchmarker(self) -> Callable[..., Any]:
        """There is nothing to time."""
        raise NotImplementedError


def compile_for(arch: int, call: Callable[[], object]) -> list[Any]:
    """All kernels that this call would launch, compiled."""
    found: list[Any] = []
    run, tune = JITFunction.run, Autotuner.run

    def compile_one(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append(kernel)
        return kernel

    def compile_all(self: Any, *args: Any, warmup: bool = False, **options: Any) -> None:
        self.warmup(*args, **options)

    driver.set_active(CompileOnly(arch))
    JITFunction.run, Autotuner.run = compile_one, compile_all
    try:
        call()
    finally:
        JITFunction.run, Autotuner.run = run, tune
    return found


def measure(case: str, arch: int, kernel: Any) -> Usage:
    """Registers, shared memory and spills, as the CUDA tool reads them out of the machine code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts = dict(re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", text))
    return Usage(
        case,
        kernel.name,
        arch,
        kernel.metadata.num_warps,
        int(counts["REG"]),
        kernel.metadata.shared,
        # What a thread keeps in memory of its own: the spills, for no kernel here has arrays.
        int(counts["STACK"]) + int(counts["LOCAL"]),
    )


def new(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def cases(arch: int) -> Iterator[Case]:
    """Calls that together launch every kernel, in shapes of real models."""
    for dtype in (HALF, FULL) if arch < 80 else (HALF, BRAIN, FULL):
        short = {HALF: "fp16", BRAIN: "bf16", FULL: "fp32"}[dtype]
        for C in (576, 4096, 16_384):
            x, w = new(1, C, dtype=dtype), new(C, dtype=dtype)
            yield f"rms_norm {short} C={C}", partial(norm.rms_norm, x, w, 1e-5)
            yield f"add_rms_norm {short} C={C}", partial(norm.add_rms_norm, x, x, w, 1e-5)
        gate_up = new(1, 11_008 * 2, dtype=dtype)
        yield f"swiglu {short}", partial(mlp.swiglu, gate_up)
        yield f"geglu {short}", partial(mlp.geglu, gate_up)
        for C, size in ((4096, 64), (4096, 128), (4096, 4096), (100, 50)):
            yield from product_cases(f"{short} C={C}/{size}", C, size, dtype)
        for D in (64, 80, 128, 256) if dtype == HALF else (128, 256):
            yield from attention_cases(f"{short} D={D}", D, dtype)
    x, s = new(2, 4096).char(), new(2, 1, dtype=FULL)
    many, t = new(64, 4096).char(), new(64, 1, dtype=FULL)
    yield "int8_linear, 2 tokens", partial(linear.int8_linear, x, s, many, t)
    yield "int8_linear, 64 tokens", partial(linear.int8_linear, many, t, many, t)
    real, whole = new(2, dtype=FULL), new(2).long()
    choice = new(2, 49_152), real, whole, real, real, whole, whole
    yield "sample", partial(sampling.sample, *choice)


def product_cases(name: str, C: int, size: int, dtype: torch.dtype) -> Iterator[Case]:
    """Products with one matrix of quantized weights, for one token and for a few."""
    scales, zeros = new(4096, C // size), new(4096, C // size).byte()
    for bits in (4, 8):
        weights = new(4096, C * bits // 8).byte(), scales, zeros, None, bits
        for tokens in (1, 8):
            x = new(tokens, C, dtype=dtype)
            yield f"int{bits} x{tokens} {name}", partial(linear.quantized_linear, x, *weights)


def attention_cases(name: str, D: int, dtype: torch.dtype) -> Iterator[Case]:
    """What attention needs for one head width."""
    B, K, N = 2, 8, 128
    q, k, lengths = new(B, 32, 1, D, dtype=dtype), new(B, K, 1, D, dtype=dtype), new(B).long()
    keys = new(B, K, N * 32, D, dtype=dtype)
    tables = new(4096, D // 2, dtype=FULL), new(4096, D // 2, dtype=FULL)
    places = keys, keys, lengths[:, None]
    yield f"rope_and_cache {name}", partial(cache.rope_and_cache, q, k, k, *tables, *places)
    decode = partial(attention.decode_attention, q, keys, keys, lengths)
    yield f"attention {name}", decode
    yield f"attention {name} ring", partial(decode, window=4092, sinks=4, ring=4092)
    for bits in () if dtype == FULL and D > 128 else (4, 8):
        codes, newest = new(B, K, N, 32, D * bits // 8).byte(), new(B, K, 32, D, dtype=dtype)
        per_channel = new(B, K, N, 1, D, dtype=BRAIN)
        per_token = new(B, K, N, 32, D // channels_per_group(D), dtype=BRAIN)
        k_coded = CodedTokens(codes, per_channel, per_channel, newest)
        v_coded = CodedTokens(codes, per_token, per_token, newest)
        call = partial(quantized.quantized_decode_attention, q, k_coded, v_coded, lengths)
        yield f"attention {name} int{bits}", call


def usages(arch: int, only: str) -> Iterator[Usage]:
    """What each kernel of each case uses; a kernel that two cases share is given once."""
    seen: set[str] = set()
    for case, call in cases(arch):
        if only in case:
            for kernel in compile_for(arch, call):
                if kernel.hash not in seen:
                    seen.add(kernel.hash)
                    yield measure(case, arch, kernel)


def main() -> None:
    """Print one line for each kernel; exit with 1 if any spills."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", type=int, nargs="+", default=[75, 80, 90])
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [usage for arch in args.arch for usage in usages(arch, args.only)]
    if args.json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    print(f"{'case':<36} {'kernel':<28} {'sm':>3} {'warps':>5} {'regs':>5} {'shared':>7} spilled")
    for case, kernel, arch, warps, registers, shared, spilled in rows:
        print(f"{case:<36} {kernel:<28} {arch:>3} {warps:>5} {registers:>5} {shared:>7} {spilled}")
    if any(row.spilled for row in rows):
        sys.exit("some kernels spill registers")


if __name__ == "__main__":
    main()
