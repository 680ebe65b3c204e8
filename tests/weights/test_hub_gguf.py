"""Pulling one GGUF file of a repository: owner/name:FILE, as other programs spell it."""

import json

import pytest

from minillm.weights.hub_names import choose_gguf
from minillm.weights.pull import home, pull, resolve
from tests.weights.helpers import in_cache

REPOSITORY = "some-owner/Tiny-GGUF"
FILES = {
    "Tiny-Q4_K_M.gguf": b"GGUF four",
    "Tiny-Q8_0.gguf": b"GGUF eight",
    "BF16/Tiny-BF16.gguf": b"GGUF sixteen",
    "Tiny-F32-00001-of-00002.gguf": b"GGUF part",
    "config.json": b"{}",
}


@pytest.fixture(autouse=True)
def repository(hub):
    hub.repositories[REPOSITORY] = dict(FILES)


@pytest.mark.parametrize(
    ("tag", "path"),
    [("q4_k_m", "Tiny-Q4_K_M.gguf"), ("Tiny-BF16.gguf", "BF16/Tiny-BF16.gguf")],
)
def test_one_file_is_taken_and_found_offline(hub, run_pull, tag, path):
    name = f"{REPOSITORY}:{tag}"
    with pytest.raises(FileNotFoundError, match=f"run `minillm pull {name}`"):
        resolve(name)
    assert run_pull(name).error is None
    file_name = path.rsplit("/", 1)[-1]
    folder = home() / "models" / f"some-owner--Tiny-GGUF--{file_name}"
    assert hub.downloads() == [file_name]
    assert {p.name for p in folder.iterdir()} == {file_name, "origin.json"}
    assert in_cache() == {folder.name, f".{folder.name}.lock"}
    for spelling in (name, f"{REPOSITORY}:{file_name}"):
        assert resolve(spelling) == folder / file_name == pull(spelling)  # no network needed
    assert resolve(name).read_bytes() == FILES[path]
    assert json.loads((folder / "origin.json").read_text())["source"] == REPOSITORY
    (folder / file_name).write_bytes(b"cut")
    with pytest.raises(ValueError, match=f"has 3 bytes instead of .* `minillm pull {name}`"):
        resolve(name)
    assert run_pull(name).error is None
    assert resolve(name).read_bytes() == FILES[path]


def test_wrong_content_and_wrong_names(hub, run_pull):
    hub.fault = "flip"
    error = run_pull(f"{REPOSITORY}:Q8_0").error
    assert error is not None
    assert "Tiny-Q8_0.gguf has the SHA-256" in error[1]
    hub.fault = None
    error = run_pull(f"{REPOSITORY}:Q5_0").error
    assert error == [
        "FileNotFoundError",
        f"{REPOSITORY}: no 'Q5_0'; its GGUF files are Tiny-BF16.gguf, Tiny-Q4_K_M.gguf, "
        "Tiny-Q8_0.gguf",
    ]
    with pytest.raises(FileNotFoundError):
        resolve(f"{REPOSITORY}:Q8_0")


def test_what_a_tag_means():
    names = ["M-7B-Q4_0.gguf", "M-7B-IQ4_0.gguf", "M-7B.Q8_0.gguf", "m-7b-q8_0.gguf", "Q2_K.gguf"]

    def chosen(tag):
        return choose_gguf("a/b", names, tag)

    assert chosen("Q4_0") == chosen("q4_0") == chosen("7b-Q4_0") == "M-7B-Q4_0.gguf"
    assert chosen("IQ4_0") == "M-7B-IQ4_0.gguf"
    assert chosen("Q2_K") == "Q2_K.gguf"
    assert chosen("m-7b-q8_0.gguf") == "m-7b-q8_0.gguf"
    for tag in ("4_0", "Q4", "gguf", "Q8_0.GGUF", ".*", "M-7B"):
        assert chosen(tag) in (None, "m-7b-q8_0.gguf"), tag
    with pytest.raises(ValueError, match=r"a/b:Q8_0 may be M-7B\.Q8_0\.gguf or m-7b-q8_0\.gguf"):
        chosen("Q8_0")
