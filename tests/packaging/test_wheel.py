"""The wheel: built, installed into an environment of its own, and used outside the repository."""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1", **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder is left in the repository."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "minillm", source / "minillm", ignore=shutil.ignore_patterns("__py*"))
    for name in ("tests", "notebooks", "tools"):  # these must stay outside
        (source / name).mkdir()
        (source / name / "__init__.py").touch()
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", ".")
    run(sys.executable, *build, cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, which borrows the dependencies installed here.

    A folder in a .pth file is searched for packages, but .pth files inside it are not read: the
    editable install of this repository is invisible there.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", where, cwd=folder).strip())
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    install = ("install", "--no-deps", "--ignore-installed", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *install, cwd=folder)
    return python


def test_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        described = email.message_from_bytes(archive.read(info))
    package = {name for name in names if ".dist-info/" not in name}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "minillm").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so", ".pyd")
    }
    assert "minillm/py.typed" in package
    assert package == wanted
    assert described["Name"] == "minillm-course"
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Requires-Python"] == ">=3.11"
    assert set(described.get_all("Provides-Extra", [])) == {"browser", "course", "gpu", "test"}


def test_imports_outside_the_repository(environment: Path, tmp_path: Path) -> None:
    code = (
        "import minillm\n"
        "print(minillm.__file__, minillm.__version__)\n"
        "[getattr(minillm, name) for name in minillm.__all__]\n"
        "import minillm.course"
    )
    where, version = run(environment, "-c", code, cwd=tmp_path).split()
    assert not Path(where).is_relative_to(ROOT)
    assert Path(where).is_relative_to(environment.parent.parent)
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_command_line_works(environment: Path, tmp_path: Path) -> None:
    program = environment.parent / ("minillm.exe" if os.name == "nt" else "minillm")
    listed = run(program, "--help", cwd=tmp_path)
    for command in ("generate", "chat", "tokenize", "inspect", "pull", "bench"):
        assert command in listed


def test_streams_from_the_real_model(environment: Path, tmp_path: Path, smollm2: Path) -> None:
    program = environment.parent / ("minillm.exe" if os.name == "nt" else "minillm")
    answer = run(program, "generate", "What is the capital of France?", cwd=tmp_path)
    assert "Paris" in answer
