"""Runs one notebook under nbval in a process of its own, and measures it."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minillm.course.tool.run import PeakMemory

HERE = Path(__file__).parent

# The forms in which a notebook must give the same outputs: what is set in its environment.
FORMS: dict[str, dict[str, str]] = {
    "as is": {},
    "no vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
}
SECONDS_LIMIT = 90.0  # on two cores
PEAK_LIMIT = 1.5e9  # bytes; Binder gives 1 to 2 GB


@dataclass(frozen=True)
class Outcome:
    """What nbval said about a notebook, how long it took and what it needed."""

    passed: bool
    text: str
    seconds: float
    cpu_seconds: float  # of all its processes; 0 where the system does not tell
    peak_bytes: int


def run_nbval(
    notebook: Path,
    form: Mapping[str, str] | None = None,
    *,
    python: str = sys.executable,
) -> Outcome:
    """Runs plain nbval on one notebook.

    Args:
        notebook: the file; its folder is the working folder of the kernel.
        form: what else stands in the environment; see FORMS.
        python: the interpreter of the environment to run it in.
    """
    command = [
        *(python, "-m", "pytest", "-c", str(HERE / "nbval.ini"), "-p", "no:cacheprovider"),
        *("--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"),
        *("--nbval-sanitize-with", str(HERE / "sanitize.cfg"), str(notebook)),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= form or {}
    start, cpu = time.perf_counter(), _children_seconds()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    with PeakMemory(process.pid, kernels_only=True) as memory:
        text, _ = process.communicate()
    seconds = time.perf_counter() - start
    return Outcome(
        process.returncode == 0, text, seconds, _children_seconds() - cpu, memory.peak_bytes
    )


def _children_seconds() -> float:
    """CPU time of all child processes that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system
