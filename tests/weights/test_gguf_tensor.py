"""Values of GGUF tensors: every type that `gguf` dequantizes, rows, experts, memory."""

import subprocess
import sys

import gguf
import numpy as np
import pytest
import torch

from minillm.weights import gguf_tensor
from minillm.weights.gguf_file import read_gguf
from minillm.weights.gguf_tensor import COMMON, GGUFTensor, block_of, import_gguf

KINDS = gguf.GGMLQuantizationType


def dequantizable():
    """The types whose blocks `gguf.quants.dequantize` turns into numbers."""
    found = []
    for kind in KINDS:
        blocks = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
        try:
            gguf.quants.dequantize(blocks, kind)
        except NotImplementedError:
            continue
        found.append(kind)
    return found


REFUSED = sorted(set(KINDS) - set(dequantizable()) - {KINDS.F64})


def random_blocks(kind, rows, blocks):
    """Random bytes, every one of which is a valid block: no scale is infinite or not a number."""
    rng = np.random.default_rng(int(kind))
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = rng.integers(0, 256, (rows, blocks * size), dtype=np.uint8)
    while not np.isfinite(values := gguf.quants.dequantize(data, kind)).all():
        bad = ~np.isfinite(values.reshape(rows, blocks, -1)).all(axis=2)
        data.reshape(rows, blocks, size)[bad] = rng.integers(0, 256, (bad.sum(), size), np.uint8)
    return data


@pytest.fixture
def written(tmp_path):
    """A function that writes one tensor of stored bytes to a file and reads it back."""

    def write(data, kind):
        writer = gguf.GGUFWriter(tmp_path / "a.gguf", "some")
        writer.add_tensor("t", data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return read_gguf(tmp_path / "a.gguf").tensors["t"]

    return write


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("kind", dequantizable(), ids=lambda kind: kind.name)
def test_every_type_that_gguf_dequantizes(written, kind, monkeypatch):
    data = random_blocks(kind, rows=37, blocks=5)
    expected = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)))
    for chunk in (2**15, 700):  # all at once; several uneven chunks
        monkeypatch.setattr(gguf_tensor, "CHUNK_VALUES", chunk)
        tensor = written(data, kind)
        assert tensor.is_floating_point()
        assert tensor.shape == expected.shape
        assert torch.equal(tensor.to(dtype=torch.float32), expected)
        for dtype in (torch.bfloat16, torch.float16, torch.float64):
            assert torch.equal(tensor.to(device="cpu", dtype=dtype), expected.to(dtype))


def test_f64_is_read_too(written):
    values = np.random.default_rng(0).normal(size=(3, 5))
    tensor = written(values, KINDS.F64)
    assert torch.equal(tensor.to(dtype=torch.float64), torch.from_numpy(values))
    assert torch.equal(tensor.to(dtype=torch.float32), torch.from_numpy(values).float())


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.name)
def test_types_without_numbers_are_refused(written, kind):
    values, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.zeros((2, size), np.uint8)
    if values == 1:
        data = data.view(f"i{size}")
    with pytest.raises(ValueError, match=rf"t has the tensor type {kind.name}, which holds no"):
        written(data, kind)


def test_every_refused_type_is_known(written):
    assert {kind.name for kind in REFUSED} >= {"I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}
    with pytest.raises(ValueError, match="tensor type 255, which is unknown"):
        block_of(255)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_values_that_are_as_asked_are_not_copied(written, kind):
    kind = KINDS[kind]
    values = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    tensor = written(gguf.quants.quantize(values, kind), kind)
    view = tensor.to(dtype=gguf_tensor.PLAIN[kind.name])
    assert view.data_ptr() == tensor.data.ctypes.data
    view[0, 0] = 100  # changes this process's copy of the page, not the file
    assert tensor.to(dtype=torch.float32)[0, 0] == 100


def test_damaged_scales_give_values_that_are_no_numbers(written):
    data = np.full((1, 34), 255, np.uint8)  # Q8_0 whose scale is not a number
    assert written(data, KINDS.Q8_0).to(dtype=torch.float32).isnan().all()


# Rows and experts


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
def test_rows_in_another_order(written, kind, monkeypatch):
    monkeypatch.setattr(gguf_tensor, "CHUNK_VALUES", 100)
    kind = KINDS[kind]
    values = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    tensor = written(gguf.quants.quantize(values, kind), kind)
    order = np.array([3, 0, 7, 1, 2, 6, 5, 4])
    same = tensor.to(dtype=torch.float32)
    assert torch.equal(tensor.reordered(order).to(dtype=torch.float32), same[order])


def test_a_vector_in_another_order(written):
    tensor = written(np.arange(6, dtype=np.float32), KINDS.F32)
    order = np.array([4, 0, 5, 1, 3, 2])
    assert tensor.reordered(order).to(dtype=torch.float32).tolist() == order.tolist()
    assert tensor.reordered(order).shape == (6,)


@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_one_expert_of_many(written, kind):
    kind = KINDS[kind]
    values = np.random.default_rng(0).normal(size=(3, 5, 64)).astype(np.float32)
    tensor = written(gguf.quants.quantize(values, kind), kind)
    whole = tensor.to(dtype=torch.float32)
    for index in range(3):
        assert tensor.entry(index).shape == (5, 64)
        assert torch.equal(tensor.entry(index).to(dtype=torch.float32), whole[index])


def test_what_was_added_is_taken_off():
    data = np.array([[1.5, 2.0, 0.25]], np.float32).view(np.uint8)
    tensor = GGUFTensor("F32", (3,), data, added=1.0)
    assert tensor.to(dtype=torch.float32).tolist() == [0.5, 1.0, -0.75]
    assert data.view(np.float32).tolist() == [[1.5, 2.0, 0.25]]


# Memory

MEASURE = """
import sys
import torch
from pathlib import Path
from minillm.weights.gguf_file import read_gguf
def peak():  # of this process's memory, in bytes
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
tensor = read_gguf(Path(sys.argv[1])).tensors["t"]
tensor.entry(0).to(dtype=torch.bfloat16)
before = peak()
values = tensor.to(dtype=torch.bfloat16)
print(peak() - before, tensor.data.nbytes, values.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process's memory")
def test_memory_is_that_of_the_result_and_the_file(written, tmp_path, record_property):
    """The result, the file's pages (which the system may take back), and little more."""
    blocks = np.zeros((2**13, 2**12 // 32 * 34), np.uint8)
    written(blocks, KINDS.Q8_0)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "a.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, stored, size = (int(number) for number in done.stdout.split())
    assert (stored, size) == (blocks.nbytes, 2 * 2**25)
    record_property(
        "figure",
        f"{stored / 1e6:.0f} MB of Q8_0 as {size / 1e6:.0f} MB of bfloat16: peak memory "
        f"{grown / 1e6:.0f} MB above the start",
    )
    assert 0.9 * size < grown < stored + size + 16e6


def test_the_common_types_are_those_of_the_package():
    package = import_gguf()
    for number, (name, values, size) in COMMON.items():
        kind = package.GGMLQuantizationType(number)
        assert (kind.name, package.GGML_QUANT_SIZES[kind]) == (name, (values, size))
