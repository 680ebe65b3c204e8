"""What a phase waits for: worked out by hand on a machine of round numbers."""

import math

import pytest

from minillm.bench import Ceilings, Cost, diagnose
from minillm.bench.diagnosis import KNOBS

# 10 GB/s and 100 GFLOP/s: the ridge is at 10 FLOP per byte.
MACHINE = Ceilings(10e9, 100e9)
DECODE = Cost(flops=0.2e9, weight_bytes=0.4e9, cache_bytes=0.1e9)  # 2 ms, 50 ms
PREFILL = Cost(flops=20e9, weight_bytes=0.4e9, cache_bytes=0.1e9)  # 200 ms, 50 ms


def test_bytes_bound_a_step():
    found = diagnose(DECODE, 0.08, MACHINE)
    assert found.bound == "bandwidth"
    assert found.least_s == pytest.approx(0.05)
    assert found.fraction == found.bytes_fraction == pytest.approx(0.05 / 0.08)
    assert found.flops_fraction == pytest.approx(0.002 / 0.08)
    assert found.bytes_per_s == pytest.approx(0.5e9 / 0.08)
    assert found.flops_per_s == pytest.approx(0.2e9 / 0.08)
    assert "--quantize" in found.knob
    assert "batch" in found.knob


def test_arithmetic_bounds_a_prefill():
    found = diagnose(PREFILL, 0.25, MACHINE, "prefill")
    assert found.bound == "compute"
    assert found.fraction == pytest.approx(0.8)
    assert "shorter prompt" in found.knob


def test_far_from_both_ceilings_is_overhead():
    """51 % of the nearer ceiling is bandwidth; 49 % is neither."""
    assert diagnose(DECODE, 0.05 / 0.51, MACHINE).bound == "bandwidth"
    found = diagnose(DECODE, 0.05 / 0.49, MACHINE)
    assert found.bound == "overhead"
    assert "--backend" in found.knob
    assert diagnose(PREFILL, 1.0, MACHINE, "prefill").bound == "overhead"


def test_the_knob_turns_what_is_larger():
    cache = Cost(flops=0.2e9, weight_bytes=0.1e9, cache_bytes=0.4e9)
    assert "--kv-cache" in diagnose(cache, 0.06, MACHINE).knob
    assert "--kv-cache" not in diagnose(DECODE, 0.06, MACHINE).knob


def test_a_batch_moves_a_step_towards_the_ridge():
    """Eight rows: the weights once, cache and FLOPs eight times; 0.16 s of arithmetic."""
    eight = Cost(8 * 2e9, 0.4e9, 8 * 0.1e9)
    assert diagnose(Cost(2e9, 0.4e9, 0.1e9), 0.07, MACHINE).bound == "bandwidth"
    assert diagnose(eight, 0.2, MACHINE).bound == "compute"


def test_each_knob_names_an_option_that_exists(capsys):
    from minillm.cli import main

    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    known = capsys.readouterr().out
    for text in KNOBS.values():
        for word in text.replace("(", " ").split():
            if word.startswith("--"):
                assert word.rstrip(",;:)") in known


def test_the_ridge_is_where_both_ceilings_meet():
    assert MACHINE.ridge == 10


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_ceilings_are_positive(rate):
    with pytest.raises(ValueError, match="bytes_per_s is"):
        Ceilings(rate, 1.0)
    with pytest.raises(ValueError, match="flops_per_s is"):
        Ceilings(1.0, rate)


def test_what_makes_no_sense_is_refused():
    for seconds in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"seconds is {seconds}"):
            diagnose(DECODE, seconds, MACHINE)
    with pytest.raises(ValueError, match="phase is 'sampling'"):
        diagnose(DECODE, 1.0, MACHINE, "sampling")  # type: ignore[arg-type]
