"""What notebook 05 shows: the cache calculator, its figures, its measurements, its statements."""

import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.course import plots
from minillm.course.cache_calculator import (
    GIB,
    MODELS,
    cache_bytes,
    calculator,
    equal_context,
    largest_batch,
    size,
    view,
    weight_bytes,
)
from minillm.course.figures import nb05 as figures
from minillm.course.measurements.nb05 import ConcatCache, crossing, fill, run_ms, step_ms
from minillm.kv_cache.dense import DenseKVCache
from minillm.model import Transformer
from tests.course.outputs import printed

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "05_kv_cache_decode.ipynb"


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# (vocabulary, width, MLP width, tied): what a shape leaves out.
REST = {
    "SmolLM2 135M": (49_152, 576, 1_536, True),
    "Llama 2 7B": (32_000, 4_096, 11_008, False),
    "Llama 3 8B": (128_256, 4_096, 14_336, False),
    "Llama 13B": (32_000, 5_120, 13_824, False),
    "Llama 2 70B": (32_000, 8_192, 28_672, False),
    "Qwen3 0.6B": (151_936, 1_024, 3_072, True),
}


@pytest.mark.parametrize("name", REST)
def test_parameters_and_bytes_follow_from_the_shape(name):
    shape, (vocabulary, width, mlp, tied) = MODELS[name], REST[name]
    config = ModelConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        layers=(LayerConfig(),) * shape.layers,
        tie_word_embeddings=tied,
        qk_norm="head" if name.startswith("Qwen3") else "none",
    )
    assert config.num_parameters() == shape.parameters
    assert config.cache_bytes_per_token(2) == cache_bytes(shape, 1)


def test_the_claims_about_memory():
    llama_13b, llama_7b, smollm2 = (
        MODELS[name] for name in ("Llama 13B", "Llama 2 7B", "SmolLM2 135M")
    )
    assert cache_bytes(llama_13b, 1) == 819_200
    assert cache_bytes(llama_13b, 4096) == 3.125 * GIB
    assert cache_bytes(MODELS["Llama 3 8B"], 1) * 4 == cache_bytes(llama_7b, 1)
    assert [largest_batch(llama_7b, n, 24 * GIB) for n in (4096, 8192)] == [5, 2]
    assert round((24 * GIB - weight_bytes(llama_7b)) / cache_bytes(llama_7b, 1), -2) == 23_400
    assert [round(equal_context(smollm2, batch, 32)) for batch in (1, 8)] == [11_677, 1_460]
    assert equal_context(smollm2) > smollm2.context
    assert cache_bytes(smollm2, 1, bits=32) == 46_080
    assert largest_batch(MODELS["GPT-3 175B"], 2048, 80 * GIB) == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(576, "576 bytes"), (23_040, "22.5 KiB"), (819_200, "800 KiB"), (2**31, "2 GiB")],
)
def test_size(count, text):
    assert size(count) == text


def test_the_calculator_says_what_fits():
    shown = plain(view("Llama 2 7B", 8192, 2, "16 bits", "24 GiB"))
    assert "One token: 512 KiB" in shown
    assert "2 × 8,192 tokens: with the weights 20.6 GiB, which fits in 24 GiB" in shown
    assert "Largest batch at this length: 2 ." in shown
    assert "It was trained for 4,096 tokens." in shown
    shown = plain(view("Llama 13B", 4096, 1, "16 bits", "24 GiB"))
    assert "which does not fit in 24 GiB" in shown
    assert "Largest batch at this length: 0 ." in shown


