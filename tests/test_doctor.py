"""`minillm doctor`: with made-up facts for each verdict, and on this machine for real."""

import json
import subprocess
import sys

import pytest
import torch

from minillm.cli import main
from minillm.doctor import Checkup, checkup
from minillm.doctor.checkup import backends, memory_limit, models, warnings
from minillm.doctor.processor import cores, cpu_quota, instructions, processor, usable_cores
from minillm.doctor.software import Kernels, compiler, kernels, openmp_runtimes

INTEL = """processor\t: 0
model name\t: A Processor
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 fma avx512f avx512_vnni

processor\t: 1
physical id\t: 0
core id\t\t: 0

processor\t: 2
physical id\t: 0
core id\t\t: 1
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp bf16\n"
MAPS = """7f0-7f1 r-xp 00000000 08:01 11 /venv/torch/lib/libgomp.so.1
7f1-7f2 r--p 00000000 08:01 11 /venv/torch/lib/libgomp.so.1
7f2-7f3 r-xp 00000000 08:01 12 /venv/my libs/libomp.so.5
7f3-7f4 r-xp 00000000 08:01 13 /venv/lib/libcompiled.so
7f4-7f5 rw-p 00000000 00:00 0
"""
FAST = Kernels("avx2", ["avx2", "portable"], None)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cores_and_instructions():
    assert cores(INTEL).endswith("logical, 2 physical")  # two threads share core 0
    assert cores("").endswith("logical")
    assert instructions(INTEL) == ["AVX2", "FMA", "AVX-512", "AVX-512 VNNI"]
    assert instructions(ARM) == ["NEON", "NEON dot product", "NEON bf16"]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/cpu.max": "max 100000",
                "sys/fs/cgroup/pod/cpu.max": "150000 100000",
                "sys/fs/cgroup/pod/box/cpu.max": "400000 100000",
            },
            1.5,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_a_containers_share_of_time(tmp_path, files, quota):
    for name, text in files.items():
        write(tmp_path / name, text)
    assert cpu_quota(tmp_path) == quota
    said = usable_cores(tmp_path)
    assert ("container" in said) == (quota is not None)


def test_a_containers_memory(tmp_path):
    assert memory_limit(tmp_path) is None
    write(tmp_path / "sys/fs/cgroup/memory.max", "2147483648\n")
    assert memory_limit(tmp_path) == 2**31
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    assert memory_limit(tmp_path) is None
    write(tmp_path / "proc/self/cgroup", "0::/pod/box\n")
    write(tmp_path / "sys/fs/cgroup/pod/memory.max", "1073741824\n")
    write(tmp_path / "sys/fs/cgroup/pod/box/memory.max", "max\n")
    assert memory_limit(tmp_path) == 2**30


def test_each_openmp_runtime_is_named_once():
    assert openmp_runtimes(MAPS) == ["/venv/my libs/libomp.so.5", "/venv/torch/lib/libgomp.so.1"]
    assert openmp_runtimes("") == []


def test_two_runtimes_are_a_warning():
    assert warnings(["/a/libgomp.so.1"], None, 2, FAST) == []
    (said,) = warnings(["/a/libgomp.so.1", "/b/libomp.so"], None, 2, FAST)
    assert said.startswith("2 OpenMP runtimes are loaded")
    assert "/b/libomp.so" in said


def test_more_threads_than_the_container_allows_are_a_warning():
    assert warnings([], 2.0, 2, FAST) == []
    assert warnings([], 0.5, 1, FAST) == []  # fewer than one thread is not possible
    (said,) = warnings([], 1.5, 8, FAST)
    assert said.endswith("set OMP_NUM_THREADS=1")


def test_no_vector_instructions_are_a_warning():
    (said,) = warnings([], None, 2, Kernels("portable", ["portable"], None))
    assert "without vector instructions" in said


@pytest.mark.parametrize(
    ("device", "no_cuda", "no_kernels", "chosen", "others"),
    [
        ("cuda", None, None, "cuda", {"cpu"}),
        ("cuda", None, "no compiler", "cuda", {"cpu"}),
        ("cuda", "no Triton", None, "torch", {"cuda", "cpu"}),
        ("mps", "no CUDA", None, "torch", {"cuda", "cpu"}),
        ("cpu", "no GPU", None, "cpu", {"cuda"}),
        ("cpu", "no GPU", "no compiler", "torch", {"cuda", "cpu"}),
    ],
)
def test_the_verdict(device, no_cuda, no_kernels, chosen, others):
    found = Checkup({}, [], backends(device, no_cuda, FAST._replace(why_not=no_kernels)))
    assert found.chosen == chosen
    assert {name for name, reason in found.backends.items() if reason} == others
    if no_kernels:
        assert found.backends["cpu"] == no_kernels


def test_a_wrong_variant_matters_on_the_processor_alone():
    wrong = Kernels(None, [], "MINILLM_CPU is 'mmx'", misnamed=True)
    verdicts = {
        device: Checkup({}, [], backends(device, "none", wrong)) for device in ("cpu", "mps")
    }
    assert verdicts["cpu"].chosen is None
    assert verdicts["mps"].chosen == "torch"


def test_kernels_that_are_switched_off_say_so(monkeypatch):
    monkeypatch.setenv("MINILLM_CPU", "off")
    found = kernels()
    assert found.variant is None
    assert found.why_not is not None
    assert "MINILLM_CPU=off" in found.why_not
    assert checkup().backends["cpu"] == found.why_not


def test_an_unknown_variant_is_no_crash_and_what_auto_makes_of_it(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("MINILLM_CPU", "mmx")
    assert "MINILLM_CPU is 'mmx'" in str(kernels().why_not)
    assert main(["generate", "--raw", "One", "--max-new-tokens", "1"]) == 1
    assert "MINILLM_CPU is 'mmx'" in capsys.readouterr().err
    assert checkup().chosen is None
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "--backend auto runs: nothing, it ends in an error" in out
    assert "not cpu: MINILLM_CPU is 'mmx'; known are" in out


def test_no_compiler_is_no_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert compiler().startswith("none found")
    monkeypatch.setenv("CXX", sys.executable)
    assert compiler().startswith(f"{sys.executable}: Python 3")


def test_models_are_those_that_were_pulled(tmp_path, monkeypatch):
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    assert models() == []
    for name in ("smollm2", "owner--name", ".part"):
        (tmp_path / "models" / name).mkdir(parents=True)
    (tmp_path / "models" / ".smollm2.lock").touch()
    assert models() == ["owner--name", "smollm2"]


def test_this_machine(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["facts"]["torch"] == torch.__version__
    assert found["facts"]["processor"] == processor()["processor"]
    assert found["backends"]["torch"] is None
    assert (found["chosen"] == "cuda") == torch.cuda.is_available()
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"--backend auto runs: {found['chosen']}" in out
    for name, reason in found["backends"].items():
        assert reason is None or f"not {name}: {reason}" in out


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_openmp_runtime_is_in_a_fresh_process():
    done = subprocess.run(
        [sys.executable, "-m", "minillm", "doctor", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["facts"]["OpenMP runtimes"]) == 1
    assert not [text for text in found["warnings"] if "OpenMP" in text]
