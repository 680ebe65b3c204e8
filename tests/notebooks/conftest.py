"""Runs one notebook under nbval in a process of its own, and measures it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from minillm.course.tool.run import PeakMemory

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """What nbval said about a notebook, how long it took and what it needed."""

    passed: bool
    text: str
    seconds: float
    peak_bytes: int


def run_nbval(notebook: Path) -> Outcome:
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(HERE / "nbval.ini"), "-p", "no:cacheprovider"),
        *("--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"),
        *("--nbval-sanitize-with", str(HERE / "sanitize.cfg"), str(notebook)),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    with PeakMemory(process.pid, kernels_only=True) as memory:
        text, _ = process.communicate()
    seconds = time.perf_counter() - start
    return Outcome(process.returncode == 0, text, seconds, memory.peak_bytes)


@pytest.fixture(scope="session")
def nbval() -> Callable[[Path], Outcome]:
    # On a new machine matplotlib writes to stderr once, that it builds its font cache; a notebook
    # must not be the one to see it.
    subprocess.run([sys.executable, "-c", "import matplotlib.pyplot"], check=True)
    return run_nbval
