"""The parity table: its rows, and that it fails where a bound is passed."""

import pytest

from tests.parity import measure
from tools import parity


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["parity.py", *arguments])
    return parity.main()


def test_table(monkeypatch, capsys):
    assert run(monkeypatch, "llama-tied", "qwen3-window") == 0
    printed = capsys.readouterr().out
    (small,) = (line for line in printed.splitlines() if line.startswith("TinyLlama, SmolLM2"))
    assert len(small.split()) == 2 + 4 + 5 + 2
    (qwen,) = (line for line in printed.splitlines() if line.startswith("Qwen3"))
    assert qwen.count("–") == 2  # no GGUF file can say that a Qwen has a window
    assert "OUT OF BOUNDS" not in printed


def test_a_row_for_each_tiny_model(monkeypatch, capsys):
    assert run(monkeypatch, "--cases", "olmo2-yarn") == 0
    assert "\nolmo2-yarn " in capsys.readouterr().out


def test_a_passed_bound_is_named_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(measure, "FLOAT32_BOUND", 1e-9)
    assert run(monkeypatch, "llama-tied") == 1
    assert "OUT OF BOUNDS: llama-tied: decode, torch.float32" in capsys.readouterr().out


def test_unknown_names_are_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "mamba")
    assert "no name contains ['mamba']" in capsys.readouterr().err
