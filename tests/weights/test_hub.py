"""Pulling owner/name from a hub, here a small one on this machine, by the real hub library."""

import errno
import json
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load, save

from minillm.weights.gguf import convert
from minillm.weights.hub import Listing, _download, _hub_errors
from minillm.weights.pull import resolve
from minillm.weights.safetensors import open_weights
from tests.weights.helpers import in_cache, tiny_tensors, write_gguf
from tests.weights.hub import REVISION, Puller

REPOSITORY = "some-owner/Tiny_1.0"
FOLDER = "some-owner--Tiny_1.0"
NOT_NEEDED = {
    "README.md": b"# a model",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.safetensors": b"twice the size",
    "consolidated.safetensors": b"twice the size",
    "onnx/model.onnx": b"onnx",
}


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    """The files of a tiny model in a repository, weights in one file."""
    folder = tmp_path_factory.mktemp("model")
    write_gguf(folder / "tiny.gguf", tiny_tensors())
    convert(folder / "tiny.gguf", folder)
    names = ("config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json")
    return {name: (folder / name).read_bytes() for name in (*names, "model.safetensors")}


@pytest.fixture(autouse=True)
def repository(hub, model_files):
    hub.repositories[REPOSITORY] = model_files | NOT_NEEDED


def two_shards(files):
    """The same weights in two files with an index."""
    tensors = load(files["model.safetensors"])
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[:7],
        "model-00002-of-00002.safetensors": names[7:],
    }
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    saved = {shard: save({n: tensors[n] for n in part}) for shard, part in shards.items()}
    others = {name: content for name, content in files.items() if name != "model.safetensors"}
    return others | saved | {"model.safetensors.index.json": index}


def test_a_repository_with_one_weight_file(hub, run_pull, model_files):
    done = run_pull(REPOSITORY)
    assert done.error is None
    folder = resolve(REPOSITORY)
    assert in_cache() == {FOLDER, f".{FOLDER}.lock"}
    assert {path.name for path in folder.iterdir()} == model_files.keys() | {"origin.json"}
    assert all((folder / name).read_bytes() == model_files[name] for name in model_files)
    assert hub.downloads() == sorted(model_files)
    origin = json.loads((folder / "origin.json").read_text())
    assert (origin["source"], origin["revision"]) == (REPOSITORY, REVISION)
    assert origin["licence"] == "mit"
    assert (done.out, done.err) == ("", "")  # quiet
    # Whole: another pull asks nothing.
    hub.requests.clear()
    assert run_pull(REPOSITORY).error is None
    assert hub.requests == []


def test_a_repository_with_shards(hub, run_pull, model_files):
    sharded = two_shards(model_files)
    hub.repositories[REPOSITORY] = sharded | NOT_NEEDED | {"model-extra.safetensors": b"stray"}
    done = run_pull(REPOSITORY, quiet=False)
    assert done.error is None
    assert done.out == ""
    assert "verify model-00001-of-00002.safetensors" in done.err
    assert hub.downloads() == sorted(sharded)
    weights = open_weights(resolve(REPOSITORY))
    single = load(model_files["model.safetensors"])
    assert weights.keys() == single.keys()
    assert all(torch.equal(weights[name], single[name]) for name in weights)


def test_an_interrupted_download_goes_on_where_it_stopped(hub, run_pull, model_files):
    hub.repositories[REPOSITORY] = two_shards(model_files)
    hub.fault = "cut"
    done = run_pull(REPOSITORY)
    assert done.error is not None
    assert FOLDER not in in_cache()
    with pytest.raises(FileNotFoundError, match=f"minillm pull {REPOSITORY}"):
        resolve(REPOSITORY)
    hub.fault = None
    hub.requests.clear()
    assert run_pull(REPOSITORY).error is None
    assert not {"config.json", "tokenizer.json"} & set(hub.downloads())
    assert len(open_weights(resolve(REPOSITORY))) == 20
    assert in_cache() == {FOLDER, f".{FOLDER}.lock"}


def test_wrong_content_is_noticed_and_fetched_again(hub, run_pull):
    hub.fault = "flip"
    error = run_pull(REPOSITORY).error
    assert error is not None
    assert error[0] == "ValueError"
    assert "model.safetensors has the SHA-256" in error[1]
    assert FOLDER not in in_cache()
    hub.fault = None
    assert run_pull(REPOSITORY).error is None


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_repair_fetches_what_is_damaged_and_no_more(hub, run_pull, model_files):
    assert run_pull(REPOSITORY).error is None
    folder = resolve(REPOSITORY)
    (folder / "config.json").write_text("{}")
    hub.requests.clear()
    assert run_pull(REPOSITORY).error is None
    assert "config.json" in hub.downloads()
    assert "model.safetensors" not in hub.downloads()
    # A large file of the right size is compared by its content where that is asked for.
    flip(folder / "model.safetensors")
    hub.requests.clear()
    resolve(REPOSITORY)
    done = run_pull(REPOSITORY, verify=True, quiet=False)
    assert done.error is None
    assert "model.safetensors" in hub.downloads()
    assert all((folder / name).read_bytes() == model_files[name] for name in model_files)
    hub.requests.clear()
    assert run_pull(REPOSITORY, verify=True) == ("", "", None)
    assert hub.requests == []


