"""The fixture that runs a notebook; tests/notebooks/runner.py does the work."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.notebooks.runner import Outcome, run_nbval


@pytest.fixture(scope="session")
def nbval() -> Callable[..., Outcome]:
    # On a new machine matplotlib writes to stderr once, that it builds its font cache; a notebook
    # must not be the one to see it.
    subprocess.run([sys.executable, "-c", "import matplotlib.pyplot"], check=True)
    return run_nbval
