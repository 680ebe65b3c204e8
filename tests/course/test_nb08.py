"""What notebook 08 stands on: the tape, the step by the clock, the stand-in, its figures."""

import json
import re
from pathlib import Path

import pytest
import torch

from minillm.bench import Ceilings
from minillm.config import LayerConfig, ModelConfig
from minillm.course import triton_stand_in as stand_in
from minillm.course.figures import nb08 as figures
from minillm.course.ledger import ledger
from minillm.course.measurements import nb08 as measurements
from minillm.course.precomputed import origin
from minillm.course.step_profile import PARTS, hollow, step_parts
from minillm.course.tape import record
from minillm.kernels.reference import quantized_linear
from minillm.kv_cache.dense import DenseKVCache
from minillm.layers import norm
from minillm.model import Transformer
from minillm.quantization.int4 import pack_nibbles, quantize_groups
from tests.course.outputs import printed

ROOT = Path(__file__).parents[2]
LIMITS = Ceilings(3e10, 2e11)


def tiny() -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=32,
        layers=(LayerConfig(),) * 2,
    )
    return Transformer(config).eval()


# --- The tape


def test_a_replay_reads_the_tensors_as_they_are_now():
    x, total = torch.ones(3), torch.zeros(3)
    result, tape = record(lambda: total.add_(x * 2))
    assert total.tolist() == [2, 2, 2]
    x.fill_(5)
    tape.replay()
    assert total.tolist() == [12, 12, 12]
    assert result.data_ptr() == total.data_ptr()


def test_what_is_a_python_number_while_recording_stays():
    position = torch.zeros(1)
    result, tape = record(lambda: torch.full((1,), int(position)) + 1)
    position.fill_(7)
    tape.replay()
    assert result.tolist() == [1]


def test_all_tensors_that_an_operator_gives_are_written_anew():
    x = torch.tensor([3.0, 1.0, 2.0])
    (values, places), tape = record(lambda: x.topk(2))
    halves, views = record(lambda: x.split(2))
    assert (len(tape.work), len(views.work), len(halves)) == (1, 0, 2)
    x.copy_(torch.tensor([0.0, 5.0, 4.0]))
    tape.replay()
    assert (values.tolist(), places.tolist()) == ([5, 4], [1, 2])


def test_views_count_as_calls_and_not_as_work():
    x = torch.arange(6.0).view(2, 3)
    result, tape = record(lambda: x.transpose(0, 1)[1] + 1)
    assert tape.calls == {"transpose": 1, "select": 1, "add": 1}
    assert [str(func) for func, *_ in tape.work] == ["aten.add.Tensor"]
    x[0, 1] = 10
    tape.replay()
    assert result.tolist() == [11, 5]


def test_a_recorded_step_of_a_model_gives_its_scores_again():
    model, cache = tiny(), DenseKVCache(tiny().config, 1, 9)
    token = torch.tensor([[3]])
    with torch.inference_mode():
        model(torch.tensor([[1, 2]]), cache)
    scores, tape = record(lambda: model.logits(model(token, cache)[:, -1]))
    cache.truncate([2])
    token.fill_(5)
    tape.replay()
    with torch.inference_mode():
        assert torch.allclose(scores, model.logits(model(token, cache)[:, -1]), atol=1e-6)


# --- A step by the clock


def test_the_parts_of_a_step_are_timed_and_nothing_is_left_behind():
    model = tiny()
    cache = DenseKVCache(model.config, 1, 9)
    with torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]), cache)
    ops, update = model.ops, cache.update
    parts = step_parts(model, cache, repeat=2)
    assert tuple(parts) == PARTS
    assert all(ms > 0 for ms in parts.values())
    assert cache.lengths.tolist() == [3]
    assert model.ops is ops
    assert cache.update == update
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_hollow_model_runs_the_operators_of_the_real_one(llm):
    def operators(model):
        cache = DenseKVCache(model.config, 1, 9)
        with torch.inference_mode():
            model(torch.tensor([[1, 2, 3]]), cache)
        _, tape = record(lambda: model.logits(model(torch.tensor([[1]]), cache)[:, -1]))
        return tape.calls

    assert operators(hollow(llm)) == operators(llm.model)
    assert hollow(llm).config.num_parameters() < 1e6


# --- The stand-in for Triton


def run_here(name: str) -> dict:
    """A module of the package's kernels, executed with the stand-in in place of Triton."""
    text = (ROOT / "minillm" / "kernels" / "triton" / f"{name}.py").read_text("utf-8")
    text = text.replace("import triton\nimport triton.language as tl\n", "")
    text = text.replace("[: 1 if triton.knobs.runtime.interpret else None]", "")
    namespace = {"triton": stand_in, "tl": stand_in.language, "__name__": name}
    exec(text, namespace)
    return namespace


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 7), (2, 64), (1, 100)])
def test_the_stand_in_runs_the_package_s_norm(rows, width, dtype):
    generator = torch.Generator().manual_seed(rows)
    x = (300 * torch.randn(rows, width, generator=generator)).to(dtype)
    weight = torch.rand(width, generator=generator).to(dtype)
    found = run_here("norm")["rms_norm"](x, weight, 1e-5)
    assert torch.allclose(found.float(), norm.rms_norm(x, weight, 1e-5).float(), rtol=1e-2)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_stand_in_runs_the_package_s_product(bits):
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(9, 96, generator=generator)
    q = quantize_groups(weight, 32, bits=bits)
    codes = pack_nibbles(q.codes) if bits == 4 else q.codes
    x = torch.randn(96, generator=generator)
    found = run_here("matvec")["quantized_matvec"](x, codes, q.scales, q.zeros, None, bits)
    right = quantized_linear(x, codes, q.scales, q.zeros, None, bits)
    assert torch.allclose(found, right, atol=1e-4)


