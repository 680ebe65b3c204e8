"""Which files of a folder are opened, and what is said where none can be."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from minillm.weights.safetensors import open_weights
from tests.weights.helpers import entry, safetensors_bytes

GOOD = safetensors_bytes({"a": entry("F32", [2], 0, 8)}, bytes(8))
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 538090408\n"


def put(folder: Path, content: bytes, name: str = "model.safetensors") -> Path:
    (folder / name).write_bytes(content)
    return folder


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {"a": torch.randn(2, 3), "b": torch.randn(4), "c": torch.randn(1)}
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    save_file({"a": tensors["a"], "b": tensors["b"]}, folder / names[0])
    save_file({"c": tensors["c"]}, folder / names[1])
    write_index(folder, {"a": names[0], "b": names[0], "c": names[1]})
    return tensors


def write_index(folder: Path, weight_map: object) -> None:
    content = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(content)


def test_l02_shards_load_and_a_stray_file_is_ignored(tmp_path):
    tensors = sharded(tmp_path)
    save_file({"a": torch.zeros(9), "stray": torch.zeros(1)}, tmp_path / "model.safetensors")
    put(tmp_path, b"junk", "other.safetensors")
    weights = open_weights(tmp_path)
    assert weights.keys() == tensors.keys()
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)


def test_l02_a_missing_shard_is_named_before_anything_is_opened(tmp_path, monkeypatch):
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    opened: list[Path] = []
    monkeypatch.setattr("minillm.weights.safetensors._open_file", opened.append)
    with pytest.raises(FileNotFoundError, match=r"not there: 'model-00002-of-00002\.safetensors'"):
        open_weights(tmp_path)
    assert not opened


def test_l02_missing_and_unexpected_tensors_of_a_shard_are_named(tmp_path):
    sharded(tmp_path)
    shard = "model-00001-of-00002.safetensors"
    write_index(tmp_path, {"a": shard, "b": shard, "z": shard})
    with pytest.raises(ValueError, match=rf"{shard}: lacks .*'z'"):
        open_weights(tmp_path)
    write_index(tmp_path, {"a": shard})
    with pytest.raises(ValueError, match=rf"{shard}: holds .*'b'"):
        open_weights(tmp_path)


def test_a_broken_shard_is_named(tmp_path):
    sharded(tmp_path)
    put(tmp_path, GOOD[:-1], "model-00002-of-00002.safetensors")
    with pytest.raises(ValueError, match=r"model-00002-of-00002\.safetensors: broken"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "x\0.safetensors",
        "model.bin",
        "",
        None,
        3,
        ["model.safetensors"],
    ],
)
def test_the_index_cannot_lead_out_of_the_folder(tmp_path, shard):
    model = tmp_path / "model"
    model.mkdir()
    put(tmp_path, GOOD, "secret.safetensors")
    write_index(model, {"a": shard})
    with pytest.raises(ValueError, match=r"index\.json: 'a' is said to be in .* is needed"):
        open_weights(model)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"weight_map": {}}',
        b'{"weight_map": []}',
        b"[" * 100_000,
        b'{"a":' * 1_000_000,
        b"\xff\xfe",
        LFS,
        b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
    ],
)
def test_a_broken_index_is_one_clear_error(tmp_path, content):
    put(tmp_path, GOOD)
    put(tmp_path, content, "model.safetensors.index.json")
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json: ") as caught:
        open_weights(tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_l02_folders_without_weights(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        open_weights(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="no weights"):
        open_weights(tmp_path)
    put(tmp_path, b"{}", "pytorch_model.bin.index.json")
    with pytest.raises(FileNotFoundError, match="no weights"):
        open_weights(tmp_path)
    put(tmp_path, b"anything", "pytorch_model-00001-of-00001.bin")
    message = r"pytorch_model-00001-of-00001\.bin.*never.*convert.*save_pretrained.*AutoTokenizer"
    with pytest.raises(ValueError, match=message):
        open_weights(tmp_path)
    put(tmp_path, GOOD, "adapter.safetensors")
    with pytest.raises(FileNotFoundError, match=r"adapter\.safetensors"):
        open_weights(tmp_path)


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"a": Trap()}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="pickled"):
        open_weights(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_what_is_not_a_regular_file_is_refused(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match="not a regular file"):
        open_weights(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="not a regular file"):
        open_weights(tmp_path)
