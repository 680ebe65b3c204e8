"""What fewer bits cost on the real model: the orderings, the table, and how it is measured."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from minillm import LLM
from minillm.calibration import course_calibration_text
from minillm.course import quality, storage
from minillm.course.precomputed import stored
from minillm.course.probes import CORPUS
from minillm.course.quality import METHODS, TOKENS, Claim, Quality, claims, measure, one_window
from minillm.quantization.blocks import BlockLinear
from minillm.quantization.linear import QuantizedLinear, quantizable
from tests.checkout import ROOT
from tests.small_model import small_llm

CLAIMS = 9
# The methods that they are about, but GPTQ with activation order.
CLAIMED = ["float32", "int8-channel", "int4-64", "gptq-64", "awq-64"]
CLAIMED += ["gguf", "kv-int8", "kv-int4", "kv-int4-token"]
# The small model's linear layers, both of them: weights, and rows per weight.
WEIGHTS, ROWS = 2 * 122_880, 896 / 122_880
# Bits per weight, by hand: a scale of 2 bytes and a zero point of 1 per row, or per group of 64.
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
    "gptq-64": 4 + 24 / 64,
    "awq-64": 4 + 24 / 64,
    "kv-int4": 32,
}
IDS = list(range(1_000, 1_064))


@pytest.fixture(scope="module")
def small(llm) -> Iterator[LLM]:
    """A small model, for which a few calibration tokens do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "calibration_ids", lambda tokenizer: [IDS, IDS[::-1]])
        yield small_llm(llm.tokenizer, vocab_size=49_152)


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
    assert not [claim for claim in found if not claim.holds]


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
    assert [row["name"] for row in rows] == CLAIMED
    for row in rows:
        record_property("figure", as_text(Quality(**row)))
    if sys.platform == "linux":
        peak = re.search(r"resident memory ([\d.]+) GB", run.stdout)
        assert peak, run.stdout
        record_property("figure", f"quality: peak of resident memory {peak[1]} GB (limit 1.5)")
        assert float(peak[1]) < 1.5


@pytest.mark.parametrize("name", BITS)
def test_bits_and_bytes_of_a_method(small, name):
    found = measure(small, name, one_window(small, IDS), IDS)
    assert found.bits == pytest.approx(BITS[name], abs=1e-4)
    # The embedding has 49,152 rows of 128.
    embedding = 49_152 * (128 * 8 + 24) if name == "int8-embedding" else 49_152 * 128 * 32
    others = 5 * 128 * 32  # norms
    if name == "bfloat16":
        embedding, others = embedding // 2, others // 2
    bits = WEIGHTS * BITS[name] + embedding + others
    assert found.model_bytes == pytest.approx(bits / 8, rel=1e-6)


def test_full_precision_differs_from_itself_by_nothing(small):
    found = measure(small, "float32", one_window(small, IDS), IDS)
    assert (found.kl, found.same_top, found.cache_bits) == (0, 1, 32)


@pytest.mark.parametrize("name", METHODS.keys() - {"gguf"})
def test_the_first_model_stays_as_it_is(small, name):
    before, weights = small.logits(IDS), small.model.state_dict()
    copies = {name: weight.clone() for name, weight in weights.items()}
    changed = METHODS[name].make(small)
    assert torch.equal(changed.logits(IDS), before) is (name == "float32")
    assert torch.equal(small.logits(IDS), before)
    assert all(torch.equal(weights[name], copy) for name, copy in copies.items())
    assert all(type(linear) is nn.Linear for linear in quantizable(small.model).values())


def test_rounded_weights_are_what_the_layers_compute_with(small):
    """Against the same model with dequantized weights in plain layers."""
    changed = METHODS["int4-64"].make(small)
    found = changed.logits(IDS)
    for name, linear in quantizable(small.model).items():
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
    torch.testing.assert_close(found, changed.logits(IDS))


