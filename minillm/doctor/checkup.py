"""All facts together, what is wrong among them, and which engine would run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from minillm.bench.peaks import available_memory
from minillm.device import pick_device
from minillm.doctor import software
from minillm.doctor.processor import (
    ROOT,
    control_groups,
    cpu_quota,
    processor,
    read,
    value_of,
)
from minillm.weights.pull import home

GIGABYTE = 1e9


@dataclass(frozen=True, slots=True)
class Checkup:
    """facts: values by name. warnings: what makes this machine slower than it must be.

    backends: each engine, and why `--backend auto` would not run it; None where it would.
    """

    facts: dict[str, object]
    warnings: list[str] = field(default_factory=list)
    backends: dict[str, str | None] = field(default_factory=dict)

    @property
    def chosen(self) -> str | None:
        """What `--backend auto` takes, the first that runs; None where it ends in an error."""
        return next((name for name, reason in self.backends.items() if reason is None), None)


def checkup() -> Checkup:
    """Look at this machine. Takes a second; nothing is loaded but PyTorch and the C++ kernels."""
    kernels = software.kernels()  # first: it may bring an OpenMP runtime
    runtimes = software.openmp_runtimes()
    facts: dict[str, object] = processor() | {"memory": memory(), "compiler": software.compiler()}
    facts |= software.pytorch()
    facts |= {
        "OpenMP runtimes": runtimes or ["not known on this system"],
        "C++ kernels": _kernels_text(kernels),
        "Triton": software.triton(),
        "CUDA devices": software.cuda_devices() or ["none"],
        "models in": str(home() / "models"),
        "models": models() or ["none yet; `minillm pull smollm2` fetches one"],
    }
    return Checkup(
        facts,
        warnings(runtimes, cpu_quota(), torch.get_num_threads(), kernels),
        backends(pick_device("auto").type, software.why_not_cuda(), kernels),
    )


def warnings(
    runtimes: Sequence[str], quota: float | None, threads: int, kernels: software.Kernels
) -> list[str]:
    """What is worth putting right, one sentence each."""
    found = []
    if len(runtimes) > 1:
        found.append(
            f"{len(runtimes)} OpenMP runtimes are loaded, whose threads get in each other's way: "
            f"{', '.join(runtimes)}"
        )
    if quota is not None and threads > max(quota, 1):
        found.append(
            f"PyTorch uses {threads} threads, and this container may use {quota:g} cores: set "
            f"OMP_NUM_THREADS={max(int(quota), 1)}"
        )
    if kernels.why_not is None and kernels.variant == "portable":
        found.append("the C++ kernels run without vector instructions, which is slow")
    return found


def backends(device: str, no_cuda: str | None, kernels: software.Kernels) -> dict[str, str | None]:
    """Why each engine would not run here, in the order in which `--backend auto` prefers them.

    device: the kind that `--device auto` takes. no_cuda: why the CUDA engine is out of the
    question, or None.
    """
    no_kernels, no_torch = kernels.why_not, None
    if device != "cpu" and no_kernels is None:
        no_kernels = f"--device auto takes {device} (--device cpu asks for the processor)"
    elif device == "cpu" and kernels.misnamed:
        no_torch = "auto ends in an error at such a MINILLM_CPU (--backend torch does not)"
    return {"cuda": no_cuda, "cpu": no_kernels, "torch": no_torch}


def memory() -> str:
    """Free and total memory, and a container's limit, on Linux."""
    found, free = value_of(read(ROOT / "proc/meminfo"), "MemTotal"), available_memory()
    if found is None or free is None:
        return "not known on this system"
    total = int(found.split()[0]) * 1024
    text = f"{free / GIGABYTE:.1f} of {total / GIGABYTE:.1f} GB free"
    limit = memory_limit()
    if limit is not None and limit < total:
        text += f"; the container may use {limit / GIGABYTE:.1f} GB"
    return text


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that this process's control groups allow, on Linux; None where there is no limit."""
    files = [group / "memory.max" for group in control_groups(root)]
    files.append(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 1
    texts = (read(path).strip() for path in files)
    return min((int(text) for text in texts if text.isdigit()), default=None)


def models() -> list[str]:
    """Names of what was pulled."""
    folder = home() / "models"
    if not folder.is_dir():
        return []
    return sorted(x.name for x in folder.iterdir() if x.is_dir() and not x.name.startswith("."))


def _kernels_text(kernels: software.Kernels) -> str:
    if kernels.why_not is not None:
        return f"not available: {kernels.why_not}"
    others = [name for name in kernels.variants if name != kernels.variant]
    text = f"built; {kernels.variant} is in use"
    return f"{text}, {', '.join(others)} would run too" if others else text