def test_the_calculator_follows_its_inputs():
    panel = calculator()
    panel.widget()
    inputs = dict(zip(panel.state, (field for field, _ in panel.inputs), strict=True))
    assert list(inputs) == ["model", "tokens", "batch", "bits", "memory"]
    before = panel._output.value
    inputs["tokens"].value, inputs["model"].value = 8192, "Llama 3 8B"
    assert panel.state["tokens"] == 8192
    assert "1 × 8,192 tokens" in plain(panel._output.value)
    assert panel._output.value != before


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.positions_run(4, 6),
        lambda: figures.loops([32, 64, 128], [120, 180, 300], [50, 50, 51]),
        lambda: figures.loops([32, 64], [100, 110], [50, 50]),
        lambda: figures.caches([64, 512, 4096], [51, 76, 157], [50, 53, 67]),
        lambda: figures.operations([16, 32], {"a": [1, 4], "b": [1, 8]}),
        lambda: figures.roofline({"a": (0.5, 4e9), "b": (100, 8e10)}, 2e10, 1e11),
        lambda: figures.growth(["Llama 13B", "Llama 2 7B"]),
    ],
)
def test_figures_say_their_numbers_in_words(draw, words_of):
    assert re.search(r"\d", words_of(draw))


def test_positions_run_are_counted(monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "show", lambda fig, alt: shown.append(alt))
    figures.positions_run(4, 6)
    assert sum(range(4, 10)) == 39
    assert "triangle of 39" in shown[0]
    assert "newest: 9" in shown[0]
    plt.close("all")


@pytest.mark.parametrize(
    ("ys", "x"), [([1, 3, 7], 15.0), ([5, 6, 7], 0.0), ([1, 2, 3], None), ([1, 5, 9], 10.0)]
)
def test_crossing(ys, x):
    assert crossing([0, 10, 20], ys, 5) == x


def test_run_ms():
    assert run_ms([32, 64, 128], [10, 20, 20]) == 32 * 15 + 64 * 20
    assert run_ms([32], [10]) == 0


def small() -> Any:
    """As much of an `LLM` as a step needs."""
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
        layers=(LayerConfig(), LayerConfig()),
    )
    return SimpleNamespace(config=config, model=Transformer(config))


def test_both_caches_hold_the_same_and_give_the_same():
    llm = small()
    dense = fill(llm, DenseKVCache(llm.config, 1, 9), 5)
    copying = fill(llm, ConcatCache(2), 5)
    for layer in range(2):
        assert torch.equal(dense.keys[layer, :, :, :5], copying.stored[layer][0])
    assert copying.nbytes == 5 * llm.config.cache_bytes_per_token(4)
    ids = torch.tensor([[3, 1, 4]])
    with torch.inference_mode():
        assert torch.allclose(llm.model(ids, dense), llm.model(ids, copying), atol=1e-6)
    copying.truncate([2])
    assert copying.advance([1], 1).tolist() == [[2]]


def test_a_timed_step_leaves_the_cache_as_long_as_before():
    llm = small()
    for cache in (DenseKVCache(llm.config, 3, 9), ConcatCache(2)):
        fill(llm, cache, 5)
        lengths = cache.lengths.tolist()
        assert step_ms(llm, cache, 2) > 0
        assert cache.lengths.tolist() == lengths


def test_the_notebook_shows_the_cache_that_is_measured():
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    sources = "\n".join("".join(cell["source"]) for cell in cells)
    body = inspect.getsource(ConcatCache).rstrip()
    assert body in sources


def test_what_the_notebook_says_about_positions():
    lines = printed("05", "places = {").splitlines()
    found = {
        lines[i][:9].strip(): (lines[i], [line.strip() for line in lines[i + 1 : i + 3]])
        for i in range(0, len(lines), 3)
    }
    copying = {name: float(line.split("COPY ")[1].split()[0]) for name, (line, _) in found.items()}
    texts = {name: written for name, (_, written) in found.items()}
    assert [name for name, (line, _) in found.items() if "equal" in line] == ["n, right"]
    assert texts["n - 1"] == texts["n + 1"] == texts["n, right"]
    assert copying["n + 1"] < copying["n, right"] < copying["n - 1"] < copying["from 0"]
    assert copying["from 0"] < copying["constant"]
    assert "Paris" in texts["from 0"][0]
    assert texts["from 0"][1] != texts["n, right"][1]


def test_what_the_notebook_says_about_the_kept_cache():
    first, second, _, alone = printed("05", "def colleagues_reuse").splitlines()
    assert first.startswith("36 ids, 36 run")
    assert second.startswith("36 ids, 12 run")
    assert "banana" in second.split("->")[1]
    assert "banana" not in alone
