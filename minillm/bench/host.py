"""What figures belong to: the machine and the versions that they were measured with."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the figures belong to: processor, threads, device, versions."""
    name = "cpu"
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": name if name != "cpu" else str(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu_model() -> str:
    """The processor's own name, where the system tells it."""
    try:
        if platform.system() == "Linux":
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        if platform.system() == "Darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, check=True, capture_output=True, text=True
            ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()
