"""Binder's environment from Binder's own files, and the notebooks in it: `make test-binder`.

The steps are those of repo2docker: in a checkout, pip without a cache installs
binder/requirements.txt, then binder/postBuild runs with that environment first on the PATH. Two
things may differ from Binder: the Python is the one that runs the tests (binder/runtime.txt names
another), and where PyTorch's CPU index does not answer, the pin loses its `+cpu` and pip takes the
torch of its own index.

nbval is not part of that environment. It is installed at the end, under the same pins, and must
change nothing that was there.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from minillm.course.tool.project import Project
from tests.checkout import copy_files
from tests.notebooks.runner import PEAK_LIMIT, run_nbval
from tools import bootstrap

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [pytest.param(path.name, id=path.stem) for path in Project(ROOT).notebooks]
REQUIREMENTS = "binder/requirements.txt"

pytestmark = [
    pytest.mark.binder,
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="Binder is Linux"),
]


@dataclass(frozen=True)
class Image:
    """What repo2docker would have made: a checkout, an environment, a home for the model."""

    checkout: Path
    python: Path
    environment: dict[str, str]

    def run(self, *command: str | Path) -> str:
        """Runs a command in the checkout; returns what it printed to stdout."""
        done = subprocess.run(
            command, cwd=self.checkout, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def packages(self) -> set[str]:
        """Everything installed, with versions."""
        lines = self.run(self.python, "-m", "pip", "freeze", "--all").splitlines()
        return {line for line in lines if not line.startswith(("#", "-e"))}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The environment after the install step."""
    folder = tmp_path_factory.mktemp("binder")
    checkout, venv = folder / "checkout", folder / "venv"
    copy_files(checkout)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "MINILLM_"))}
    image = Image(
        checkout,
        venv / "bin" / "python",
        kept
        | {
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "MINILLM_HOME": str(folder / "home"),
            "MPLCONFIGDIR": str(folder / "matplotlib"),  # a new machine has no font cache
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        },
    )
    requirements = checkout / REQUIREMENTS
    if not bootstrap.answers(f"{bootstrap.CPU_INDEX}/torch/"):
        text = requirements.read_text()
        text = text.replace(f"--extra-index-url {bootstrap.CPU_INDEX}\n", "")
        requirements.write_text(text.replace("+cpu", ""))
    pip = (image.python, "-m", "pip", "install", "--no-cache-dir")
    image.run(*pip, "-r", REQUIREMENTS)
    return image


@pytest.fixture(scope="module")
def built(image: Image) -> Image:
    """The environment after postBuild."""
    image.run("binder/postBuild")
    return image


@pytest.fixture(scope="module")
def with_nbval(built: Image) -> Image:
    before = built.packages()
    built.run(built.python, "-m", "pip", "install", "-c", "constraints.txt", "pytest", "nbval")
    assert before <= built.packages()
    return built


def test_n03_the_pins_are_installed_and_no_cuda(image: Image, record_property: Callable) -> None:
    installed = image.packages()
    lines = (image.checkout / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    wanted = {canonicalize_name(pin.name): pin.specifier for pin in pins}
    for name, version in (package.split("==") for package in installed if "==" in package):
        if name not in ("pip", "setuptools"):  # these came with the environment
            assert wanted[canonicalize_name(name)].contains(version), f"{name} {version}"
    assert not [package for package in installed if package.startswith(("nvidia-", "cuda-"))]
    assert "None" in image.run(image.python, "-c", "import torch; print(torch.version.cuda)")
    size = sum(f.stat().st_size for f in image.python.parents[1].rglob("*") if f.is_file())
    shown = f"{len(installed)} packages, {size / 1e6:,.0f} MB, {sys.version.split()[0]}"
    record_property("figure", f"Binder's environment: {shown}")


def test_post_build_leaves_a_model_that_answers(built: Image) -> None:
    prompt = "What is gravity?"
    answer = built.run("minillm", "generate", "--max-new-tokens", "12", "--", prompt)
    assert answer.startswith("Gravity is a")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_reproduce_their_outputs(with_nbval: Image, name, record_property) -> None:
    form = {key: with_nbval.environment[key] for key in ("PATH", "MINILLM_HOME", "MPLCONFIGDIR")}
    path = with_nbval.checkout / "notebooks" / name
    outcome = run_nbval(path, form, python=str(with_nbval.python))
    for key in ("seconds", "cpu_seconds", "peak_bytes"):
        record_property(key, getattr(outcome, key))
    record_property("notebook", name)
    record_property("form", "Binder")
    record_property("slow", False)
    assert outcome.passed, outcome.text
    assert outcome.peak_bytes < PEAK_LIMIT