def test_a_repository_that_changed_between_two_runs(hub, run_pull, model_files):
    first = two_shards(model_files)
    hub.repositories[REPOSITORY] = first
    hub.fault = "cut"
    assert run_pull(REPOSITORY).error is not None
    tensors = {name: tensor + 1 for name, tensor in load(model_files["model.safetensors"]).items()}
    changed = {**model_files, "model.safetensors": save(tensors)}
    changed["generation_config.json"] = b'{"eos_token_id": [1, 2]}'
    hub.repositories[REPOSITORY] = changed
    hub.revision, hub.fault = REVISION[::-1], None
    assert run_pull(REPOSITORY).error is None
    folder = resolve(REPOSITORY)
    assert {path.name for path in folder.iterdir()} == changed.keys() | {"origin.json"}
    assert all((folder / name).read_bytes() == changed[name] for name in changed)
    assert json.loads((folder / "origin.json").read_text())["revision"] == REVISION[::-1]


def test_chat_templates_in_files_of_their_own_are_taken(hub, run_pull, model_files):
    templates = {"chat_template.jinja": b"{{ messages }}", "chat_template.json": b"{}"}
    hub.repositories[REPOSITORY] |= templates
    assert run_pull(REPOSITORY).error is None
    names = {path.name for path in resolve(REPOSITORY).iterdir()}
    assert names == model_files.keys() | templates.keys() | {"origin.json"}


def test_a_disk_that_is_too_small_is_noticed_before_the_download(tmp_path):
    listing = Listing(REPOSITORY, REVISION, "mit", {"x": SimpleNamespace(size=10**18)})
    with pytest.raises(OSError, match=r"needs 1,000,000,000,000,000,000 bytes; .* are free in"):
        _download(listing, ["x"], tmp_path, quiet=True)
    # One that fills up meanwhile is not taken for a broken connection.
    message = f"{REPOSITORY}: No space left"
    with pytest.raises(OSError, match=message) as caught, _hub_errors(REPOSITORY):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC


class Case(NamedTuple):
    kind: str
    message: str


@pytest.mark.parametrize(
    ("change", "case"),
    [
        ({"model.safetensors": None}, Case("ValueError", "no model.safetensors and no model.saf")),
        ({"tokenizer.json": None}, Case("ValueError", "no tokenizer.json, which minillm needs")),
        (
            {"tokenizer.json": None, "tokenizer.model": b"sentencepiece"},
            Case("ValueError", "Its tokenizer.model can be converted with transformers: AutoToken"),
        ),
        (
            {"model.safetensors": None, "pytorch_model.bin": b"pickle"},
            Case("ValueError", "only pickled weights (pytorch_model.bin). Unpickling can run any"),
        ),
        (
            {"model.safetensors": None, "b.Q8_0.gguf": b"", "sub/a-Q4_K_M.gguf": b""},
            Case("ValueError", "holds GGUF files: a-Q4_K_M.gguf, b.Q8_0.gguf; choose one with"),
        ),
        ({"config.json": b'{"model_type": "t5"}'}, Case("ValueError", "model_type is 't5'")),
        ({"config.json": b"{"}, Case("ValueError", "not valid JSON")),
        ({"model.safetensors": b"version https://git-lfs"}, Case("ValueError", "Git LFS pointer")),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "x.safetensors"}}'},
            Case("ValueError", "its index names x.safetensors, which it lacks"),
        ),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "../x.safetensors"}}'},
            Case("ValueError", "the plain name of a .safetensors file"),
        ),
    ],
)
def test_a_repository_that_cannot_be_used(hub, run_pull, model_files, change, case):
    files = {**model_files, **change}
    hub.repositories[REPOSITORY] = {name: data for name, data in files.items() if data is not None}
    error = run_pull(REPOSITORY).error
    assert error is not None
    assert error[0] == case.kind
    assert case.message in error[1]
    assert len(error[1].splitlines()) == 1
    assert FOLDER not in in_cache()
    if "LFS" not in case.message:  # found out before the weights were downloaded
        assert not [name for name in hub.downloads() if name.endswith(".safetensors")]


def test_absent_and_gated_repositories(hub, run_pull):
    error = run_pull("some-owner/absent").error
    assert error is not None
    assert error[0] == "FileNotFoundError"
    assert "some-owner/absent is not on the Hugging Face hub (or is private" in error[1]
    hub.fault = "gated"
    error = run_pull(REPOSITORY).error
    assert error is not None
    assert error[0] == "PermissionError"
    assert "gated: accept its terms" in error[1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "could not be fetched from the Hugging Face hub ("),
    ],
)
def test_offline_mode_and_a_refused_connection(hub, tmp_path, environment, message):
    puller = Puller(hub.url, str(tmp_path / "hf"), **environment)
    error = puller(REPOSITORY).error
    puller.close()
    assert error is not None
    assert error[0] == "ConnectionError"
    assert message in error[1]
    assert len(error[1].splitlines()) == 1
    assert hub.requests == []
    assert FOLDER not in in_cache()
