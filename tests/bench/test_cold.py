"""From a process's start to its first token: parts that add up, and one line where it fails."""

import json
import sys

import pytest
import torch

from minillm.bench import first_token
from minillm.bench.cold import cold_start, process_parts

PARTS = ["interpreter", "import torch", "import minillm", "load", "first token", "total"]


def test_parts_add_up(smollm2, record_property):
    options = {"device": "cpu", "dtype": "float32"}
    parts = cold_start(str(smollm2), options, [1, 2, 3], runs=1)
    assert list(parts) == PARTS
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(2 * parts["total"])
    text = ", ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
    record_property("figure", f"cold start, s: {text}")


def test_a_process_that_fails_says_why(smollm2):
    with pytest.raises(RuntimeError, match=r"the measured process failed: .*dtype is 'int3'"):
        cold_start(str(smollm2), {"dtype": "int3"}, [1], runs=1)


def test_the_process_uses_as_many_threads_as_it_is_told(smollm2, monkeypatch, capsys):
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    asked = {
        "model": str(smollm2),
        "options": {"device": "cpu"},
        "prompt_ids": [1, 2],
        "threads": 3,
    }
    monkeypatch.setattr(sys, "argv", ["first_token.py", json.dumps(asked)])
    first_token.main()
    assert used == [3]
    assert list(json.loads(capsys.readouterr().out)) == PARTS[:-1]


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs is 0"):
        cold_start("smollm2", {}, [1], runs=0)


def test_compiled_bytecode_is_kept_as_after_an_installation(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    script = """
import json, sys, time
assert not sys.dont_write_bytecode
print(json.dumps({"begun": time.time()}))
"""
    parts = process_parts([sys.executable, "-c", script])
    assert list(parts) == ["begun", "total"]
