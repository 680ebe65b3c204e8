"""`Scheme`: what is chosen where nothing is said, and what is refused."""

import subprocess
import sys

import pytest
import torch

from minillm.quantization.int4 import quantize_groups
from minillm.quantization.scheme import Scheme

SMOLLM2 = {576, 1536}


@pytest.mark.parametrize(
    ("method", "widths", "expected"),
    [
        ("int8", SMOLLM2, Scheme("int8", 8, -1, True)),
        ("int4", SMOLLM2, Scheme("int4", 4, 64, False)),
        ("gptq", SMOLLM2, Scheme("gptq", 4, 64, False)),
        ("awq", {4096, 11008}, Scheme("awq", 4, 128, False)),
        ("int4", {96, 160}, Scheme("int4", 4, 32, False)),
        ("int4", {48, 7}, Scheme("int4", 4, -1, False)),
    ],
)
def test_what_is_chosen(method, widths, expected):
    assert Scheme.of(method, widths) == expected


def test_what_is_said_stands():
    scheme = Scheme.of("gptq", SMOLLM2, bits=3, group_size=96, symmetric=True, act_order=True)
    assert scheme == Scheme("gptq", 3, 96, True, act_order=True)
    assert Scheme.of("int8", SMOLLM2, group_size=32, symmetric=False) == Scheme(
        "int8", 8, 32, False
    )


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("int5", {}, "'int5'; known are int8, int4, gptq, awq"),
        (None, {}, "None; known are"),
        ("int4", {"bits": 1}, "bits is 1; a whole number from 2 to 8"),
        ("int4", {"bits": 9}, "bits is 9"),
        ("gptq", {"bits": 4.0}, "bits is 4.0"),
        ("gptq", {"bits": True}, "bits is True"),
        ("int8", {"bits": 4}, "bits is 4; int8 has 8"),
        ("int4", {"group_size": 0}, "group_size is 0; a whole number"),
        ("int4", {"group_size": -2}, "group_size is -2; a whole number"),
        ("int4", {"group_size": True}, "group_size is True; a whole number"),
        ("int4", {"group_size": "64"}, "group_size is '64'; a whole number"),
        ("int4", {"group_size": 64.0}, r"group_size is 64\.0; a whole number"),
        ("int4", {"group_size": 128}, "width of 576 columns; 32, 64, 96, 192 would, or -1"),
        ("awq", {"act_order": True}, "act_order is for gptq"),
    ],
)
def test_what_is_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        Scheme.of(method, SMOLLM2, **options)


def test_q05_sizes_named_divide_every_width():
    """96 divides 576, and 128 divides 1024, but a model that has both needs 32 or 64."""
    with pytest.raises(ValueError, match="width of 576 columns; 32, 64 would"):
        Scheme.of("int4", {576, 1024}, group_size=128)
    with pytest.raises(ValueError, match="width of 1024 columns; 32, 64 would"):
        Scheme.of("int4", {576, 1024}, group_size=96)
    with pytest.raises(ValueError, match="width of 7 columns; 1 would"):
        Scheme.of("int4", {7, 64}, group_size=32)


def test_a_scheme_made_directly_is_checked_too():
    with pytest.raises(ValueError, match="known are"):
        Scheme("int5", 4, 64, False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="bits is 9"):
        Scheme("gptq", 9, 64, False)
    with pytest.raises(ValueError, match="group_size is -3"):
        Scheme("gptq", 4, -3, False)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_on_load_needs_no_text(method):
    assert Scheme.on_load("int4", SMOLLM2).group_size == 64
    assert Scheme.on_load("int4", SMOLLM2, 32).group_size == 32
    assert Scheme.on_load(Scheme("int4", 4, 96, True), SMOLLM2) == Scheme("int4", 4, 96, True)
    assert Scheme.on_load(Scheme("int4", 4, 96, True), SMOLLM2, 96).group_size == 96
    with pytest.raises(ValueError, match=r"group_size is 64, but the scheme says .*group_size=96"):
        Scheme.on_load(Scheme("int4", 4, 96, True), SMOLLM2, 64)
    with pytest.raises(ValueError, match="quantize is True; known are"):
        Scheme.on_load(True, SMOLLM2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs calibration text"):
        Scheme.on_load(method, SMOLLM2)
    with pytest.raises(ValueError, match="32, 64, 96, 192 would"):
        Scheme.on_load(Scheme("int4", 4, 128, True), SMOLLM2)


def test_round():
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    for scheme in (Scheme("int8", 8, -1, True), Scheme("awq", 3, 32, False)):
        expected = quantize_groups(
            weight, scheme.group_size, bits=scheme.bits, symmetric=scheme.symmetric
        )
        found = scheme.round(weight)
        assert torch.equal(found.codes, expected.codes)
        assert torch.equal(found.scales, expected.scales)
        assert (found.bits, found.group_size) == (scheme.bits, expected.group_size)


def test_a_scheme_needs_no_torch():
    code = "import sys, minillm.quantization.scheme; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