def test_a_simulated_layer_rounds_and_counts():
    linear = nn.Linear(8, 4)
    layer = storage.Simulated(linear, torch.round, bits=4.25)
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), x @ linear.weight.round().T + linear.bias)
    assert layer.nbytes == quality.stored_bytes(layer) == 4 * 8 * 4.25 / 8
    assert quality.stored_bytes(nn.Sequential(linear, layer)) == (4 * 8 + 4) * 4 + 17


def test_an_embedding_is_rounded_row_by_row(small):
    """The head computes with codes; what is looked up are the values that they stand for."""
    table = small.model.embed_tokens.weight
    changed = METHODS["int8-embedding"].make(small)
    found, head = changed.model.embed_tokens, changed.model.lm_head
    step = table.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((found.weight - table).abs() <= 0.505 * step).all())
    assert isinstance(head, QuantizedLinear)
    assert torch.equal(found.weight, head.quantized.dequantize())
    hidden = torch.randn(3, 128)
    torch.testing.assert_close(changed.model.logits(hidden), hidden @ found.weight.T)
    assert quality.stored_bytes(found) == 0
    assert quality.stored_bytes(head) == 49_152 * (128 + 3)


def test_what_two_modules_share_counts_once():
    one = nn.Linear(8, 4, bias=False)
    other = nn.Linear(8, 4)
    other.weight = one.weight
    assert quality.stored_bytes(nn.Sequential(one, nn.Sequential(other))) == (4 * 8 + 4) * 4


def test_the_file_s_own_blocks(llm):
    """The same weights, so that what differs is what inputs in 8 bits do."""
    changed = METHODS["gguf"].make(llm)
    name = "layers.3.mlp.up_proj"
    layer = changed.model.get_submodule(name)
    assert isinstance(layer, BlockLinear)
    torch.testing.assert_close(
        layer.blocks.dequantize(), llm.model.get_submodule(name).get_parameter("weight")
    )
    # 5 bits per weight of the layers, 8.5 of the embedding, which is the head; 61 norms of 576.
    weights = sum(linear.weight.numel() for linear in quantizable(llm.model).values())
    stored = weights * 5 // 8 + 49_152 * 576 * 34 // 32 + 61 * 576 * 4
    assert quality.stored_bytes(changed.model) == stored
    with pytest.raises(ValueError, match="was made in memory"):
        METHODS["gguf"].make(LLM(llm.model, llm.tokenizer, name="mine"))


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
    few = {name: table[name] for name in ("int4-64", "int8-channel", "kv-int4")}
    assert [claim.text for claim in claims(few)] == ["KL of int8-channel"]


def test_an_unknown_method_and_a_quantized_model_are_refused(small):
    with pytest.raises(ValueError, match="'int5'; there are float32, bfloat16"):
        measure(small, "int5", [], [1, 2])
    with pytest.raises(ValueError, match="no linear layers in floating point"):
        measure(METHODS["int8-channel"].make(small), "int4-64", [], [1, 2])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--only", "int5", "unknown: int5; there are float32"),
        ("--tokens", "2049", "--tokens is 2049; allowed are 2 to 2048"),
        ("--tokens", "1", "--tokens is 1; allowed are 2 to 2048"),
    ],
)
def test_the_command_refuses_what_it_cannot_measure(option, value, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quality.py", option, value])
    with pytest.raises(SystemExit):
        tool().main()
    assert message in capsys.readouterr().err


def test_the_command_says_pass_or_fail(table, capsys):
    print_claims = tool().print_claims
    assert print_claims(table) is True
    assert capsys.readouterr().out.count("PASS") == CLAIMS
    worse = table | {"awq-64": replace(table["awq-64"], kl=1.0)}
    assert print_claims(worse) is False
    assert "FAIL  KL of awq-64" in capsys.readouterr().out


def tool() -> SimpleNamespace:
    """What tools/quality.py defines."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "tools" / "quality.py")))


def test_calibration_and_evaluation_text_have_nothing_in_common(llm):
    calibration = course_calibration_text()
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
