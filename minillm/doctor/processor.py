"""The processor, as the system describes it: cores, what of them may be used, instructions."""

import os
import platform
import subprocess
from pathlib import Path

from minillm.bench.host import cpu_model

ROOT = Path("/")
# What the kernels of minillm and of PyTorch choose between, in /proc/cpuinfo's spelling.
INSTRUCTIONS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "AVX-512 bf16",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "asimddp": "NEON dot product",
    "i8mm": "NEON int8 matrices",
    "bf16": "NEON bf16",
    "sve": "SVE",
}
# The same in macOS's spelling, where it has another.
MACOS = {"neon": "asimd", "FEAT_DotProd": "asimddp", "FEAT_I8MM": "i8mm", "FEAT_BF16": "bf16"}


def processor(root: Path = ROOT) -> dict[str, object]:
    """Model, cores and instructions, by name. root: where /proc and /sys are."""
    text = read(root / "proc/cpuinfo")
    return {
        "processor": cpu_model(),
        "cores": cores(text),
        "cores that may be used": usable_cores(root),
        "instructions": instructions(text) or ["not known on this system"],
    }


def cores(cpuinfo: str) -> str:
    """Logical cores, and physical ones where the system tells: "8 logical, 4 physical"."""
    logical = os.cpu_count() or 1
    blocks = [block for block in cpuinfo.split("\n\n") if "core id" in block]
    places = {(value_of(block, "physical id"), value_of(block, "core id")) for block in blocks}
    return f"{logical} logical" + (f", {len(places)} physical" if places else "")


def usable_cores(root: Path = ROOT) -> str:
    """Cores that this process may run on, and a container's share of processor time in them.

    A quota below the number of cores makes threads wait: with half a core, two threads are slower
    than one.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    quota = cpu_quota(root)
    if quota is None:
        return f"{count}"
    return f"{count}, and the container's share of time is {quota:g} cores"


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores' worth of time that control groups allow, on Linux; None where there is no limit.

    Version 2 keeps "quota period" in cpu.max, version 1 two files.
    """
    found = []
    for group in control_groups(root):
        quota, _, period = read(group / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            found.append(int(quota) / int(period))
    for old in ("cpu", "cpu,cpuacct"):
        folder = root / "sys/fs/cgroup" / old
        quota, period = (read(folder / f"cpu.cfs_{x}_us") for x in ("quota", "period"))
        if quota.strip().isdigit() and period.strip().isdigit():
            found.append(int(quota) / int(period))
    return min(found, default=None)


def control_groups(root: Path = ROOT) -> list[Path]:
    """Folders of this process's control group (version 2) and of those above, the highest first.

    What any of them limits is limited.
    """
    group = value_of(read(root / "proc/self/cgroup").replace("0::", "group:"), "group") or "/"
    parts = [part for part in group.split("/") if part and part != ".."]
    return [root.joinpath("sys/fs/cgroup", *parts[:depth]) for depth in range(len(parts) + 1)]


def instructions(cpuinfo: str) -> list[str]:
    """The names of `INSTRUCTIONS` that this processor has."""
    flags = set((value_of(cpuinfo, "flags") or value_of(cpuinfo, "Features") or "").split())
    if not flags and platform.system() == "Darwin":
        flags = _macos_flags()
    return [name for flag, name in INSTRUCTIONS.items() if flag in flags]


def _macos_flags() -> set[str]:
    names = [f"hw.optional.arm.{name}" for name in MACOS if name != "neon"]
    try:
        done = subprocess.run(
            ["sysctl", *names, "hw.optional.neon"], check=False, capture_output=True, text=True
        )
    except OSError:
        return set()
    lines = (line.rpartition(": ") for line in done.stdout.splitlines())
    return {MACOS[name.rpartition(".")[2]] for name, _, value in lines if value == "1"}


def value_of(text: str, name: str) -> str | None:
    """The value of the first line "name : value"."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


def read(path: Path) -> str:
    """A file's text; nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
