"""What fewer bits cost on the real model: the orderings, the table, and how it is measured."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources

import pytest
import torch
from torch import nn

from minillm.course.precomputed import stored
from minillm.course.probes import CORPUS, doc_ids
from minillm.course.quality import TOKENS, Claim, Quality, claims, measure, stored_bytes
from minillm.course.storage import METHODS, RoundedEmbedding, Simulated
from minillm.eval import read
from minillm.quantization.linear import QuantizedLinear, quantizable
from tests.checkout import ROOT

CLAIMS = 8
# The methods that they are about, but GPTQ with activation order.
CLAIMED = (
    "float32",
    "int8-channel",
    "int4-64",
    "gptq-64",
    "awq-64",
    "kv-int8",
    "kv-int4",
    "kv-int4-token",
)
# Bits per weight of SmolLM2's linear layers, by hand: a scale of 2 bytes and a zero point of 1 per
# row, of which 106,168,320 weights have 155,520; or per group of 64.
ROWS = 155_520 / 106_168_320
BITS = {
    "float32": 32,
    "bfloat16": 16,
    "int8-tensor": 8,
    "int8-channel": 8 + 24 * ROWS,
    "int8-activations": 8 + 32 * ROWS,
    "int8-embedding": 8 + 24 * ROWS,
    "int4-channel": 4 + 24 * ROWS,
    "int4-64": 4 + 24 / 64,
    "nf4-64": 4 + 16 / 64,
    "kv-int4": 32,
}


@pytest.fixture(scope="module")
def table() -> dict[str, Quality]:
    return {row["name"]: Quality(**row) for row in stored("07.quality")["rows"]}


def test_the_stored_table_has_every_method_at_a_context_of_2048(table):
    assert list(table) == list(METHODS)
    assert stored("07.quality")["tokens"] == TOKENS
    assert [row.title for row in table.values()] == [m.title for m in METHODS.values()]


def test_the_orderings_hold_in_the_stored_table(table, record_property):
    found = list(claims(table))
    assert len(found) == CLAIMS
    for row in table.values():
        record_property("figure", as_text(row))
    for claim in found:
        assert claim.holds, claim


@pytest.mark.slow
def test_the_orderings_hold_measured_anew_within_the_memory(smollm2, tmp_path, record_property):
    """`make quality` at half the context, with the methods that the orderings are about."""
    target = tmp_path / "quality.json"
    command = [sys.executable, str(ROOT / "tools" / "quality.py"), "--tokens", "1024"]
    command += ["--model", str(smollm2), "--json", str(target), "--only", *CLAIMED]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("PASS") == CLAIMS - 1
    rows = json.loads(target.read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in rows] == list(CLAIMED)
    for row in rows:
        record_property("figure", as_text(Quality(**row)))
    if sys.platform == "linux":
        peak = re.search(r"resident memory ([\d.]+) GB", run.stdout)
        assert peak, run.stdout
        record_property("figure", f"quality: peak of resident memory {peak[1]} GB (limit 1.5)")
        assert float(peak[1]) < 1.5


@pytest.mark.parametrize("name", BITS)
def test_bits_and_bytes_of_a_method(llm, name):
    ids = doc_ids(llm, 40)
    found = measure(llm, name, list(read(llm, ids)), ids)
    assert found.bits == pytest.approx(BITS[name], abs=1e-4)
    # The embedding has 49,152 rows of 576; there are 61 norms of 576 numbers.
    embedding = 49_152 * (576 * 8 + 24) if name == "int8-embedding" else 49_152 * 576 * 32
    others = 61 * 576 * 32
    if name == "bfloat16":
        embedding, others = embedding // 2, others // 2
    assert found.model_bytes == pytest.approx(
        (106_168_320 * BITS[name] + embedding + others) / 8, rel=1e-6
    )


def test_full_precision_differs_from_itself_by_nothing(llm):
    ids = doc_ids(llm, 40)
    found = measure(llm, "float32", list(read(llm, ids)), ids)
    assert (found.kl, found.same_top, found.cache_bits) == (0, 1, 32)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if "gptq" not in name and "awq" not in name]
)
def test_the_first_model_stays_as_it_is(llm, name):
    ids = doc_ids(llm, 12)
    before = llm.logits(ids)
    changed = METHODS[name].make(llm)
    assert changed.model is not llm.model or name == "kv-int4-token"
    if name != "float32" and not name.startswith("kv"):
        assert not torch.equal(changed.logits(ids), before)
    assert torch.equal(llm.logits(ids), before)
    assert all(type(linear) is nn.Linear for linear in quantizable(llm.model).values())


def test_rounded_weights_are_what_the_layers_compute_with(llm):
    """Against the same model with dequantized weights in plain layers."""
    ids = doc_ids(llm, 30)
    changed = METHODS["int4-64"].make(llm)
    found = changed.logits(ids)
    for name, linear in quantizable(llm.model).items():
        layer = changed.model.get_submodule(name)
        assert isinstance(layer, QuantizedLinear)
        weight = linear.weight.view(-1, 64)
        low, high = weight.amin(1, keepdim=True).clamp(max=0), weight.amax(1, keepdim=True)
        step = ((high.clamp(min=0) - low) / 15).half().float()
        off = (layer.quantized.dequantize().view(-1, 64) - weight).abs()
        # At most half a step, with what float16 takes from the scale and rounding from the zero.
        assert bool((off <= 0.51 * step + 0.002 * step * 15).all()), name
        plain = nn.Linear(linear.in_features, linear.out_features, bias=False)
        plain.weight = nn.Parameter(layer.quantized.dequantize(), requires_grad=False)
        parent, _, child = name.rpartition(".")
        setattr(changed.model.get_submodule(parent), child, plain)
    torch.testing.assert_close(found, changed.logits(ids), rtol=1e-4, atol=1e-3)


def test_a_simulated_layer_rounds_and_counts():
    linear = nn.Linear(8, 4)
    layer = Simulated(linear, torch.round, bits=4.25)
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), x @ linear.weight.round().T + linear.bias)
    assert layer.nbytes == stored_bytes(layer) == 4 * 8 * 4.25 / 8
    assert stored_bytes(nn.Sequential(linear, layer)) == (4 * 8 + 4) * 4 + 17


def test_an_embedding_is_rounded_row_by_row():
    table = torch.randn(10_000, 6) * torch.logspace(-3, 3, 10_000)[:, None]
    found = RoundedEmbedding(table)
    step = table.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((found.weight - table).abs() <= 0.505 * step).all())
    assert max(len(row.unique()) for row in found.weight) == 6
    assert stored_bytes(found) == 10_000 * (6 + 3)


def test_a_broken_ordering_is_found(table):
    worse = table | {
        "awq-64": replace(table["awq-64"], kl=table["int4-64"].kl),
        "kv-int8": replace(table["kv-int8"], perplexity=1.002 * table["float32"].perplexity),
        "int8-channel": replace(table["int8-channel"], kl=float("nan")),
    }
    failed = [claim.text for claim in claims(worse) if not claim.holds]
    assert failed == [
        "KL of awq-64 over that of int4-64",
        "KL of int8-channel",
        "perplexity of kv-int8, relative change",
    ]
    assert Claim("as large as the limit", 1.0, 1.0).holds is False


def test_orderings_need_both_of_their_methods(table):
    few = {name: table[name] for name in ("int4-64", "int8-channel", "kv-int4")}
    assert [claim.text for claim in claims(few)] == ["KL of int8-channel"]


def test_an_unknown_method_is_refused(llm):
    with pytest.raises(ValueError, match="'int5'; there are float32, bfloat16"):
        measure(llm, "int5", [], [1, 2])


def test_the_command_refuses_what_it_cannot_measure():
    def refusal(*options: str) -> str:
        command = [sys.executable, str(ROOT / "tools" / "quality.py"), *options]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 2
        return run.stderr

    assert "unknown: int5; there are float32" in refusal("--only", "int5", "int4-64")
    assert "--tokens is 2049; allowed are 2 to 2048" in refusal("--tokens", "2049")
    assert "--tokens is 1;" in refusal("--tokens", "1")


def test_calibration_and_evaluation_text_have_nothing_in_common(llm):
    package = resources.files("minillm.quantization") / "data" / "calibration.txt"
    calibration = package.read_text(encoding="utf-8")
    assert len(llm.tokenizer.encode(calibration)) >= 7_500
    shared = set(runs(calibration)) & set(runs(CORPUS.read_text(encoding="utf-8")))
    assert not shared


def runs(text: str, words: int = 6) -> Iterator[tuple[str, ...]]:
    """All runs of so many words."""
    found = re.findall(r"\w+", text.lower())
    return zip(*(found[i:] for i in range(words)), strict=False)


def as_text(row: Quality) -> str:
    return (
        f"quality: {row.title:<30} {row.bits:5.2f} bits, cache {row.cache_bits:5.2f}, "
        f"{row.model_bytes / 1e6:5.1f} MB, perplexity {row.perplexity:6.3f}, KL {row.kl:.4f}, "
        f"same top {row.same_top:.3f}"
    )
