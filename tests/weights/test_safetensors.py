"""One safetensors file: what is read, and what is refused."""

import json
import os
import random
import struct
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save_file

from minillm.weights.safetensors import open_weights
from tests.weights.helpers import entry, safetensors_bytes

ONE = entry("F32", [2], 0, 8)
VALUES = struct.pack("<2f", 1.5, -2.0)


def put(folder: Path, content: bytes, name: str = "model.safetensors") -> Path:
    (folder / name).write_bytes(content)
    return folder


# What is right


def test_bytes_arrive_exactly(tmp_path):
    raw = np.random.default_rng(0).integers(0, 256, 64, dtype=np.uint8).tobytes()
    dtypes = {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "I64": torch.int64,
        "I32": torch.int32,
        "I8": torch.int8,
        "U8": torch.uint8,
    }
    header, data = {}, b""
    for name, dtype in dtypes.items():
        header[name] = entry(name, [2, 32 // dtype.itemsize], len(data), len(data) + 64)
        data += raw
    weights = open_weights(put(tmp_path, safetensors_bytes(header, data)))
    assert weights.keys() == dtypes.keys()
    for name, dtype in dtypes.items():
        assert weights[name].dtype == dtype
        assert weights[name].shape == (2, 32 // dtype.itemsize)
        assert weights[name].contiguous().view(torch.uint8).numpy().tobytes() == raw


def test_a_file_of_the_library_loads(tmp_path):
    tensors = {"a": torch.randn(3, 4), "b.c": torch.arange(5), "scalar": torch.tensor(2.5)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = open_weights(str(tmp_path))
    assert weights.keys() == tensors.keys()
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)


def test_l01_metadata_without_tensors_and_an_empty_shape(tmp_path):
    assert open_weights(put(tmp_path, safetensors_bytes({"__metadata__": {"format": "pt"}}))) == {}
    assert open_weights(put(tmp_path, safetensors_bytes({}))) == {}
    weights = open_weights(put(tmp_path, safetensors_bytes({"a": entry("F32", [0, 3], 0, 0)})))
    assert weights["a"].shape == (0, 3)


@pytest.mark.parametrize("spaces", range(8))
def test_any_alignment_of_the_data(tmp_path, spaces):
    text = json.dumps({"a": ONE}).encode() + b" " * spaces
    tensor = open_weights(put(tmp_path, safetensors_bytes(text, VALUES)))["a"]
    assert tensor.tolist() == [1.5, -2.0]
    assert tensor.data_ptr() % 4 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's table of mappings")
def test_nothing_is_copied(tmp_path):
    size = 256 * 2**20
    path = tmp_path / "model.safetensors"
    text = json.dumps({"big": entry("F32", [size // 4], 0, size)}).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(safetensors_bytes(text))
    os.truncate(path, 8 + len(text) + size)  # a hole: takes no disk space
    before = psutil.Process().memory_info().rss
    tensor = open_weights(tmp_path)["big"]
    assert psutil.Process().memory_info().rss - before < 16 * 2**20
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if line.endswith(str(path))]
    inside = [int(a, 16) <= tensor.data_ptr() < int(b, 16) for a, b in spans]
    assert any(inside)
    # Only the pages that are used are read.
    assert tensor[: 2**20].sum() == 0
    assert psutil.Process().memory_info().rss - before < 48 * 2**20


def test_a_write_to_a_tensor_leaves_the_file_alone(tmp_path):
    put(tmp_path, safetensors_bytes({"a": ONE}, VALUES))
    before = (tmp_path / "model.safetensors").read_bytes()
    tensor = open_weights(tmp_path)["a"]
    tensor += 1
    assert tensor.tolist() == [2.5, -1.0]
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert open_weights(tmp_path)["a"].tolist() == [1.5, -2.0]


# Broken files

GOOD = safetensors_bytes({"a": ONE}, VALUES)
TWO = {"a": ONE, "b": entry("F32", [2], 8, 16)}
DUPLICATE = json.dumps({"a": ONE}).encode()[:-1] + b"," + json.dumps({"a": ONE}).encode()[1:]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 538090408\n"
BROKEN = {
    "last_byte_removed": GOOD[:-1],
    "spare_byte": GOOD + b"\0",
    "git_lfs_pointer": LFS,
    "empty": b"",
    "seven_bytes": GOOD[:7],
    "length_only": GOOD[:8],
    "length_zero": bytes(8),
    "header_cut": GOOD[:20],
    "begin_after_end": safetensors_bytes({"a": entry("F32", [2], 8, 0)}, VALUES),
    "negative_begin": safetensors_bytes({"a": entry("F32", [2], -8, 0)}, VALUES),
    "overlap": safetensors_bytes({"a": ONE, "b": entry("F32", [2], 4, 12)}, bytes(12)),
    "same_range": safetensors_bytes({"a": ONE, "b": ONE}, VALUES),
    "hole": safetensors_bytes({"a": ONE, "b": entry("F32", [2], 12, 20)}, bytes(20)),
    "beyond_the_end": safetensors_bytes(TWO, bytes(12)),
    "shape_too_large": safetensors_bytes({"a": entry("F32", [3], 0, 8)}, VALUES),
    "shape_too_small": safetensors_bytes({"a": entry("F32", [1], 0, 8)}, VALUES),
    "shape_overflows": safetensors_bytes({"a": entry("F32", [2**62, 2**62], 0, 8)}, VALUES),
    "shape_beyond_64_bits": safetensors_bytes({"a": entry("F32", [0, 2**64 - 1], 0, 0)}),
    "shape_negative": safetensors_bytes({"a": entry("F32", [-2], 0, 8)}, VALUES),
    "shape_float": safetensors_bytes({"a": {**ONE, "shape": [2.0]}}, VALUES),
    "wrong_dtype": safetensors_bytes({"a": entry("F64", [2], 0, 8)}, VALUES),
    "unknown_dtype": safetensors_bytes({"a": entry("F31", [2], 0, 8)}, VALUES),
    "sub_byte_dtype": safetensors_bytes({"a": entry("F6_E2M3", [3], 0, 2)}, bytes(2)),
    "no_dtype": safetensors_bytes({"a": {"shape": [2], "data_offsets": [0, 8]}}, VALUES),
    "entry_is_null": safetensors_bytes({"a": None}),
    "header_is_a_list": safetensors_bytes([1]),
    "metadata_not_text": safetensors_bytes({"__metadata__": {"a": 1}}),
    "name_twice": safetensors_bytes(DUPLICATE, VALUES),
    "not_json": safetensors_bytes(b"{nonsense", VALUES),
    "not_utf8": safetensors_bytes(b'{"\xff\xfe": 1}', VALUES),
    "deep_nesting": safetensors_bytes(b"[" * 200_000),
    "deep_nesting_of_objects": safetensors_bytes(b'{"a":' * 200_000 + b"1" + b"}" * 200_000),
    "long_number": safetensors_bytes(b'{"a":' + b"9" * 10_000 + b"}"),
    "length_huge": safetensors_bytes({"a": ONE}, VALUES, length=2**63 + 1),
    "length_100_MB": safetensors_bytes({"a": ONE}, VALUES, length=100_000_000),
    "length_all_ones": safetensors_bytes({"a": ONE}, VALUES, length=2**64 - 1),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_l01_a_broken_file_is_one_clear_error(tmp_path, content):
    put(tmp_path, content)
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(ValueError, match=r"model\.safetensors: ") as caught:
            open_weights(tmp_path)
        assert time.perf_counter() - begin < 1
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 1_000


def test_l01_a_git_lfs_pointer_is_called_one(tmp_path):
    with pytest.raises(ValueError, match=r"Git LFS pointer.*git lfs pull"):
        open_weights(put(tmp_path, LFS))


def test_a_large_hostile_header_is_refused_quickly(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 90_000_000) + b"{")
    os.truncate(path, 100_000_000)
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=r"a header of 90,000,000 bytes"):
        open_weights(tmp_path)
    # Under the limit, but with as many duplicates as fit.
    pairs = b",".join(b'"%d":0,"%d":0' % (n, n) for n in range(100_000))
    put(tmp_path, safetensors_bytes(b"{" + pairs + b"}"))
    with pytest.raises(ValueError, match=r"named twice: .* and 99995 more"):
        open_weights(tmp_path)
    assert time.perf_counter() - begin < 1.5


def test_the_duplicate_and_the_dtype_are_named(tmp_path):
    with pytest.raises(ValueError, match="named twice: 'a'"):
        open_weights(put(tmp_path, BROKEN["name_twice"]))
    with pytest.raises(ValueError, match="F31"):
        open_weights(put(tmp_path, BROKEN["unknown_dtype"]))


def test_mutated_headers_load_or_are_one_error(tmp_path):
    seed = int(os.environ.get("MINILLM_FUZZ_SEED", random.randrange(2**32)))
    print(f"MINILLM_FUZZ_SEED={seed}")
    rng = random.Random(seed)
    tensors = {f"layer.{n}.weight": torch.randn(n + 1, 4) for n in range(4)}
    save_file(tensors, tmp_path / "model.safetensors")
    good = (tmp_path / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(good[:8], "little")
    outcomes = {"loads": 0, "refused": 0}
    for number in range(200):
        content = bytearray(good)
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            at = rng.randrange(end)
            kind = rng.randrange(4)
            if kind == 0:
                content[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                content[at] = rng.choice(b'0123456789"[]{},:-')
            elif kind == 2:
                del content[at : at + rng.randrange(1, 9)]
            else:
                content = content[: rng.randrange(len(content))] or bytearray(b"\0")
                break
        put(tmp_path, bytes(content))
        begin = time.perf_counter()
        problem = ""
        try:
            weights = open_weights(tmp_path)
            # A changed name, or a dtype and shape that need as many bytes, cannot be noticed here.
            assert sum(t.nbytes for t in weights.values()) == len(good) - end, (seed, number)
        except ValueError as error:
            problem = str(error)
        assert not problem or "model.safetensors: " in problem, (seed, number, problem)
        outcomes["refused" if problem else "loads"] += 1
        assert time.perf_counter() - begin < 1, (seed, number)
    print(outcomes)
    assert outcomes["refused"] > 50, (seed, outcomes)


def test_the_real_model(smollm2):
    weights = open_weights(smollm2)
    assert len(weights) == 272
    assert weights["model.embed_tokens.weight"].shape == (49_152, 576)
    assert sum(tensor.numel() for tensor in weights.values()) == 134_515_008
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert all(tensor.data_ptr() % 4 == 0 for tensor in weights.values())
