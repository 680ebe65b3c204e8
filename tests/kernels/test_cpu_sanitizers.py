"""The C++ kernels under AddressSanitizer and UBSan: products by themselves, and whole steps.

The library is built anew for that. Products are run by a program (cpu_driver.cpp), steps by tests
of the engine in another process, which opens that library instead of its own.
"""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from minillm.kernels import cpu

HERE = Path(__file__).parent
ENGINE = HERE.parent / "engines"
FLAGS = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# In that library, all variants of this machine: odd shapes, every kind of weights, the norms,
# rotations and windows, and prompts longer than a chunk.
STEPS = [
    ENGINE / "test_cpu_shapes.py",
    ENGINE / "test_cpu_weights.py",
    f"{ENGINE / 'test_cpu_features.py'}::test_every_feature",
    f"{ENGINE / 'test_cpu_features.py'}::test_long_prompts",
]
CODE = """
import pathlib, sys
import pytest
from minillm.kernels import cpu
cpu.FOLDER = pathlib.Path(sys.argv[1])
assert not cpu.why_not(), cpu.why_not()
sys.exit(pytest.main(sys.argv[2:]))
"""
OPTIONS = {
    # Python and PyTorch do not give all memory back. New memory is full of bits that are no number
    # in any floating-point type, so that what is read before it is written shows in the results.
    "ASAN_OPTIONS": "detect_leaks=0:max_malloc_fill_size=1000000000:malloc_fill_byte=255",
    "OMP_NUM_THREADS": "1",  # unless a test asks for more
    "MINILLM_CPU": "",
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or not which("g++"), reason="needs g++"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library with both sanitizers in it."""
    folder = tmp_path_factory.mktemp("sanitized")
    probe = folder / "probe.cpp"
    probe.write_text("int main() { return 0; }\n")
    if subprocess.run(["g++", *FLAGS, probe, "-o", folder / "probe"]).returncode:
        pytest.skip("this compiler has no sanitizers")
    path = folder / "_library.so"
    sources = sorted(cpu.FOLDER.glob("*.cpp"))
    build = ["g++", *FLAGS, "-shared", "-fPIC", "-fopenmp", *sources, "-o", path]
    subprocess.run(build, check=True)
    return path


def run(command, **env):
    """What a process prints; it must succeed."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        cwd=HERE.parents[1],
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-20_000:]
    return done.stdout


def test_products(library):
    driver = library.parent / "driver"
    source = HERE / "cpu_driver.cpp"
    build = ["g++", *FLAGS, f"-I{cpu.FOLDER}", source, library, "-o", driver]
    subprocess.run([*build, f"-Wl,-rpath,{library.parent}"], check=True)
    assert "portable: as it should be" in run([driver])


def test_steps(library):
    """The sanitizer's own library has to be the first in the process."""
    name = ["g++", "-print-file-name=libasan.so"]
    preload = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(preload).is_absolute():
        pytest.skip("this compiler has no libasan.so")
    tests = ["-q", "-x", "-s", "-p", "no:cacheprovider", *STEPS]
    command = [sys.executable, "-c", CODE, library.parent, *tests]
    printed = run(command, LD_PRELOAD=preload, **OPTIONS)
    assert " passed" in printed
    assert "skipped" not in printed
