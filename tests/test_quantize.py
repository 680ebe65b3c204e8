"""Quantizing whole models: what is replaced, by which codes, from which inputs."""

from typing import Any

import pytest
import torch
from torch import nn

from minillm.calibration import Stream
from minillm.kv_cache import new_cache
from minillm.quantization.awq import fold_block
from minillm.quantization.gptq import gptq
from minillm.quantization.int4 import Quantized
from minillm.quantization.linear import QuantizedLinear, quantizable
from minillm.quantization.scheme import Scheme
from minillm.quantization.statistics import Statistics, output_error
from minillm.quantize import Report, quantize_model
from tests.parity import measure
from tests.parity.models import RICHEST, saved, token_ids

SCHEMES = {
    "int8": Scheme("int8", 8, -1, symmetric=True),
    "int4": Scheme("int4", 4, 8, symmetric=False),
    "gptq": Scheme("gptq", 4, 8, symmetric=False),
    "gptq-order": Scheme("gptq", 3, -1, symmetric=True, act_order=True),
    "awq": Scheme("awq", 4, 8, symmetric=False),
}
CALIBRATION = [token_ids(1, n, seed=n)[0].tolist() for n in (60, 60, 45, 40)]


def tiny(name: str) -> Any:
    return measure.ours(saved(name))


def quantized(name: str, scheme: Scheme, calibration=CALIBRATION) -> tuple[Any, Report]:
    model = tiny(name)
    return model, quantize_model(model, scheme, calibration)


def codes(model: nn.Module) -> dict[str, Quantized]:
    return {
        name: module.quantized
        for name, module in model.named_modules()
        if isinstance(module, QuantizedLinear)
    }


def assert_same(found: Quantized, expected: Quantized) -> None:
    assert found.bits == expected.bits
    assert (found.order is None) == (expected.order is None)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", RICHEST.values())
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_every_family_and_method(name, scheme):
    before = tiny(name)
    model, report = quantized(name, scheme)
    replaced = codes(model)
    assert replaced.keys() == quantizable(before).keys()
    assert not quantizable(model)
    assert report.layers == len(replaced)
    linears = quantizable(before).values()
    assert report.bytes_before == sum(x.nbytes for linear in linears for x in linear.parameters())
    assert report.bytes_after == sum(
        module.nbytes for module in model.modules() if isinstance(module, QuantizedLinear)
    )
    for key, value in before.state_dict().items():
        if "norm" not in key and key.rpartition(".")[0] not in replaced:
            kept = scheme.method != "awq" or not key.endswith("mlp.gate.weight")
            assert torch.equal(model.state_dict()[key], value) or not kept
    ids = token_ids(1, 30, seed=9)
    logits = model.logits(model(ids, new_cache(model.config, 1, 30)))
    assert logits.isfinite().all()


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_rounding_needs_no_text(method):
    scheme = SCHEMES[method]
    model, report = quantized("llama-biased", scheme, ())
    for name, linear in quantizable(tiny("llama-biased")).items():
        assert_same(codes(model)[name], scheme.round(linear.weight))
        assert torch.equal(model.get_submodule(name).bias, linear.bias)
    assert not report.errors
    assert not report.rounded
    assert f"{report.layers} layers quantized with {method}" in str(report)


@torch.no_grad()
def statistics_before(model: Any, name: str) -> Statistics:
    """What a layer is given when the whole model reads the calibration text."""
    statistics = Statistics(model.get_submodule(name).in_features)
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda module, inputs: statistics.add(inputs[0])
    )
    for ids in CALIBRATION:
        cache = new_cache(model.config, 1, len(ids))
        model(torch.tensor([ids]), cache, lengths=torch.tensor([len(ids)]))
    hook.remove()
    return statistics


@pytest.mark.parametrize("name", ["llama-tied", "gemma3-scaled", "phi3-longrope-partial-window"])
def test_gptq_sees_the_inputs_that_the_quantized_blocks_before_give(name):
    scheme = SCHEMES["gptq"]
    found, report = quantized(name, scheme)
    model = tiny(name)
    assert report.rounded == ()
    for index, block in enumerate(model.layers):
        paths = [f"layers.{index}.{path}" for path in quantizable(block)]
        seen = {path: statistics_before(model, path) for path in paths}
        for path in paths:
            weight = model.get_submodule(path).weight
            ours = codes(found)[path].dequantize()
            theirs = gptq(weight, seen[path].hessian, 8).dequantize()
            # Codes at the border between two may fall either way with the order of summation.
            assert (ours != theirs).float().mean() < 0.02
            errors = [output_error(w - weight, seen[path].hessian) for w in (ours, theirs)]
            assert errors[0] == pytest.approx(errors[1], rel=0.02)
        model.layers[index] = found.layers[index]


