"""The C++ library: how it is found and chosen, and what must not be in it."""

import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from minillm.kernels import cpu

needs_library = pytest.mark.skipif(cpu.why_not() is not None, reason=f"no: {cpu.why_not()}")


def run(code, **env):
    """What Python prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=True,
    )
    return done.stdout.strip()


@needs_library
def test_the_environment_chooses():
    """By default the best, then each by name, then none."""
    code = (
        "import os\nfrom minillm.kernels import cpu\n"
        "for name in ('', *cpu.variants(), 'off'):\n"
        "    os.environ['MINILLM_CPU'] = name\n"
        "    print(cpu.variant(), '|', cpu.why_not())"
    )
    names = cpu.variants()
    assert names[-1] == "portable"
    expected = [f"{name} | None" for name in (names[0], *names)]
    assert run(code, MINILLM_CPU="").splitlines() == [
        *expected,
        "None | MINILLM_CPU=off switches them off",
    ]


def test_an_unknown_choice_is_an_error(monkeypatch):
    monkeypatch.setenv("MINILLM_CPU", "sse9")
    with pytest.raises(ValueError, match="is 'sse9'; known are portable, avx2, avx512, neon and"):
        cpu.why_not()
    monkeypatch.delenv("MINILLM_CPU")
    with pytest.raises(ValueError, match="variant 'sse9' does not run here"):
        cpu.use("sse9")


@needs_library
def test_a_variant_of_another_machine_is_an_error(monkeypatch):
    foreign = [name for name in cpu.VARIANTS if name not in cpu.variants()]
    monkeypatch.setenv("MINILLM_CPU", foreign[0])
    with pytest.raises(ValueError, match=f"'{foreign[0]}', which does not run on this machine"):
        cpu.why_not()
    monkeypatch.delenv("MINILLM_CPU")
    with pytest.raises(ValueError, match=f"{foreign[0]}.*these do: .*portable"):
        cpu.use(foreign[0])


def test_reasons(monkeypatch, tmp_path):
    monkeypatch.setenv("MINILLM_CPU", "off")
    assert cpu.variant() is None
    assert cpu.variants() == []
    with pytest.raises(RuntimeError, match="not available: MINILLM_CPU=off"):
        cpu.load_library()
    broken = tmp_path / f"_library{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"no library")
    assert str(cpu.open_library(broken)).startswith(f"{broken.name} cannot be loaded: ")
    code = (
        "import pathlib; from minillm.kernels import cpu\n"
        f"cpu.FOLDER = pathlib.Path({str(tmp_path)!r}); print(cpu.why_not())"
    )
    assert run(code, MINILLM_CPU="").startswith(f"{broken.name} cannot be loaded")
    broken.unlink()
    assert run(code, MINILLM_CPU="") == "minillm was installed without a C++ compiler"


@needs_library
def test_a_library_of_other_sources_is_refused(monkeypatch, tmp_path):
    if not cpu.load_library().mm_sources():
        pytest.skip("this library was not built by setup.py")
    (path,) = [path for path in cpu.FOLDER.glob("_library*") if path.suffix in (".so", ".pyd")]
    (tmp_path / "products.h").write_text("// something else\n")
    monkeypatch.setattr(cpu, "FOLDER", tmp_path)
    assert "was built from other sources" in str(cpu.open_library(path))


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_openmp_runtime():
    """PyTorch's own. A second one would start threads of its own and compete for the cores."""
    code = (
        "import torch; from minillm.kernels.cpu.products import pack_groups, linear, Groups\n"
        "u = torch.zeros(64, 64, dtype=torch.uint8); z = torch.zeros(64, 1, dtype=torch.uint8)\n"
        "linear(pack_groups(8, [Groups(u, torch.ones(64, 1), z)]), torch.ones(1, 64))\n"
        "torch.ones(300, 300) @ torch.ones(300, 300)\n"
        "lines = open('/proc/self/maps').read().splitlines()\n"
        "print('\\n'.join(sorted({line.split()[-1] for line in lines if 'omp' in line})))"
    )
    runtimes = [x for x in run(code).splitlines() if re.search(r"lib(g|i|)omp\d*[-.]", x)]
    assert len(runtimes) == 1, runtimes


FORKED = """
import os, signal, torch
from minillm.kernels.cpu.products import pack_blocks, linear
torch.set_num_threads(2)
blocks, x = torch.ones(64, 34, dtype=torch.uint8), torch.ones(3, 32)
expected = linear(pack_blocks("Q8_0", [blocks]), x)
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if torch.equal(linear(pack_blocks("Q8_0", [blocks]), x), expected) else 3)
print(os.waitpid(child, 0)[1])
"""


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_packs_and_multiplies():
    """On one thread: OpenMP would wait there for threads that are not in it."""
    assert run(FORKED, OMP_NUM_THREADS="2") == "0"


@needs_library
@pytest.mark.skipif(not shutil.which("objdump"), reason="needs objdump")
@pytest.mark.skipif("avx2" not in cpu.variants(), reason="a check of x86 code")
def test_wide_instructions_are_in_variants_only():
    """Anything else, an inline function of the standard library say, runs on every machine."""
    (path,) = cpu.FOLDER.glob("_library*.so")
    listing = subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", path], capture_output=True, text=True
    ).stdout
    found: dict[str, str] = {}
    name = ""
    for line in listing.splitlines():
        if header := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            name = header[1]
        elif re.search(r"%[yz]mm|\t\s*v[a-z]", line):
            found.setdefault(name, line)
    variants = {name for name in found if re.search(r"minillm::avx(2|512)::", name)}
    assert len(variants) > 10
    assert not {name: line for name, line in found.items() if name not in variants}


def test_importing_the_package_opens_nothing():
    assert run("import sys, minillm; print('minillm.kernels.cpu' in sys.modules)") == "False"
