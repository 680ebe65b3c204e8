"""The header of a GGUF file: everything that gguf writes is read, and nothing in it is believed."""

import struct
import time
import tracemalloc

import numpy as np
import pytest
import torch

from minillm.weights.gguf_file import read_gguf
from tests.weights.helpers import tiny_tensors, write_gguf

F32, I32 = 0, 26
HUGE = 2**60


def text(content):
    raw = content if isinstance(content, bytes) else content.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, kind, value):
    """A metadata entry; `value` as bytes."""
    return text(key) + struct.pack("<I", kind) + value


def array(kind, length, content=b""):
    return struct.pack("<IQ", kind, length) + content


def record(name, sizes, kind=F32, offset=0):
    """A tensor's record; `sizes` with the axis of neighbours first."""
    head = text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return head + struct.pack("<IQ", kind, offset)


def build(entries=(), records=(), data=b"", *, version=3, counts=None, align=32):
    tensors, metadata = counts or (len(records), len(entries))
    header = b"GGUF" + struct.pack("<IQQ", version, tensors, metadata)
    header += b"".join(entries) + b"".join(records)
    return header + bytes(-len(header) % align) + data


def read(folder, content):
    (folder / "a.gguf").write_bytes(content)
    return read_gguf(folder / "a.gguf")


# What is read


def test_every_type_of_value(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "some")
    kinds = gguf.GGUFValueType
    values = {
        "u8": (255, kinds.UINT8),
        "i8": (-128, kinds.INT8),
        "u16": (65535, kinds.UINT16),
        "i16": (-32768, kinds.INT16),
        "u32": (2**32 - 1, kinds.UINT32),
        "i32": (-(2**31), kinds.INT32),
        "f32": (0.1, kinds.FLOAT32),
        "u64": (2**64 - 1, kinds.UINT64),
        "i64": (-(2**63), kinds.INT64),
        "f64": (0.1, kinds.FLOAT64),
        "yes": (True, kinds.BOOL),
        "no": (False, kinds.BOOL),
        "text": ("naïve 🙂\n", kinds.STRING),
        "empty": ("", kinds.STRING),
    }
    for key, (value, kind) in values.items():
        writer.add_key_value(key, value, kind)
    arrays = {
        "words": ["a", "", "½🙂", "x" * 1000],
        "numbers": [1, -2, 3],
        "floats": [0.5, -1.25],
        "flags": [True, False],
    }
    for key, value in arrays.items():
        writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = read_gguf(tmp_path / "a.gguf").metadata
    expected = {key: value for key, (value, _) in values.items()} | arrays
    expected |= {"f32": float(np.float32(0.1)), "general.architecture": "some"}
    assert found == expected
    for key, value in expected.items():
        assert type(found[key]) is type(value)


def test_empty_arrays(tmp_path):
    entries = [entry("words", 9, array(8, 0)), entry("numbers", 9, array(6, 0))]
    assert read(tmp_path, build(entries)).metadata == {"words": [], "numbers": []}
    assert read(tmp_path, build(entries, align=1)).metadata == {"words": [], "numbers": []}


def test_tensors_and_metadata_equal_those_of_gguf_reader(tmp_path):
    import gguf

    types = {"blk.0.attn_q.weight": "Q4_0", "blk.1.ffn_up.weight": "F16"}
    write_gguf(tmp_path / "a.gguf", tiny_tensors(), types=types)
    ours, theirs = read_gguf(tmp_path / "a.gguf"), gguf.GGUFReader(tmp_path / "a.gguf")
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.kind == tensor.tensor_type.name
        assert found.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert found.data.tobytes() == tensor.data.tobytes()
    fields = {key: field.contents() for key, field in theirs.fields.items()}
    assert ours.metadata == {k: v for k, v in fields.items() if not k.startswith("GGUF.")}


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_and_another_alignment(tmp_path, version):
    data = np.arange(6, dtype="<f4").tobytes() + bytes(40)
    data += np.arange(4, dtype="<f4").tobytes()
    entries = [entry("general.alignment", 4, struct.pack("<I", 64))]
    records = [record("a", [2, 3]), record("b", [4], offset=64)]
    tensors = read(tmp_path, build(entries, records, data, version=version, align=64)).tensors
    assert tensors["a"].to(dtype=torch.float32).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert tensors["b"].to(dtype=torch.float32).tolist() == [0, 1, 2, 3]


