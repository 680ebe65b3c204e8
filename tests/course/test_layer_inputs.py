"""What single layers are given: against the weights' own products and a dense cache."""

import pytest
import torch

from minillm.course.layer_inputs import input_statistics, keys_and_values, layer_inputs
from minillm.course.probes import capital_ids, doc_ids
from minillm.course.trace import hidden_states
from minillm.kv_cache.dense import DenseKVCache


def test_a_layers_inputs_are_the_normed_stream_before_it(llm):
    ids = capital_ids(llm)
    block = llm.model.layers[4]
    before = hidden_states(llm, ids)[4]
    expected = llm.model.ops.rms_norm(before, block.input_layernorm.weight, llm.config.rms_norm_eps)
    found = layer_inputs(llm, "layers.4.self_attn.q_proj", ids)
    assert torch.allclose(found, expected, atol=1e-5)


def test_nothing_is_left_on_the_model(llm):
    name = "layers.2.mlp.down_proj"
    layer_inputs(llm, name, capital_ids(llm))
    with pytest.raises(ValueError, match="token ids"):
        input_statistics(llm, name, [])
    assert not llm.model.get_submodule(name)._forward_pre_hooks


def test_statistics_are_means_over_all_texts(llm):
    name, texts = "layers.0.self_attn.o_proj", [doc_ids(llm, 9), capital_ids(llm)]
    found = input_statistics(llm, name, texts)
    x = torch.cat([layer_inputs(llm, name, text) for text in texts])
    assert found.tokens == 14
    assert torch.allclose(found.hessian, x.T @ x / 14, atol=1e-5)
    assert torch.allclose(found.mean_abs, x.abs().mean(dim=0), atol=1e-5)


def test_keys_and_values_are_those_of_a_cache(llm):
    ids = doc_ids(llm, 12)
    keys, values = keys_and_values(llm, ids)
    cache = DenseKVCache(llm.config, 1, 12)
    with torch.inference_mode():
        llm.model(torch.tensor([ids]), cache)
    assert torch.allclose(keys, torch.stack([k[0] for k in cache.keys]), atol=1e-4)
    assert torch.allclose(values, torch.stack([v[0] for v in cache.values]), atol=1e-4)
