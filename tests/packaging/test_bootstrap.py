"""tools/bootstrap.py: what `make setup` decides, without installing anything."""

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import bootstrap


class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        if self.path == "/slow":
            time.sleep(1.0)
        self.send_response(200 if self.path in ("/good", "/slow") else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_index_probe(server: str) -> None:
    assert bootstrap.answers(f"{server}/good")
    assert not bootstrap.answers(f"{server}/missing")
    began = time.perf_counter()
    assert not bootstrap.answers(f"{server}/slow", seconds=0.2)
    assert time.perf_counter() - began < 0.9
    assert not bootstrap.answers("http://127.0.0.1:9/nobody-listens")
    assert not bootstrap.answers("no address at all")


@pytest.mark.parametrize(
    ("platform", "driver", "index", "options"),
    [
        ("linux", False, True, ["--extra-index-url", bootstrap.CPU_INDEX]),
        ("linux", False, False, []),
        ("linux", True, True, []),
        ("darwin", False, True, []),
        ("win32", False, True, []),
    ],
)
def test_cpu_torch_only_where_it_helps(monkeypatch, platform, driver, index, options) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(bootstrap, "nvidia_driver", lambda: driver)
    monkeypatch.setattr(bootstrap, "answers", lambda url: index)
    assert bootstrap.torch_options() == options


def fake_python(folder: Path, name: str, version: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(os.name == "nt", reason="the stand-ins are shell scripts")
class TestChoosePython:
    def test_this_one_is_new_enough(self) -> None:
        assert bootstrap.choose_python(None) == sys.executable

    def test_asked_for(self, tmp_path) -> None:
        python = fake_python(tmp_path, "python-mine", "3 12")
        assert bootstrap.choose_python(python) == python
        old = fake_python(tmp_path, "python-old", "3 9")
        with pytest.raises(bootstrap.SetupError, match=r"is Python 3\.9; 3\.11 or newer is needed"):
            bootstrap.choose_python(old)
        with pytest.raises(bootstrap.SetupError, match="not a Python that runs"):
            bootstrap.choose_python(str(tmp_path / "missing"))

    def test_an_old_one_looks_for_a_newer_on_the_path(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(sys, "version_info", (3, 9, 18))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(bootstrap.SetupError, match=r"PYTHON=/path/to/python3\.12"):
            bootstrap.choose_python(None)
        fake_python(tmp_path, "python3.14", "garbage")  # a version manager's shim that fails
        fake_python(tmp_path, "python3.12", "3 12")
        assert bootstrap.choose_python(None) == "python3.12"


class Setup:
    """A repository in a temporary folder, with installing and creating replaced by notes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.fail = False
        self.venv = root / ".venv"
        self.stamp = self.venv / "minillm-setup.txt"
        (root / "pyproject.toml").write_text("a")
        (root / "constraints.txt").write_text("b")
        monkeypatch.setattr(bootstrap, "ROOT", root)
        monkeypatch.setattr(bootstrap, "create_venv", self.create)
        monkeypatch.setattr(bootstrap, "install", self.install)

    def create(self, venv: Path, stamp: Path, base: str) -> None:
        self.done.append("create")
        assert not venv.exists()
        python = bootstrap.venv_python(venv)
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        stamp.write_text(bootstrap.UNFINISHED)

    def install(self, python: Path) -> None:
        self.done.append("install")
        assert not self.stamp.exists() or self.stamp.read_text() == bootstrap.UNFINISHED
        if self.fail:
            raise KeyboardInterrupt

    def run(self) -> list[str]:
        self.done.clear()
        bootstrap.make_environment(self.venv, self.stamp, None)
        return list(self.done)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(tmp_path, monkeypatch)


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
class TestEnvironment:
    def test_second_run_does_nothing(self, setup: Setup) -> None:
        assert setup.run() == ["create", "install"]
        assert setup.run() == []

    def test_changed_pins_are_installed_in_place(self, setup: Setup) -> None:
        setup.run()
        (bootstrap.ROOT / "constraints.txt").write_text("c")
        assert setup.run() == ["install"]
        assert setup.run() == []

    def test_changed_kernels_are_compiled_again(self, setup: Setup) -> None:
        kernels = bootstrap.ROOT / "minillm" / "kernels" / "cpu"
        kernels.mkdir(parents=True)
        setup.run()
        (kernels / "_library.cpython-311-x86_64-linux-gnu.so").write_text("built")
        assert setup.run() == []
        (kernels / "products.h").write_text("// new")
        assert setup.run() == ["install"]
        assert setup.run() == []

    def test_an_interrupted_run_starts_afresh(self, setup: Setup) -> None:
        setup.fail = True
        with pytest.raises(KeyboardInterrupt):
            setup.run()
        setup.fail = False
        (setup.venv / "half-unpacked").touch()
        assert setup.run() == ["create", "install"]
        assert not (setup.venv / "half-unpacked").exists()

    def test_an_interrupted_update_starts_afresh(self, setup: Setup) -> None:
        setup.run()
        (bootstrap.ROOT / "pyproject.toml").write_text("c")
        setup.fail = True
        with pytest.raises(KeyboardInterrupt):
            setup.run()
        setup.fail = False
        assert setup.run() == ["create", "install"]

    def test_an_environment_made_by_hand_is_kept(self, setup: Setup) -> None:
        python = bootstrap.venv_python(setup.venv)
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        (setup.venv / "mine").touch()
        assert setup.run() == ["install"]
        assert (setup.venv / "mine").exists()
        assert setup.run() == []

    def test_a_python_that_went_away_is_noticed(self, setup: Setup) -> None:
        setup.run()
        python = bootstrap.venv_python(setup.venv)
        python.unlink()
        python.symlink_to("/nowhere/python3")
        assert setup.run() == ["create", "install"]

    def test_deleted(self, setup: Setup) -> None:
        setup.run()
        subprocess.run(["rm", "-r", setup.venv], check=True)
        assert setup.run() == ["create", "install"]


@pytest.mark.parametrize(
    ("home", "error"), [("", None), ("x", "the model smollm2 could not be fetched")]
)
def test_model_is_looked_for_and_errors_take_one_line(
    tmp_path, monkeypatch, capfd, smollm2, home, error
) -> None:
    if error:  # a file where the cache folder should be
        (tmp_path / home).touch()
        monkeypatch.setenv("MINILLM_HOME", str(tmp_path / home))
        with pytest.raises(bootstrap.SetupError, match=error):
            bootstrap.fetch_model(Path(sys.executable))
        printed = capfd.readouterr().err.splitlines()
        assert len(printed) == 1
        assert printed[0].startswith("minillm: error: ")
    else:
        bootstrap.fetch_model(Path(sys.executable))
        assert capfd.readouterr() == ("", "")