def test_awq_rounds_what_was_folded():
    found, _ = quantized("qwen2", SCHEMES["awq"])
    model = tiny("qwen2")
    block = model.layers[0]
    seen = {path: statistics_before(model, f"layers.0.{path}") for path in quantizable(block)}
    fold_block(block, seen, SCHEMES["awq"])
    for path, linear in quantizable(block).items():
        expected = SCHEMES["awq"].round(linear.weight).dequantize()
        ours = codes(found)[f"layers.0.{path}"].dequantize()
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", [SCHEMES["gptq-order"], SCHEMES["awq"]], ids=["gptq", "awq"])
def test_the_same_text_gives_the_same_codes(scheme):
    first, second = (codes(quantized("qwen3-moe", scheme)[0]) for _ in range(2))
    for name, expected in first.items():
        assert_same(second[name], expected)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_weights_that_others_may_read_are_not_written_to(scheme):
    """A loaded weight is a view of a file, and of a tensor that holds several layers' weights."""
    model = tiny("phi3-window")
    held = dict(model.state_dict())
    before = {name: value.clone() for name, value in held.items()}
    quantize_model(model, scheme, CALIBRATION)
    for name, value in held.items():
        assert torch.equal(value, before[name]), name


def test_an_expert_that_too_few_tokens_reached_is_rounded():
    model = tiny("mixtral")
    with torch.no_grad():  # of four experts the router now chooses the same two for all tokens
        gate = model.layers[1].mlp.gate
        gate.weight = nn.Parameter(torch.zeros_like(gate.weight))
    before = quantizable(tiny("mixtral"))
    scheme = SCHEMES["gptq"]
    report = quantize_model(model, scheme, CALIBRATION)
    idle = [name for name in report.rounded if name.startswith("layers.1.")]
    assert len(idle) == 2 * 3
    assert all(".mlp.experts." in name for name in idle)
    for name in idle:
        assert_same(codes(model)[name], scheme.round(before[name].weight))
    assert f"{len(report.rounded)} only rounded" in str(report)


def test_errors_are_those_of_each_block():
    scheme = SCHEMES["gptq"]
    found, report = quantized("llama-tied", scheme)
    assert len(report.errors) == len(found.layers)
    model = tiny("llama-tied")
    with torch.no_grad():
        stream = Stream(model, CALIBRATION)
        before = torch.cat(stream.hidden, dim=1)
        exact = torch.cat(stream.through(model.layers[0]), dim=1)
        ours = torch.cat(stream.through(found.layers[0]), dim=1)
    expected = (ours - exact).square().sum() / (exact - before).square().sum()
    assert report.errors[0] == pytest.approx(expected.item(), rel=1e-3)
    assert 0 < max(report.errors) < 0.2


def test_q05_a_group_size_that_does_not_divide_changes_nothing():
    model = tiny("llama-tied")
    with pytest.raises(ValueError, match="group_size is 32, which does not divide the width of 48"):
        quantize_model(model, Scheme("int4", 4, 32, symmetric=False))
    assert not codes(model)


@pytest.mark.parametrize(
    ("calibration", "message"),
    [((), "no calibration text"), ([[1, 97]], "allowed are 0 to 96"), ([[]], "has 0 tokens")],
)
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_bad_calibration_changes_nothing(method, calibration, message):
    model = tiny("llama-tied")
    with pytest.raises(ValueError, match=message):
        quantize_model(model, SCHEMES[method], calibration)
    assert not codes(model)


def test_a_sequence_longer_than_the_context_is_refused():
    model = tiny("llama-tied")
    with pytest.raises(ValueError, match="has 129 tokens; 1 to 128"):
        quantize_model(model, SCHEMES["gptq"], [[5] * 129])


def test_a_model_that_is_quantized_already_is_refused():
    model, _ = quantized("llama-tied", SCHEMES["int4"])
    with pytest.raises(ValueError, match="no linear layers in floating point"):
        quantize_model(model, SCHEMES["int8"])


@pytest.mark.parametrize("method", ["int4", "gptq", "awq"])
def test_a_weight_that_is_not_finite_is_named(method):
    model = tiny("llama-tied")
    weight = model.layers[1].mlp.up_proj.weight.clone()
    weight[3, 4] = torch.nan
    model.layers[1].mlp.up_proj.weight = nn.Parameter(weight)
    with pytest.raises(ValueError, match=r"^layers\.1\b.*(NaN|nan)"):
        quantize_model(model, SCHEMES[method], CALIBRATION)


def test_no_bar_where_stderr_is_no_terminal(capfd):
    quantized("llama-tied", SCHEMES["gptq"])
    assert capfd.readouterr() == ("", "")


def test_report_in_words():
    report = Report(SCHEMES["gptq"], 210, 424_673_280, 58_060_800, (0.01, 0.0123), ())
    assert str(report) == (
        "210 layers quantized with gptq: 424.7 → 58.1 MB; a block's output is off by 1.23% of its "
        "square at most"
    )
