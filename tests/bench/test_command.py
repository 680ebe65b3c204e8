"""`minillm bench`: what it prints for people, and the same for programs."""

import json

import pytest

from minillm.bench.diagnosis import KNOBS
from minillm.cli import main

BENCH = ["bench", "--backend", "torch", "--runs", "1"]
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
    assert picture.stat().st_size > 20_000


def test_the_table_answers_both_questions(capsys):
    assert main([*SMALL, "--dtype", "float32"]) == 0
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


def test_nothing_is_measured_where_the_options_are_wrong(capsys):
    assert main([*SMALL, "--plot", "roofline.svg"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "--plot is 'roofline.svg'; a file name that ends in .png is needed" in err


@pytest.mark.slow
def test_cold_is_a_table_of_parts(capsys):
    arguments = ["--prompt-tokens", "5", "--batch-sizes", "1", "--new-tokens", "2", "--cold"]
    assert main([*BENCH, *arguments]) == 0
    out = capsys.readouterr().out
    table = out[out.index("from the start of the process") :]
    assert [line.split()[0] for line in table.splitlines()[1:]] == [
        "interpreter", "import", "import", "load", "first", "total"
    ]  # fmt: skip
