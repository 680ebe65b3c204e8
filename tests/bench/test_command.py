"""`minillm bench`: what it prints for people, and the same for programs."""

import json
from argparse import Namespace

import pytest

from minillm import LLM
from minillm.bench import Ceilings, Cost, diagnose
from minillm.bench.diagnosis import KNOBS
from minillm.bench.roofline import Point
from minillm.cli import main
from minillm.commands.bench import _check_room, _show_diagnosis, _show_weights

BENCH = ["bench", "--backend", "torch", "--dtype", "float32", "--runs", "1"]
SMALL = [*BENCH, "--prompt-tokens", "5,9", "--batch-sizes", "1,2", "--new-tokens", "3"]


def test_json_says_what_was_achieved_of_what_is_possible(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "roofline.png"
    assert main([*SMALL, "--json", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    possible = found["ceilings"]
    assert [(r["prompt_tokens"], r["batch_size"]) for r in found["results"]] == [
        (5, 1), (5, 2), (9, 1), (9, 2)
    ]  # fmt: skip
    for result in found["results"]:
        for phase, seconds in (("prefill", "ttft_s"), ("decode", "itl_s")):
            phase_found = result[phase]
            moved = phase_found["weight_bytes"] + phase_found["cache_bytes"]
            assert phase_found["bytes_per_s"] == pytest.approx(moved / result[seconds])
            assert phase_found["bytes_fraction"] == pytest.approx(
                phase_found["bytes_per_s"] / possible["bytes_per_s"]
            )
            assert phase_found["flops_fraction"] == pytest.approx(
                phase_found["flops"] / result[seconds] / possible["flops_per_s"]
            )
            assert phase_found["knob"] in KNOBS.values()
    assert "cold_start_s" not in found
    form = [found[name] for name in ("model", "backend", "weights", "dtype", "kv_cache")]
    assert form == ["smollm2", "torch", "float32", "float32", "float32"]
    assert picture.stat().st_size > 20_000


def test_the_table_answers_both_questions(capsys):
    assert main(SMALL) == 0
    out = capsys.readouterr().out
    assert "This machine: " in out
    assert "GFLOP/s (float32 product)" in out
    start = out.index("Slow to start (time to first token)?")
    stream = out.index("Slow to stream (inter-token latency)?")
    assert "    try " in out[start:stream]
    assert "    try " in out[stream:]
    rows = [line for line in out.splitlines() if line.startswith(("prefill ", "decode "))]
    assert [row.split()[:4] for row in rows[:2]] == [
        ["prefill", "5", "×", "1"],
        ["prefill", "5", "×", "2"],
    ]
    assert len(rows) == 8
    assert max(map(len, out.splitlines())) <= 100
    decode = next(row.split() for row in rows if row.startswith("decode"))
    assert decode[4] == "538"  # MB: the weights in float32


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--plot", "roofline.svg"], "'roofline.svg'; a file name that ends in .png is needed"),
        (["--plot", ""], "--plot is ''; a file name that ends in .png is needed"),
        (["--plot", "/no/folder/x.png"], "'/no/folder/x.png'; that folder does not exist"),
        (["--prompt-tokens", "5,0"], "prompt_tokens is 0; at least 1"),
        (["--batch-sizes", "2,-1"], "batch_size is -1; at least 1"),
        (["--new-tokens", "1"], "new_tokens is 1; at least 2"),
        (["--runs", "0"], "runs is 0; at least 1"),
        (["--compare", "transformers", "--window", "4"], "leave --window out"),
    ],
)
def test_nothing_is_loaded_where_the_options_are_wrong(capsys, monkeypatch, options, reason):
    monkeypatch.setattr("minillm.commands.bench.load", None)
    assert main([*SMALL, *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err


def test_nothing_is_measured_where_the_context_is_too_short(capsys, monkeypatch):
    monkeypatch.setattr("minillm.commands.bench.ceilings", None)
    assert main([*BENCH, "--prompt-tokens", "8,8190", "--new-tokens", "4"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "8190 prompt tokens and 4 new ones are more than the context of 8192 holds" in err
    asked = Namespace(prompt_tokens=[8190], new_tokens=3)  # the last one needs no place
    _check_room(asked, LLM.from_pretrained("smollm2"))


def test_what_is_beyond_a_ceiling_is_explained(capsys):
    def said(least_s, flops):
        cost = Cost(flops, 0.4e9, 0.1e9)
        found = diagnose(cost, least_s, Ceilings(10e9, 100e9))
        _show_diagnosis([Point("decode", "42 × 1", cost, found)], Ceilings(10e9, 100e9), "float32")
        return [x for x in capsys.readouterr().out.splitlines() if x.startswith("Above 100 %")]

    assert said(0.06, 1e9) == []
    (found,) = said(0.04, 1e9)
    assert found.startswith("Above 100 % of GB/s: caches")
    (found,) = said(0.06, 8e9)
    assert found.startswith("Above 100 % of GFLOP/s: products of whole numbers")


def test_a_comparison_of_other_weights_says_so(capsys):
    _show_weights(LLM.from_pretrained("smollm2", device="cpu"))
    assert capsys.readouterr().out == ""
    _show_weights(LLM.from_pretrained("smollm2", device="cpu", quantize="gguf"))
    expected = "  minillm reads 97 MB of weights a step; in float32 they take 538 MB\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("text", ["", "4;8", "4,", "4.5"])
def test_lists_of_numbers_are_asked_for_clearly(capsys, text):
    with pytest.raises(SystemExit) as ended:
        main([*BENCH, "--prompt-tokens", text])
    assert ended.value.code == 2
    assert f"{text!r} is not a list of whole numbers with commas" in capsys.readouterr().err


@pytest.mark.slow
def test_cold_is_a_table_of_parts(capsys):
    arguments = ["--prompt-tokens", "5", "--batch-sizes", "1", "--new-tokens", "2", "--cold"]
    assert main([*BENCH, *arguments]) == 0
    out = capsys.readouterr().out
    table = out[out.index("from the start of the process") :]
    assert [line.split()[0] for line in table.splitlines()[1:]] == [
        "interpreter", "import", "import", "load", "first", "total"
    ]  # fmt: skip
