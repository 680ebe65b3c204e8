"""How fast each way to store a model runs: what is timed, and its columns in notebook 07."""

import runpy
from dataclasses import asdict

import pytest
import torch

from minillm import LLM
from minillm.course.precomputed import origin, stored
from minillm.course.speed import (
    ALIKE,
    FORMS,
    NOTE,
    Speed,
    columns,
    method_table,
    speeds,
    with_kernel,
)
from minillm.course.storage import METHODS
from minillm.engines.base import Unsupported
from minillm.kernels import cpu
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.quantization.linear import QuantizedLinear, quantizable
from tests.checkout import ROOT
from tests.small_model import small_llm

needs_library = pytest.mark.skipif(bool(cpu.why_not()), reason=f"no C++ kernels: {cpu.why_not()}")
SHORT = {"prompt": 4, "new_tokens": 3, "long_prompt": 12, "runs": 1}
NAMES = [name for name in FORMS if name != "gguf"]  # a model made in memory has no such file
NONE = {"int8-activations", "int8-outliers", "nf4-64", "gptq-64-order"}


@pytest.fixture(scope="module")
def small(llm) -> LLM:
    return small_llm(llm.tokenizer, vocab_size=512)


# --- What is timed


@needs_library
def test_which_methods_have_a_kernel(small):
    found = {row.name: row for row in speeds(small, NAMES, **SHORT)}
    assert list(found) == NAMES
    for row in found.values():
        assert row.decode > 0
        assert row.prefill > 0
    assert {name for name, row in found.items() if row.decode_kernel is None} == NONE
    assert {row.kernel for name, row in found.items() if name not in NONE} == {
        f"cpu ({cpu.variant()})"
    }
    assert "Int8Linear" in found["int8-outliers"].kernel
    # Floats of a whole prompt are left to PyTorch, a cache of fewer bits does not change that.
    codes = {name for name, row in found.items() if row.prefill_kernel is not None}
    assert codes == {name for name in NAMES if name.startswith("int")} - NONE


def test_without_the_library_no_method_has_a_kernel(small, monkeypatch):
    monkeypatch.setenv("MINILLM_CPU", "off")
    (row,) = speeds(small, ["int4-64"], **SHORT)
    assert row.kernel == "MINILLM_CPU=off switches them off"
    assert (row.decode_kernel, row.prefill_kernel) == (None, None)
    with pytest.raises(Unsupported):
        with_kernel(small)


@needs_library
def test_the_kernel_runs_the_same_model(small):
    plain = METHODS["kv-int4-token"].make(small)
    fast, _ = with_kernel(plain)
    assert type(fast) is type(plain)
    one, other = fast.new_cache(1, 64), plain.new_cache(1, 64)
    assert isinstance(one, QuantizedKVCache)
    assert isinstance(other, QuantizedKVCache)
    assert one.keys.group == other.keys.group
    torch.testing.assert_close(fast.logits([1, 2, 3]), plain.logits([1, 2, 3]))
    assert not hasattr(plain.model, "engine")


def test_stand_ins_are_stored_as_the_methods_they_stand_for(small):
    """As gptq and awq leave them: the same shapes and dtypes."""
    assert set(ALIKE) | set(FORMS) == set(METHODS) | {"float16"}
    ordered = FORMS["gptq-64-order"].make(small)
    plain = FORMS["int4-64"].make(small)
    for name in quantizable(small.model):
        one, other = ordered.model.get_submodule(name), plain.model.get_submodule(name)
        assert isinstance(one, QuantizedLinear)
        assert isinstance(other, QuantizedLinear)
        assert one.order is not None
        assert sorted(one.order.tolist()) == list(range(one.in_features))
        assert torch.equal(one.codes, other.codes)
    assert torch.equal(ordered.logits([1, 2, 3]), plain.logits([1, 2, 3]))


def test_stored_nf4_computes_with_the_nearest_levels(small):
    stored_codes, simulated = (forms["nf4-64"].make(small) for forms in (FORMS, METHODS))
    torch.testing.assert_close(stored_codes.logits([1, 2, 3]), simulated.logits([1, 2, 3]))
    for name in quantizable(small.model):
        pair = (each.model.get_submodule(name).nbytes for each in (stored_codes, simulated))
        assert len(set(pair)) == 1


