"""Quantized models through the front door: on loading, through files, and in memory."""

import json
import subprocess
import sys

import pytest
import torch

from minillm import LLM, SamplingParams
from minillm.cli import main
from minillm.hf_config import read_config
from minillm.inspection import cache_bytes, quantized_bytes, quantized_cache_bytes
from minillm.kv_cache import new_cache
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.model import Transformer
from minillm.quantization.linear import QuantizedLinear, quantizable
from minillm.quantization.scheme import Scheme
from minillm.quantize import quantize_model
from minillm.weights.checkpoint import Checkpoint
from minillm.weights.save import save_folder
from tests.published import PUBLISHED

PROMPT = "The capital of France is"
THREE = SamplingParams(max_new_tokens=3)


def stored_bytes(model):
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize(("quantize", "group_size"), [("int8", None), ("int4", None), ("int4", 32)])
def test_rounded_on_loading(quantize, group_size):
    llm = LLM.from_pretrained("smollm2", quantize=quantize, group_size=group_size)
    layers = [m for m in llm.model.modules() if isinstance(m, QuantizedLinear)]
    assert len(layers) == 7 * 30
    assert not quantizable(llm.model)
    assert stored_bytes(llm.model) == quantized_bytes(llm.config, quantize, 4, group_size)
    assert llm.generate(PROMPT, THREE).text.startswith(" Paris")