def test_without_a_mask_the_stand_in_reads_the_neighbours_as_a_gpu_does():
    @stand_in.jit
    def total(x_ptr, out_ptr, C, BLOCK):
        row = stand_in.language.program_id(0)
        x = stand_in.language.load(x_ptr + row * C + stand_in.language.arange(0, BLOCK))
        stand_in.language.store(out_ptr + row, stand_in.language.sum(x, axis=0))

    x, out = torch.tensor([[1.0, 1, 1], [2, 2, 2], [0, 0, 0]]), torch.zeros(2)
    total[(2,)](x, out, 3, BLOCK=4)
    assert out.tolist() == [5, 6]
    with pytest.raises(ValueError, match="power of 2"):
        total[(2,)](x, out, 3, BLOCK=3)


def test_the_stand_in_starts_at_a_view_and_stores_only_what_the_mask_lets_through():
    language = stand_in.language

    @stand_in.jit
    def copy(x_ptr, out_ptr, n):
        place = language.arange(0, 4)
        language.store(out_ptr + place, language.load(x_ptr + place, place < n), place < n)

    out = torch.full((6,), -1.0)
    copy[(1,)](torch.arange(10.0)[5:], out[1:], 3)
    assert out.tolist() == [-1, 5, 6, 7, -1, -1]


# --- Figures and stored figures


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.step_parts({"a": {"x": 3.0, "y": 1.0}, "b": {"x": 0.5, "y": 0.2}}),
        lambda: figures.three_bounds([0.1, 10], [2, 400], [1, 8], [400, 900], LIMITS),
        lambda: figures.roofline({"a": (0.5, 4e9), "b": (100, 1e11)}, LIMITS),
        lambda: figures.speeds(
            [
                {"name": "float32", "engine": "PyTorch", "megabytes": 500, "ms": 50},
                {"name": "float32", "engine": "C++ step", "megabytes": 500, "ms": 20},
            ],
            3e10,
        ),
    ],
)
def test_figures_say_their_numbers_in_words(draw, words_of):
    assert re.search(r"\d", words_of(draw))


def test_where_a_backend_cannot_run_the_reason_is_printed(monkeypatch, capsys, smollm2):
    monkeypatch.setenv("MINILLM_CPU", "off")
    assert measurements.opened(measurements.FILE) is None
    assert measurements.opened_on_gpu("no such backend") is None
    here, there = capsys.readouterr().out.splitlines()
    assert here.startswith("GGUF, 4 bits: ")
    assert "MINILLM_CPU=off" in here
    assert there.startswith("backend no such backend: ")


def test_what_was_stored_says_what_the_notebook_says():
    found = json.loads((ROOT / "data/precomputed/08.steps.json").read_text("utf-8"))["values"]
    ms = {(row["name"], row["engine"]): row["ms"] for row in found["rows"]}
    for form in measurements.FORMS:
        assert ms[form, "C++ step"] < ms[form, "PyTorch"]
    one_call = ms["float32", "PyTorch"] / ms["float32", "C++ step"]
    fewer_bytes = ms["float32", "C++ step"] / ms[measurements.FILE, "C++ step"]
    assert one_call > 2
    assert fewer_bytes > 2
    assert one_call * fewer_bytes > 8
    # Turned back into floats before each product, fewer bits take longer than none saved.
    assert all(ms[form, "PyTorch"] > ms["float32", "PyTorch"] for form in ("INT8", "INT4"))
    busiest = max(found["parts"]["PyTorch"], key=found["parts"]["PyTorch"].__getitem__)
    assert busiest == "products of the layers"
    assert measurements.limits_of(found).ridge > 1
    assert re.search(r"\d threads, \d{4}-\d\d-\d\d", origin("08.steps"))


def test_what_the_notebook_says_about_recorded_steps():
    live, naive = printed("08", "@torch.inference_mode()\ndef replayed").splitlines()
    right, frozen = printed("08", "class StaticCache").splitlines()
    assert live.partition("' Paris")[2] == right.partition("' Paris")[2]
    assert naive.partition("' Paris")[2] != right.partition("' Paris")[2]
    assert frozen.endswith(r"' Paris.\nParis.\nParis.\nParis.\n'")


def test_the_operators_are_as_many_as_the_notebook_says():
    step = printed("08", "@torch.inference_mode()\ndef step")
    count, work = (int(n.replace(",", "")) for n in re.findall(r"[\d,]{4,}", step)[:2])
    assert count == 2461
    assert round(work, -1) == 1270


def test_what_the_ledger_says_of_bytes():
    found = json.loads((ROOT / "data/precomputed/08.steps.json").read_text("utf-8"))["values"]
    rows = {(row["name"], row["engine"]): row for row in found["rows"]}
    before, after = rows["bfloat16", "C++ step"], rows["INT8", "C++ step"]
    [claim] = [row for row in ledger().rows if row.claim == 25]
    said = f"{before['megabytes']:.0f} MB per token become {after['megabytes']:.0f} "
    assert said in claim.outcome
    # "The time falls as much": within a fifth of what the bytes do.
    bytes_fell, time_fell = (before[key] / after[key] for key in ("megabytes", "ms"))
    assert time_fell == pytest.approx(bytes_fell, rel=0.2)
    assert rows["INT8", "PyTorch"]["ms"] > rows["float32", "PyTorch"]["ms"]
