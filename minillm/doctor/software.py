"""What is installed: compiler, PyTorch, OpenMP runtimes, the C++ kernels, Triton, CUDA."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from minillm.kernels import cpu
from minillm.kernels import triton as triton_kernels

RUNTIME = re.compile(r"/lib(?:gomp|iomp5|omp)\b[^/]*\.(?:so|dylib)[^/]*$")


class Kernels(NamedTuple):
    """The C++ library: the variant in use, all that run here, and why there is none.

    misnamed: the reason is a MINILLM_CPU without a meaning here, which is an error and no choice.
    """

    variant: str | None
    variants: Sequence[str]
    why_not: str | None
    misnamed: bool = False


def compiler() -> str:
    """The first C++ compiler found, with its version: the one that would build the kernels."""
    for name in filter(None, [os.environ.get("CXX"), "c++", "g++", "clang++", "cl"]):
        words = name.split()
        if path := shutil.which(words[0]):
            return f"{path}: {_first_line([path, *words[1:], '--version'])}"
    return "none found (the C++ kernels are built when minillm is installed, where there is one)"


def pytorch() -> dict[str, object]:
    """Version and build of PyTorch, and how it computes on a CPU."""
    libraries = {"MKL": torch.backends.mkl, "oneDNN": torch.backends.mkldnn}
    there = [name for name, library in libraries.items() if library.is_available()]
    return {
        "torch": torch.__version__,
        "torch, CUDA": torch.version.cuda or "not in this build",
        "torch, threads": torch.get_num_threads(),
        "torch, instructions": torch.backends.cpu.get_cpu_capability(),
        "torch, libraries": there or ["neither MKL nor oneDNN"],
    }


def openmp_runtimes(maps: str | None = None) -> list[str]:
    """Paths of the OpenMP libraries in this process, on Linux; nothing where it does not tell.

    Each brings threads of its own, and with two of them twice as many threads as cores may run.
    maps: what to read in place of /proc/self/maps.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines()}
    return sorted(path for path in paths if RUNTIME.search(path))


def kernels() -> Kernels:
    """Of `minillm.kernels.cpu`, as it is on this machine; MINILLM_CPU counts."""
    try:
        return Kernels(cpu.variant(), cpu.variants(), cpu.why_not())
    except ValueError as error:
        return Kernels(None, [], str(error), misnamed=True)


def triton() -> str:
    """Version of Triton, without importing it."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return "not installed"


def why_not_cuda() -> str | None:
    """Why the CUDA engine would not run here, or None where it would."""
    if not torch.cuda.is_available():
        built = torch.version.cuda is not None
        return "there is no CUDA device" if built else "this build of PyTorch has no CUDA"
    return triton_kernels.why_not()


def cuda_devices() -> list[str]:
    """Name, capability and memory of each CUDA device."""
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        free, total = torch.cuda.mem_get_info(index)
        found.append(
            f"{torch.cuda.get_device_name(index)}, sm_{major}{minor}, "
            f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        )
    return found


def _first_line(command: Sequence[str]) -> str:
    """What a program prints first; "it does not run" where it fails."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=30, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return "it does not run"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "it does not say its version"