def test_rounding_on_loading_is_rounding_afterwards():
    scheme = Scheme("int4", bits=4, group_size=64, symmetric=False)
    early = LLM.from_pretrained("smollm2", quantize=scheme)
    late = LLM.from_pretrained("smollm2")
    quantize_model(late.model, scheme)
    first, second = early.model.state_dict(), late.model.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_bfloat16_beside_the_codes():
    llm = LLM.from_pretrained("smollm2", quantize="int4", dtype="bfloat16")
    assert stored_bytes(llm.model) == quantized_bytes(llm.config, "int4", 2)
    assert llm.generate(PROMPT, THREE).text.startswith(" Paris")


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantized_cache(kind):
    llm = LLM.from_pretrained("smollm2", kv_cache=kind)
    cache = llm.new_cache(1, 500)
    assert isinstance(cache, QuantizedKVCache)
    assert cache.nbytes == quantized_cache_bytes(llm.config, 500, int(kind[3:]), 4)
    text = "One, two, three, four, five. " * 12
    out = llm.generate(text, SamplingParams(max_new_tokens=40))
    exact = LLM.from_pretrained("smollm2").generate(text, SamplingParams(max_new_tokens=40))
    assert out.text[:20] == exact.text[:20]
    assert out.stats.cache_bytes < exact.stats.cache_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int5"}, "'int5'; known are int8, int4"),
        ({"quantize": "gptq"}, "'gptq', which needs calibration text: `minillm quantize`"),
        ({"quantize": "int4", "group_size": 128}, "128, which does not divide the width of 576"),
        ({"quantize": "int4", "group_size": 0}, "group_size is 0"),
        ({"group_size": 64}, "group_size is 64, but nothing is quantized"),
        ({"kv_cache": "int2"}, "'int2'; known are int8, int4"),
    ],
)
def test_q05_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LLM.from_pretrained("smollm2", **options)


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_command_and_file_give_the_same_logits(tmp_path, capsys, method):
    folder = tmp_path / "out"
    assert main(["quantize", "smollm2", "--method", method, "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(folder)
    assert "210 layers quantized" in err
    written, made = LLM.from_pretrained(folder), LLM.from_pretrained("smollm2", quantize=method)
    ids = made.tokenizer.encode(PROMPT)
    assert torch.equal(written.logits(ids), made.logits(ids))
    assert main(["inspect", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["weight bytes"]["quantized + float32"] == stored_bytes(written.model)
    with pytest.raises(ValueError, match="the model's files are quantized"):
        LLM.from_pretrained(folder, quantize="int4")


def test_command_does_not_begin_what_it_could_not_write(tmp_path, capsys):
    (tmp_path / "there").write_text("mine")
    arguments = ["quantize", "smollm2", "--method", "int4", "--out", str(tmp_path)]
    assert main(arguments) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a random model of two small layers, and SmolLM2's tokenizer."""
    llm = LLM.from_pretrained("smollm2")
    assert llm.source
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    settings = llm.source.settings | sizes | heads
    torch.manual_seed(0)
    weights = Checkpoint(Transformer(read_config(settings)), "llama")
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return save_folder(folder, settings=settings, weights=weights, tokenizer=llm.tokenizer)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_command_with_calibration(tiny, tmp_path, capsys, method):
    folders = [tmp_path / name for name in ("first", "second", "other")]
    arguments = ["quantize", str(tiny), "--method", method, "--group-size", "16"]
    for folder, seed in zip(folders, ("1", "1", "2"), strict=True):
        options = ["--calibration-tokens", "1024", "--seed", seed]
        assert main([*arguments, "--out", str(folder), *options]) == 0
        assert "14 layers quantized" in capsys.readouterr().err
    first, second, other = (LLM.from_pretrained(folder) for folder in folders)
    ids = first.tokenizer.encode("One passage decides what another costs.")
    assert torch.equal(first.logits(ids), second.logits(ids))
    assert not torch.equal(first.logits(ids), other.logits(ids))
    exact = LLM.from_pretrained(tiny).logits(ids)
    assert 0 < (first.logits(ids) - exact).norm() / exact.norm() < 0.3


def test_command_with_a_text_of_ones_own(tiny, tmp_path, capsys):
    text = tmp_path / "mine.txt"
    text.write_text("The river rises in spring, and the fields along it are flooded. " * 100)
    calibration = ["--calibration", str(text), "--calibration-tokens", "512"]
    arguments = ["quantize", str(tiny), "--method", "gptq", "--group-size", "32", *calibration]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    text.write_text("Too short.")
    assert main([*arguments, "--out", str(tmp_path / "other")]) == 1
    assert "the calibration text has 3 tokens; at least 512" in capsys.readouterr().err


@pytest.mark.parametrize("name", PUBLISHED)
def test_predicted_bytes_of_published_models(name):
    from minillm.hf_config import read_config

    config = read_config(PUBLISHED[name][0])
    if any(layer.sinks for layer in config.layers):
        pytest.skip("a quantized cache turns no sinks")
    for bits in (8, 4):
        cache = new_cache(config, 1, 100, dtype=torch.bfloat16, kind=f"int{bits}")
        assert quantized_cache_bytes(config, 100, bits, 2) == cache.nbytes


RESIDENT = """
import gc, sys
import psutil, torch
from minillm import LLM, SamplingParams
from minillm.quantization.memory import trim

def resident():
    gc.collect(); trim()
    return psutil.Process().memory_info().rss

def touched(cache):
    stores = cache.keys, cache.values
    for x in [t for s in stores for t in ([*s.blocks, s.open] if hasattr(s, "open") else [s])]:
        x.fill_(1)
    return cache

llm = LLM.from_pretrained("smollm2", **eval(sys.argv[1]))
llm.generate("The capital of France is", SamplingParams(max_new_tokens=2))
for x in [*llm.model.parameters(), *llm.model.buffers()]:
    x.max()  # pages of a mapped file count once they are read
cache = touched(llm.new_cache(4, 8192))
everything = resident()
del cache
without_cache = resident()
del llm.model, x
print(without_cache - resident(), everything - without_cache)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux counts pages")
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_resident_memory_is_as_predicted(bits, record_property):
    kind = bits and f"int{bits}"
    options = {"quantize": kind, "kv_cache": kind}
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, repr(options)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    model, cache = map(int, done.stdout.split())
    config = LLM.from_pretrained("smollm2").config
    weights = quantized_bytes(config, kind, 4) if kind else 4 * config.num_parameters()
    stored = quantized_cache_bytes(config, 8192, bits, 4) if bits else cache_bytes(config, 8192, 4)
    figures = {"weights": (model, weights), "cache of 4 rows": (cache, 4 * stored)}
    for what, (found, predicted) in figures.items():
        ratio = found / predicted
        text = f"{kind or 'float32'}, {what}: {found:,} bytes resident, {ratio:.3f} of predicted"
        record_property("figure", text)
        assert 0.95 < ratio < 1.05, text
