"""Calibration: blocks run one by one are the model, and layers are observed with their inputs."""

from typing import Any

import pytest
import torch
from torch import nn

from minillm.calibration import (
    Stream,
    calibration_ids,
    calibration_sequences,
    check_calibration,
    observe,
)
from minillm.kv_cache import new_cache
from minillm.quantization.linear import put, quantizable
from tests.parity import measure
from tests.parity.measure import FLOAT32_BOUND, LENGTH, difference
from tests.parity.models import RICHEST, save, saved, token_ids
from tests.parity.random_models import random_case


def assert_runs_as_the_model(model: Any):
    sequences = [token_ids(1, n, seed=n)[0].tolist() for n in (LENGTH, 7, LENGTH, 1)]
    stream = Stream(model, sequences)
    for block in model.layers:
        stream.hidden = stream.through(block)
    for hidden, ids in zip(stream.hidden, sequences, strict=True):
        lengths = torch.tensor([len(ids)])
        cache = new_cache(model.config, 1, len(ids))
        expected = model(torch.tensor([ids]), cache, lengths=lengths)
        assert difference(model.norm(hidden, model.ops), expected) < FLOAT32_BOUND


@torch.inference_mode()
@pytest.mark.parametrize("name", RICHEST.values())
def test_blocks_one_by_one_are_the_model(name):
    assert_runs_as_the_model(measure.ours(saved(name)))


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(12))
def test_blocks_of_a_random_model_one_by_one_are_the_model(seed, tmp_path):
    assert_runs_as_the_model(measure.ours(save(random_case(seed), tmp_path / "model")))


class Recorder(nn.Module):
    """A linear layer that keeps all inputs: the plain way to know what a layer is given."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.inputs: list[torch.Tensor] = []

    def forward(self, x):
        self.inputs.append(x.flatten(0, -2))
        return self.linear(x)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama-mqa", "gemma3-scaled", "mixtral-window", "qwen3-moe"])
def test_each_linear_layer_is_observed_with_its_own_inputs(name):
    model = measure.ours(saved(name))
    stream = Stream(model, [token_ids(1, n, seed=n)[0].tolist() for n in (33, 21)])
    block: Any = model.layers[0]
    linears = quantizable(block)
    statistics, outputs = observe(block, stream, list(linears))
    assert not any(module._forward_pre_hooks for module in block.modules())
    for path, linear in linears.items():
        put(block, path, Recorder(linear))
    for found, expected in zip(outputs, stream.through(block), strict=True):
        assert torch.equal(found, expected)
    assert statistics.keys() == linears.keys()
    for path in linears:
        seen = block.get_submodule(path).inputs
        x = torch.cat(seen).double() if seen else torch.empty(0, linears[path].in_features)
        assert statistics[path].tokens == len(x)
        expected = (x.T @ x / max(len(x), 1)).float()
        torch.testing.assert_close(statistics[path].hessian, expected)


def test_layers_that_share_an_input_share_its_statistics():
    model = measure.ours(saved("llama-tied"))
    block: Any = model.layers[0]
    found, _ = observe(block, Stream(model, [[1, 2, 3]]), list(quantizable(block)))
    shared = {path: id(statistics) for path, statistics in found.items()}
    assert len(set(shared.values())) == 4
    assert shared["self_attn.q_proj"] == shared["self_attn.k_proj"] == shared["self_attn.v_proj"]
    assert shared["mlp.gate_proj"] == shared["mlp.up_proj"]


def test_sequences_are_pieces_of_the_text_that_do_not_overlap():
    ids = list(range(1_000))
    found = calibration_sequences(ids, length=64, tokens=640, seed=3)
    assert [len(piece) for piece in found] == [64] * 10
    assert all(piece == ids[piece[0] : piece[0] + 64] for piece in found)
    flat = [token for piece in found for token in piece]
    assert flat == sorted(set(flat))
    assert found == calibration_sequences(ids, length=64, tokens=640, seed=3)
    assert found != calibration_sequences(ids, length=64, tokens=640, seed=4)


@pytest.mark.parametrize(("text", "count"), [(64, 1), (127, 1), (128, 2), (700, 10)])
def test_a_short_text_is_used_as_far_as_it_goes(text, count):
    assert len(calibration_sequences(range(text), length=64, tokens=640)) == count


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (511, {}, "has 511 tokens; at least 512 are needed"),
        (0, {"length": 1}, "has 0 tokens; at least 1"),
        (900, {"length": 0}, "length is 0"),
        (900, {"length": 300, "tokens": 200}, r"length is 300; .* 1 to 200"),
    ],
)
def test_too_little_text_is_refused(text, options, message):
    with pytest.raises(ValueError, match=message):
        calibration_sequences(range(text), **options)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "no calibration text"),
        ([[1, 2], []], "has 0 tokens; 1 to 4"),
        ([[1, 2, 3, 4, 5]], "has 5 tokens; 1 to 4"),
        ([[1], [3, 97]], "go from 3 to 97; allowed are 0 to 96"),
        ([[-1, 5]], "go from -1 to 5"),
    ],
)
def test_bad_sequences_are_refused(sequences, message):
    with pytest.raises(ValueError, match=message):
        check_calibration(sequences, 97, 4)


def test_the_course_text_fills_sequences(llm):
    sequences = calibration_ids(llm.tokenizer)
    assert all(len(ids) == 512 for ids in sequences)
    assert 7_000 < sum(map(len, sequences)) <= 8_192
