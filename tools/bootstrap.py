"""What `make setup` does: a virtual environment in .venv, pinned packages, kernel and model.

    python3 tools/bootstrap.py [--python PYTHON] [--no-model]

It needs the standard library only, and says what it does on stderr. A second run finds everything
in place and returns at once. After an interruption the environment is made anew, since a package
that was half unpacked is hard to tell from a whole one; pip's cache keeps that short.
"""

from __future__ import annotations  # so that an old Python gets as far as the message about its age

import argparse
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
MODEL = "smollm2"
OLDEST, NEWEST = (3, 11), (3, 14)  # the versions that constraints.txt has wheels for
UNFINISHED = "unfinished\n"


class SetupError(Exception):
    """Something the user can put right; shown as one line."""


def say(text: str) -> None:
    """Print a line of progress to stderr; stdout belongs to whoever called make."""
    print(f"minillm setup: {text}", file=sys.stderr, flush=True)


def run(*command: str | Path) -> None:
    """Run a command in the repository's folder, its output on stderr."""
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=env, stdout=sys.stderr)
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise SetupError(f"this command failed with exit code {done.returncode}: {shown}")


# Which Python ---------------------------------------------------------------------------------


def python_version(python: str) -> tuple[int, int] | None:
    """(major, minor) of an interpreter, or None where it does not run."""
    code = "import sys; print(sys.version_info[0], sys.version_info[1])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30)
        major, minor = done.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def choose_python(asked: str | None) -> str:
    """The interpreter to make .venv with: the one asked for, this one, or a newer one on PATH."""
    if asked:
        version = python_version(asked)
        if version is None:
            raise SetupError(f"PYTHON={asked} is not a Python that runs")
        if version < OLDEST:
            shown = _dotted(version)
            raise SetupError(f"PYTHON={asked} is Python {shown}; 3.11 or newer is needed")
        return asked
    here = sys.version_info[:2]
    if OLDEST <= here <= NEWEST:
        return sys.executable
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if python_version(name) == (3, minor):
            return name
    if here > NEWEST:  # there may be no wheels for it yet, but pip can try
        return sys.executable
    raise SetupError(
        f"Python 3.11 or newer is needed; {sys.executable} is {_dotted(here)}, and none of "
        "python3.14 to python3.11 is on the PATH. Install one, or name it: "
        "make setup PYTHON=/path/to/python3.12"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


# Which torch ----------------------------------------------------------------------------------


def nvidia_driver() -> bool:
    """Whether an NVIDIA driver is loaded."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    smi = shutil.which("nvidia-smi") or "/usr/lib/wsl/lib/nvidia-smi"  # the latter under WSL
    try:
        done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def answers(url: str, seconds: float = 5.0) -> bool:
    """Whether a web address answers with success within a time (a slow name server included)."""
    good: list[bool] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                good.append(reply.status == 200)
        except (OSError, ValueError, http.client.HTTPException):
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return any(good)


def torch_options() -> list[str]:
    """Extra options for pip, so that a machine without an NVIDIA driver gets a CPU build of torch.

    On Linux the build that pip takes by default brings several gigabytes of CUDA. Elsewhere it is
    a CPU (or Apple MPS) build in any case.
    """
    if sys.platform != "linux":
        return []
    if nvidia_driver():
        say("NVIDIA driver found: installing torch with CUDA")
        return []
    if answers(f"{CPU_INDEX}/torch/"):
        say(f"no NVIDIA driver: taking the CPU build of torch from {CPU_INDEX}")
        return ["--extra-index-url", CPU_INDEX]
    say(f"no NVIDIA driver, but {CPU_INDEX} does not answer: taking the torch that pip finds")
    return []


# The environment ------------------------------------------------------------------------------


def venv_python(venv: Path) -> Path:
    """The interpreter inside a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def fingerprint(root: Path) -> str:
    """What the environment depends on: if it changes, the packages are installed again."""
    parts = [str(root).encode()]  # the editable install and the kernel hold the folder's path
    parts += [(root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    kernels = sorted((root / "minillm/kernels/cpu").glob("*"))
    compiled = [path for path in kernels if path.suffix in (".cpp", ".h", ".inl")]
    parts += [path.read_bytes() for path in (root / "setup.py", *compiled) if path.is_file()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest() + "\n"


def make_environment(venv: Path, stamp: Path, python: str | None) -> None:
    """Create .venv and install the packages, unless the stamp says that both are done."""
    want = fingerprint(ROOT)
    have = stamp.read_text() if stamp.exists() else None
    usable = venv_python(venv).exists()
    if usable and have == want:
        return
    if not usable or have == UNFINISHED:
        base = choose_python(python)
        if venv.exists():
            say("removing an unfinished .venv")
            shutil.rmtree(venv)
        version = python_version(base)
        say(f"creating .venv with {base} (Python {_dotted(version or ())})")
        create_venv(venv, stamp, base)
    elif have:
        say("pyproject.toml, constraints.txt or the C++ sources have changed: updating .venv")
        stamp.write_text(UNFINISHED)
    else:
        say("installing into the .venv that is already here")
        version = python_version(str(venv_python(venv)))
        if version is None or version < OLDEST:
            raise SetupError(".venv holds no Python 3.11 or newer; `make clean` removes it")
    install(venv_python(venv))
    stamp.write_text(want)


def create_venv(venv: Path, stamp: Path, base: str) -> None:
    """Make a virtual environment with pip in it. The stamp comes first: it marks .venv as ours."""
    venv.mkdir()
    stamp.write_text(UNFINISHED)
    # Debian's python3 comes without ensurepip, but its pip can install one into the new venv.
    run(base, "-m", "venv", "--without-pip", venv)
    if subprocess.run([base, "-c", "import ensurepip"], capture_output=True).returncode == 0:
        run(venv_python(venv), "-m", "ensurepip", "--upgrade", "--default-pip")
    else:
        run(base, "-m", "pip", "--python", venv_python(venv), "install", "pip")


def install(python: Path) -> None:
    """Install the pinned packages, minillm itself (editable) and the Jupyter kernel."""
    say("installing the pinned packages (some minutes the first time)")
    pip = (python, "-m", "pip", "install", "-c", "constraints.txt")
    run(*pip, "pip", "setuptools")
    run(*pip, *torch_options(), "torch")
    run(*pip, "--no-build-isolation", "-e", ".[course,test]")
    kernel = ("--name", "minillm", "--display-name", "Python (minillm)")
    run(python, "-m", "ipykernel", "install", "--sys-prefix", *kernel)
    # Builds the font cache, whose notice would otherwise stand in the first notebook that draws.
    run(python, "-c", "import matplotlib.pyplot")


# The model ------------------------------------------------------------------------------------


# Quick where a whole copy is in the cache, so it needs no stamp.
PULL = f"""
import sys
from minillm.weights.pull import pull
try:
    pull({MODEL!r})
except (OSError, RuntimeError, ValueError) as error:
    sys.exit(f"minillm: error: {{error}}")
except KeyboardInterrupt:
    sys.exit(130)
"""


def fetch_model(python: Path) -> None:
    """Have the new environment pull the model into the user's cache."""
    done = subprocess.run([str(python), "-c", PULL], cwd=ROOT, stdout=sys.stderr)
    if done.returncode:
        raise SetupError(f"the model {MODEL} could not be fetched; run it again to go on")


def main(argv: list[str] | None = None) -> int:
    """Set up what is missing; 0 when everything is in place."""
    parser = argparse.ArgumentParser(description="Create .venv, install minillm, fetch the model.")
    parser.add_argument("--python", help="the Python (3.11 or newer) to create .venv with")
    parser.add_argument("--no-model", action="store_true", help="do not fetch the model")
    options = parser.parse_args(argv)
    venv = ROOT / ".venv"
    try:
        make_environment(venv, venv / "minillm-setup.txt", options.python)
        if not options.no_model:
            fetch_model(venv_python(venv))
    except SetupError as error:
        print(f"minillm setup: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nminillm setup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