def test_the_real_model_opens_in_a_moment(smollm2, record_property):
    path = next(smollm2.glob("*.gguf"))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        file = read_gguf(path)
        times.append(time.perf_counter() - start)
    record_property("figure", f"header of SmolLM2's GGUF file: {min(times) * 1000:.0f} ms")
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152


# What is refused

ONE = [record("a", [4])]
FAULTS = {
    "empty": (b"", "not a GGUF file (it begins with b'')"),
    "other": (b"PK\3\4" + bytes(100), r"not a GGUF file (it begins with b'PK\x03\x04')"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    "version_1": (build(version=1), "GGUF version 1; supported are 2 and 3"),
    "version_4": (build(version=4), "GGUF version 4"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian GGUF files"),
    "only_magic": (b"GGUF", "cut short or broken: the version at byte 4 needs 4 bytes"),
    "many_entries": (
        build(counts=(0, HUGE)),
        "1,152,921,504,606,846,976 metadata entries; at most 65,536",
    ),
    "many_tensors": (
        build(counts=(HUGE, 0)),
        "1,152,921,504,606,846,976 tensors; at most 65,536 are read",
    ),
    "some_entries": (build(counts=(0, 4)), "cut short or broken: 4 metadata entries, and room for"),
    "some_tensors": (build(counts=(4, 0)), "cut short or broken: 4 tensors, and room for 0"),
    "long_key": (
        build([struct.pack("<Q", HUGE) + bytes(32)]),
        "a metadata key at byte 32 needs 1,152",
    ),
    "key_twice": (build([entry("k", 0, b"\1")] * 2), "metadata key 'k' stands there twice"),
    "no_key": (build([entry("", 0, b"\1") + bytes(8)]), "a metadata key is ''; 1 to 200 printable"),
    "odd_key": (build([entry("a\nb", 0, b"\1")]), r"a metadata key is 'a\nb'; 1 to 200"),
    "long_name": (build(records=[record("a" * 201, [4])]), "a tensor name is 'aaa"),
    "bad_key": (build([entry(b"\xff", 0, b"\1")]), "a metadata key at byte 32 is not UTF-8"),
    "value_type": (build([entry("k", 13, bytes(8))]), "k has the value type 13; 0 to 12"),
    "truth": (build([entry("k", 7, b"\2")]), "k is a truth value of 2; 0 and 1"),
    "long_text": (build([entry("k", 8, struct.pack("<Q", 2**64 - 1))]), "k at byte 45 needs"),
    "bad_text": (build([entry("k", 8, text(b"ab\xc3"))]), "k at byte 45 is not UTF-8"),
    "bad_token": (
        build([entry("k", 9, array(8, 2, text("a") + text(b"\xe2\x96")))]),
        "a string of k at byte 66 is not UTF-8",
    ),
    "nested": (build([entry("k", 9, array(9, 1, array(0, 0)))]), "k is an array of arrays"),
    "long_array": (
        build([entry("k", 9, array(4, HUGE))]),
        "elements in k; at most 1,048,576 are read",
    ),
    "cut_array": (build([entry("k", 9, array(12, 40, bytes(50)))]), "k at byte 49 needs 320 bytes"),
    "many_texts": (
        build([entry("k", 9, array(8, 2**20))]),
        "1,048,576 elements in k, and room for 1",
    ),
    "cut_texts": (
        build([entry("k", 9, array(8, 2, text("a") + struct.pack("<Q", HUGE)))]),
        "a string of k at byte 66 needs",
    ),
    "array_type": (build([entry("k", 9, array(14, 1, b"\1"))]), "k has the value type 14"),
    "alignment_0": (build([entry("general.alignment", 4, bytes(4))]), "general.alignment is 0"),
    "alignment_48": (build([entry("general.alignment", 4, struct.pack("<I", 48))]), "is 48; a pow"),
    "alignment_text": (build([entry("general.alignment", 8, text("32"))]), "alignment is '32'"),
    "split": (build([entry("split.count", 2, b"\3\0")]), "one of 3 files that make the model"),
    "tensor_twice": (build(records=ONE * 2), "tensor 'a' stands there twice"),
    "no_dimension": (build(records=[record("a", [])]), "a has 0 dimensions; 1 to 4"),
    "five_dimensions": (build(records=[record("a", [1] * 5)]), "a has 5 dimensions"),
    "many_dimensions": (
        build([], [text("a") + struct.pack("<I", 2**32 - 1) + bytes(40)]),
        "a has 4,294,967,295 dimensions",
    ),
    "zero_size": (build(records=[record("a", [4, 0])]), "a is [0, 4]; F32 needs"),
    "huge_size": (build(records=[record("a", [HUGE, HUGE, HUGE])]), "cut short or broken: a ["),
    "block_size": (build(records=[record("a", [33], kind=2)]), "Q4_0 needs rows of a multiple of"),
    "tensor_type": (build(records=[record("a", [4], kind=99)]), "a has the tensor type 99, which"),
    "removed_type": (build(records=[record("a", [4], kind=4)]), "a has the tensor type 4, which"),
    "integers": (build(records=[record("a", [4], I32)]), "a has the tensor type I32, which holds"),
    "no_numbers": (build(records=[record("a", [256], 15)]), "tensor type Q8_K, which holds no"),
    "no_data": (build(records=ONE), "a [4] needs 16 bytes at 64, the file has 64 in all"),
    "cut_data": (build(records=ONE, data=bytes(15)), "cut short or broken: a [4] needs 16 bytes"),
    "offset": (
        build(records=[record("a", [4], offset=32)], data=bytes(64)),
        "a begins at offset 32; 0 is next",
    ),
    "overlap": (
        build(records=[*ONE, record("b", [4], offset=0)], data=bytes(64)),
        "b begins at offset 0; 32 is next",
    ),
    "between": (
        build(records=[*ONE, record("b", [4], offset=16)], data=bytes(64)),
        "b begins at offset 16; 32 is next",
    ),
    "spare": (build(records=ONE, data=bytes(33)), "broken: 1 bytes more than its tensors take"),
}


@pytest.mark.parametrize(("content", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_l01_a_broken_file_is_refused_at_once(tmp_path, content, message):
    (tmp_path / "a.gguf").write_bytes(content)
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"a\.gguf: ") as caught:
        read_gguf(tmp_path / "a.gguf")
    seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert peak < 50e6
    assert seconds < 2


def test_l01_padding_after_the_last_tensor_may_be_missing(tmp_path):
    for spare in (0, 1, 16):
        tensors = read(tmp_path, build(records=ONE, data=bytes(16 + spare))).tensors
        assert tensors["a"].to(dtype=torch.float32).tolist() == [0, 0, 0, 0]


def test_l01_every_cut_of_a_file_is_refused(tmp_path):
    whole = build(
        [
            entry("key", 4, struct.pack("<I", 7)),
            entry("words", 9, array(8, 2, text("one") + text("½"))),
            entry("numbers", 9, array(6, 2, bytes(8))),
        ],
        [record("a", [4, 2]), record("b", [8], offset=32)],
        bytes(64),
    )
    assert list(read(tmp_path, whole).tensors) == ["a", "b"]
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"a\.gguf: "):
            read(tmp_path, whole[:length])


def test_a_header_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("minillm.weights.gguf_header.MAX_HEADER_BYTES", 200)
    words = array(8, 30, text("a") * 30)
    for content in (
        build([entry("k", 9, words)]),
        build([entry("k", 8, text("a" * 300))]),
        build([entry(f"k{index}", 0, b"\1") for index in range(30)]),
    ):
        with pytest.raises(ValueError, match=r"broken: .* ends at byte \d+; a header has at most"):
            read(tmp_path, content)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.gguf"):
        read_gguf(tmp_path / "none.gguf")
