"""The Makefile: its targets, and a prompt that arrives exactly as it was typed."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))

pytestmark = pytest.mark.skipif(
    not shutil.which("make") or os.name == "nt", reason="needs make and a POSIX shell"
)


def make(*args: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    # Under `make test ARGS=…` the outer make has put its own variables into the environment.
    outer = ("MFLAGS", "MINILLM_PROMPT", "PROMPT", "ARGS", "PYTHON", "N")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in outer}
    command = ["make", "--no-print-directory", *args]
    return subprocess.run(command, cwd=cwd, env=clean | env, capture_output=True, text=True)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """The Makefile with a set-up that does nothing and a `minillm` that prints its arguments."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bootstrap.py").write_text("import sys; print(sys.argv, file=sys.stderr)")
    program = tmp_path / ".venv" / "bin" / "minillm"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    return tmp_path


PROMPTS = [
    "What is the capital of France?",
    'She said "no"',
    "it's",
    "costs $5, $HOME, $$, ${PATH}, $(HOME)",
    "`touch hacked` $(touch hacked) $(shell touch hacked)",
    "back\\slash \\n \\",
    "# not a comment; not | a > shell & !history *",
    "-h",
    "--help",
    "法国的首都是哪里? 🇫🇷",
    "  two  spaces  ",
    "two\nlines",
    "%s %d",
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompt_arrives_as_typed(sandbox: Path, prompt: str) -> None:
    by_argument = make("generate", f"PROMPT={prompt}", cwd=sandbox)
    by_environment = make("generate", cwd=sandbox, PROMPT=prompt)
    for done in (by_argument, by_environment):
        assert done.returncode == 0, done.stderr
        *options, separator, got = json.loads(done.stdout)
        assert (options, separator) == (["generate"], "--")
        # make itself drops the blanks before a value that stands on its command line
        assert got == (prompt if done is by_environment else prompt.lstrip(" "))
    assert not (sandbox / "hacked").exists()


def test_arguments_and_python_are_passed_on(sandbox: Path) -> None:
    done = make("generate", "PROMPT=a b", "ARGS=--raw --seed 3", cwd=sandbox)
    assert json.loads(done.stdout) == ["generate", "--raw", "--seed", "3", "--", "a b"]
    missing = make("setup", "PYTHON=python0.0", cwd=sandbox)
    assert missing.returncode != 0
    assert "Python 3.11 or newer is needed, and there is no python0.0 here" in missing.stderr


def test_a_failed_set_up_stops_the_rest(sandbox: Path) -> None:
    (sandbox / "tools" / "bootstrap.py").write_text("raise SystemExit(1)")
    done = make("generate", cwd=sandbox)
    assert done.returncode != 0
    assert done.stdout == ""


def test_help_lists_the_commands() -> None:
    listed = make("help").stdout
    for target in ("setup", "lab", "generate", "test", "test-browser", "check", "fuzz", "clean"):
        assert re.search(rf"make {target}\b", listed), target
    assert make().stdout == listed


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_documented_commands_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert named <= TARGETS, f"{document} names {named - TARGETS}"
    if document != ".ci/run":
        assert {"test", "check"} <= named
