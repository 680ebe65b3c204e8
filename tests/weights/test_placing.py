"""Tensors of a file placed in another dtype: values, memory, and which dtypes are weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minillm.weights.file_tensor import CHUNK
from minillm.weights.safetensors import open_tensors
from tests.weights.helpers import entry, safetensors_bytes

FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
OTHERS = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4, "U64": 8, "C64": 8}
TARGETS = (torch.float32, torch.bfloat16, torch.float16)


def put(folder: Path, dtype: str, shape: list[int], data: bytes, spaces: int = 0) -> Path:
    header = json.dumps({"a": entry(dtype, shape, 0, len(data))}).encode() + b" " * spaces
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, data))
    return folder


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FLOATS)
def test_every_floating_type_is_converted_by_value(tmp_path, name, target):
    values = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(0)) * 10
    stored = values.to(FLOATS[name])
    put(tmp_path, name, [3, 50_000], stored.view(torch.uint8).numpy().tobytes())
    assert stored.numel() > CHUNK
    assert stored.numel() % CHUNK != 0
    tensor = open_tensors(tmp_path)["a"]
    assert (tensor.dtype, tuple(tensor.shape)) == (FLOATS[name], (3, 50_000))
    assert tensor.is_floating_point()
    placed = tensor.to(device="cpu", dtype=target)
    assert placed.dtype == target
    assert torch.equal(placed, stored.to(target))


@pytest.mark.parametrize("shape", [[], [1], [0, 3], [3, 0, 2]])
def test_scalars_and_empty_tensors(tmp_path, shape):
    count = torch.empty(shape).numel()
    put(tmp_path, "F32", shape, torch.full((count,), 2.5).numpy().tobytes())
    placed = open_tensors(tmp_path)["a"].to(device="cpu", dtype=torch.bfloat16)
    assert placed.tolist() == torch.full(shape, 2.5).tolist()


@pytest.mark.parametrize("spaces", range(4))
def test_where_nothing_changes_the_tensor_is_the_file(tmp_path, spaces):
    put(tmp_path, "F32", [2], torch.tensor([1.5, -2.0]).numpy().tobytes(), spaces)
    tensor = open_tensors(tmp_path)["a"]
    same = tensor.to(device="cpu", dtype=torch.float32)
    assert same.tolist() == [1.5, -2.0]
    aligned = tensor.mapped.data_ptr() % 4 == 0
    assert (same.data_ptr() == tensor.mapped.data_ptr()) == aligned
    assert tensor.to(device="cpu", dtype=torch.bfloat16).tolist() == [1.5, -2.0]


def test_other_types_are_no_weights(tmp_path):
    for name, size in OTHERS.items():
        tensor = open_tensors(put(tmp_path, name, [2], bytes(2 * size)))["a"]
        assert not tensor.is_floating_point(), name
    # Scales, and two numbers in one byte.
    for name in ("F8_E8M0", "F4"):
        tensor = open_tensors(put(tmp_path, name, [2], bytes(2 if name == "F8_E8M0" else 1)))["a"]
        assert not tensor.is_floating_point(), name


def test_a_file_that_shrank_is_an_error(tmp_path):
    put(tmp_path, "F32", [4], bytes(16))
    tensor = open_tensors(tmp_path)["a"]
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors: changed while it was read"):
        tensor.to(device="cpu", dtype=torch.bfloat16)


MEASURE = """
import sys
import torch
from minillm.weights.safetensors import open_tensors
def peak():  # of this process's memory, in bytes
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
torch.ones(2**16).to(torch.bfloat16)
before = peak()
tensors = open_tensors(sys.argv[1])
placed = [tensor.to(device="cpu", dtype=torch.bfloat16) for tensor in tensors.values()]
print(peak() - before, sum(tensor.nbytes for tensor in placed))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process's memory")
def test_conversion_takes_little_more_memory_than_its_result(tmp_path, record_property):
    rows, width, count = 1_000, 2_000, 40  # 320 MB of float32
    size = rows * width * 4
    header = {f"{n}": entry("F32", [rows, width], n * size, (n + 1) * size) for n in range(count)}
    row = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).numpy().tobytes()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(safetensors_bytes(header))
        for _ in range(count):
            file.write(row)
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    grown, result = (int(number) for number in done.stdout.split())
    assert result == count * size // 2
    record_property(
        "figure",
        f"{count * size / 1e6:.0f} MB of float32 loaded as bfloat16: {result / 1e6:.0f} MB, "
        f"peak memory {grown / 1e6:.0f} MB above the start",
    )
    assert grown < 1.1 * result
