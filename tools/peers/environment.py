"""The peers' own virtual environment, so that what they need stays out of the project's."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "peers-venv"
LLAMA_CPP = "llama-cpp-python==0.3.36"


def peers_python(asked: str | None) -> str:
    """The interpreter that has llama-cpp-python: the one asked for, or that of our environment.

    It is made at the first call. llama-cpp-python is compiled then, which takes minutes and needs
    a C++ compiler and CMake. Raises ValueError where that fails, or the one asked for lacks it.
    """
    if asked:
        if not has(asked, "llama_cpp"):
            raise ValueError(f"--python {asked}: no Python that has llama-cpp-python")
        return asked
    python = FOLDER / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not has(str(python), "llama_cpp"):
        print(
            f"making {FOLDER.relative_to(ROOT)} with {LLAMA_CPP}: it is compiled, which takes "
            "minutes and needs a C++ compiler",
            file=sys.stderr,
        )
        _run(sys.executable, "-m", "venv", str(FOLDER))
        _run(str(python), "-m", "pip", "install", "--quiet", LLAMA_CPP)
    return str(python)


def transformers_python(peers: str) -> str | None:
    """The interpreter that has transformers: the peers', or this one, which pins it; or None."""
    return next((p for p in (peers, sys.executable) if has(p, "transformers", "torch")), None)


def has(python: str, *modules: str) -> bool:
    """Whether an interpreter runs and finds these modules."""
    code = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    try:
        done = subprocess.run([python, "-c", code, *modules], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode:
        shown = " ".join(command)
        raise ValueError(f"this command failed with exit code {done.returncode}: {shown}")
