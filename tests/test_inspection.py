"""What `inspect` says: for well-known models of every family, against their modules and caches."""

import json

import pytest
import torch

from minillm.families import FAMILIES
from minillm.hf_config import read_config
from minillm.inspection import cache_bytes, idle_parameters, inspect_model
from minillm.kv_cache import new_cache
from tests.published import PUBLISHED


def inspect(tmp_path, name):
    settings, _ = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return inspect_model(str(tmp_path))


def test_every_family_is_inspected():
    assert {settings["model_type"] for settings, _ in PUBLISHED.values()} == FAMILIES.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_of_published_models(tmp_path, name):
    settings, parameters = PUBLISHED[name]
    found = inspect(tmp_path, name)
    json.dumps(found, allow_nan=False)
    assert found["model_type"] == settings["model_type"]
    assert found["parameters"] == parameters
    assert found["weight bytes"]["bfloat16"] == 2 * parameters
    kinds = found["kinds of layers"]
    assert sum(int(kind.split(" × ")[0]) for kind in kinds) == settings["num_hidden_layers"]


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("num_tokens", [7, 5_000])
def test_cache_bytes_are_those_of_the_cache(name, num_tokens):
    config = read_config(PUBLISHED[name][0])
    cache = new_cache(config, 1, num_tokens, dtype=torch.bfloat16, device="meta")
    assert cache_bytes(config, num_tokens, 2) == cache.nbytes


def test_kinds_of_layers_by_hand(tmp_path):
    assert inspect(tmp_path, "gemma-3-1b")["kinds of layers"] == [
        "22 × window of 512, RoPE default with base 10,000",
        "4 × attention to all, RoPE default with base 1,000,000",
    ]
    assert inspect(tmp_path, "SmolLM3-3B")["kinds of layers"] == [
        "27 × attention to all, RoPE default with base 5,000,000",
        "9 × attention to all, no RoPE",
    ]
    (llama,) = inspect(tmp_path, "Llama-3.2-1B")["kinds of layers"]
    assert llama.endswith("RoPE llama3 with base 500,000, stretched 32 times")
    (phi,) = inspect(tmp_path, "Phi-4-mini")["kinds of layers"]
    assert phi.endswith("RoPE longrope with base 10,000, stretched 32 times, on 75% of a head")
    (mixtral,) = inspect(tmp_path, "Mixtral-8x7B")["kinds of layers"]
    assert mixtral.endswith("2 of 8 experts of width 14,336")


def test_experts_that_rest_by_hand(tmp_path):
    config = read_config(PUBLISHED["Mixtral-8x7B"][0])
    # Six of eight experts, each three matrices of 4,096 × 14,336, in 32 layers.
    assert idle_parameters(config) == 32 * 6 * 3 * 4_096 * 14_336
    found = inspect(tmp_path, "Mixtral-8x7B")["of these at work for a token"]
    assert found == pytest.approx(12.9e9, rel=0.01)  # published as 12.9 billion
    found = inspect(tmp_path, "Qwen3-30B-A3B")["of these at work for a token"]
    assert found == pytest.approx(3.3e9, rel=0.02)  # published as 3.3 billion