def test_an_unknown_method_is_refused(small):
    with pytest.raises(ValueError, match="unknown: gptq-64, int5; there are float32, bfloat16"):
        speeds(small, ["int5", "gptq-64", "float32"])


# --- The columns


def test_four_columns():
    whole = Speed("x", 1.234, 567.8, "cpu (avx2)", 9.0, 1234.4)
    assert columns(asdict(whole)).split() == ["1.2", "9.0", "568", "1,234"]
    floats = Speed("x", 12.34, 567.8, "cpu (avx2)", 99.96, None)
    assert columns(asdict(floats)).split() == ["12.3", "100.0", "568", "same"]
    bare = Speed("x", 1.0, 2.0, "no kernel reads it", None, None)
    assert columns(asdict(bare)).split() == ["1.0", "none", "2", "none"]


def test_the_table_has_both_halves_of_each_method():
    rows = stored("07.quality")["rows"]
    text = method_table(rows, stored("07.speed")["rows"]).removesuffix(f"\n{NOTE}")
    heads, names, *lines = text.split("\n")
    assert heads.split() == ["decode,", "tokens/s", "prefill,", "tokens/s"]
    assert len(lines) == len(METHODS)
    assert {len(line) for line in lines} == {len(names)} == {len(heads)}
    assert len(names) <= 100
    for row, line in zip(rows, lines, strict=True):
        assert line.startswith(row["title"])
        assert f"{row['kl']:.3f}" in line
    timed = {row["name"]: row for row in stored("07.speed")["rows"]}
    by_title = {line[:30].strip(): line for line in lines}
    assert by_title["GPTQ groups of 64"].endswith(columns(timed["int4-64"]))
    assert by_title["INT8 per channel"].endswith(columns(timed["int8-channel"]))
    assert by_title["KV cache INT4"].split()[3] == "5.50"


def test_the_command_prints_the_columns(small, capsys):
    tool = runpy.run_path(str(ROOT / "tools" / "quality.py"))
    tool["print_speeds"](small, ["float32", "int4-64", "gptq-64"])
    *_, full, rounded, calibrated = capsys.readouterr().out.splitlines()
    assert full.split()[:2] == ["float32", "float32"]
    assert rounded.split()[-6:] == calibrated.split()[-6:]


# --- What is stored


@pytest.fixture
def timed():
    return {row["name"]: row for row in stored("07.speed")["rows"]}


def test_what_is_stored_is_complete(timed):
    assert list(timed) == list(FORMS)
    assert {name for name, row in timed.items() if row["decode_kernel"] is None} == NONE
    assert "2 threads" in origin("07.speed")


def test_what_the_notebook_says_of_speed(timed):
    """Of the machine that the stored figures come from."""
    size = {row["name"]: row["model_bytes"] for row in stored("07.quality")["rows"]}
    size["float16"] = size["bfloat16"]

    def gain(one: str, other: str, field: str) -> float:
        return timed[one][field] / timed[other][field]

    # Claims 25 and 40: with a kernel, a step of decode takes less time as it reads fewer bytes.
    for one, other in (
        ("int8-embedding", "bfloat16"),
        ("int8-embedding", "float16"),
        ("int8-channel", "bfloat16"),
        ("bfloat16", "float32"),
    ):
        fewer = size[other] / size[one]
        assert gain(one, other, "decode_kernel") == pytest.approx(fewer, rel=0.1), (one, other)
    assert size["bfloat16"] / size["int8-embedding"] == pytest.approx(2, rel=0.02)
    # Without a kernel INT8 takes longer than 16 bits.
    for half in ("bfloat16", "float16"):
        assert gain("int8-channel", half, "decode") < 0.5
    # Prefill: where inputs are rounded too, or there are instructions for 16 bits.
    prefill = timed["int8-embedding"]["prefill_kernel"] / timed["bfloat16"]["prefill"]
    assert 1.4 < prefill < 2
    assert gain("bfloat16", "float32", "prefill") > 1.3
    assert gain("float16", "float32", "prefill") < 0.5
    # Weights are most of what a step reads, and a cache of so few tokens is little.
    for name in ("kv-int8", "kv-int4", "kv-int4-token"):
        assert 0.9 < gain(name, "float32", "decode_kernel") < 1.1
