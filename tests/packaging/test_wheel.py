"""The wheel: built, installed into an environment of its own, and used outside the repository.

Twice: as this machine builds it, and as one without a C++ compiler does.
"""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
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


COMPILED = (".so", ".pyd")
NO_COMPILER = {"CC": "false", "CXX": "false"}  # programs that do nothing, and fail


def copy_of_the_sources(folder: Path) -> Path:
    """What the package is built from, so that no build folder is left in the repository."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    unwanted = shutil.ignore_patterns("__py*", *(f"*{end}" for end in COMPILED))
    shutil.copytree(ROOT / "minillm", folder / "minillm", ignore=unwanted)
    for name in ("tests", "notebooks", "tools"):  # these must stay outside
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    return folder


def build_wheel(source: Path, **env: str) -> Path:
    build = ("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "dist", ".")
    run(sys.executable, *build, cwd=source, **env)
    (built,) = (source / "dist").glob("*.whl")
    return built


def has_compiler(folder: Path) -> bool:
    """Whether the C++ compiler that Python was built with, or the CXX asked for, is here."""
    if os.name == "nt":
        return shutil.which("cl") is not None
    command = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    (folder / "probe.cpp").write_text("int main() { return 0; }\n")
    probe = [*command.split(), "probe.cpp", "-o", "probe"]
    return bool(shutil.which(probe[0])) and subprocess.run(probe, cwd=folder).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(copy_of_the_sources(tmp_path_factory.mktemp("source")))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("environment"))


def install(wheel: Path, folder: Path) -> Path:
    """A virtual environment with the wheel, which borrows the dependencies installed here.

    A folder in a .pth file is searched for packages, but .pth files inside it are not read: the
    editable install of this repository is invisible there.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", where, cwd=folder).strip())
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    command = ("install", "--no-deps", "--ignore-installed", wheel)
    run(sys.executable, "-m", "pip", "--python", python, *command, cwd=folder)
    return python


def test_contents(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        described = email.message_from_bytes(archive.read(info))
    package = {name for name in names if ".dist-info/" not in name}
    compiled = {name for name in package if name.endswith(COMPILED)}
    package -= compiled
    assert len(compiled) == has_compiler(tmp_path)
    assert all(name.startswith("minillm/kernels/cpu/_library.") for name in compiled)
    assert "-none-any" not in wheel.name  # it is of one platform, compiled code or not
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "minillm").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", *COMPILED)
    }
    assert {"minillm/py.typed", "minillm/kernels/cpu/products.h"} <= package
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
    answer = run(program, "generate", "What is gravity?", cwd=tmp_path)
    assert answer.startswith("Gravity is a")


WHY_NOT = "from minillm.kernels import cpu; print(cpu.why_not())"


def test_the_kernels_are_compiled_where_a_compiler_is(environment: Path, tmp_path: Path) -> None:
    found = run(environment, "-c", WHY_NOT, cwd=tmp_path, MINILLM_CPU="").strip()
    compiled = has_compiler(tmp_path)
    assert found == ("None" if compiled else "minillm was installed without a C++ compiler")


@pytest.mark.skipif(os.name == "nt", reason="replaces the compiler by the program `false`")
def test_installs_without_a_compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = copy_of_the_sources(tmp_path_factory.mktemp("source"))
    python = install(build_wheel(source, **NO_COMPILER), tmp_path_factory.mktemp("environment"))
    found = run(python, "-c", WHY_NOT, cwd=source.parent, MINILLM_CPU="").strip()
    assert found == "minillm was installed without a C++ compiler"


def test_the_source_archive_can_be_built_from(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path)
    code = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    run(sys.executable, "-c", code, cwd=source)
    (archive,) = (source / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    kernels = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "minillm").rglob("*")
        if path.suffix in (".cpp", ".h", ".inl")
    }
    assert "minillm/kernels/cpu/products.h" in kernels
    assert {"setup.py", "pyproject.toml", *kernels} <= names
