"""Quantized models of every family are written, and read again as they were."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from minillm.hf_config import read_config
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.quantization.scheme import Scheme
from minillm.weights.checkpoint import Checkpoint
from minillm.weights.load import load_transformer
from minillm.weights.save import save_model
from minillm.weights.source import open_source
from tests.parity.models import saved, token_ids
from tests.weights.quantized_models import NoTokenizer, logits, quantize_all

FAMILIES = [
    "llama-biased",
    "llama-tied",
    "smollm3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3",
    "olmo2",
    "phi3",
    "phi3-partial",
    "mixtral",
    "qwen3-moe",
]


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_comes_back_from_its_files(name, act_order, tmp_path):
    source = open_source(saved(name))
    kind = source.settings["model_type"]
    model = load_transformer(read_config(source.settings), source.weights, model_type=kind)
    quantize_all(model, group_size=8, act_order=act_order)
    ids = token_ids(1, 20)
    expected = logits(model, ids)
    folder = save_model(tmp_path / "written", model, source, NoTokenizer(), None)

    again = open_source(folder)
    assert read_config(again.settings) == model.config
    assert again.settings["dtype"] == "float32"
    assert again.settings["quantization_config"]["desc_act"] is act_order
    loaded = load_transformer(model.config, again.weights, model_type=kind)
    assert not quantizable(loaded)
    found = logits(loaded, ids)
    # Within a group the columns may come in another order, and are added up in that.
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 if act_order else 0)
    if not act_order:
        second = save_model(tmp_path / "second", loaded, again, NoTokenizer(), None)
        first = load_file(folder / "model.safetensors")
        assert all(
            torch.equal(t, first[n]) for n, t in load_file(second / "model.safetensors").items()
        )


def test_a_model_that_is_no_longer_quantized_says_so(tmp_path):
    source = open_source(saved("llama3"))
    model = load_transformer(
        read_config(source.settings), source.weights, quantize=Scheme("int4", 4, 8, True)
    )
    folder = save_model(tmp_path / "quantized", model, source, NoTokenizer(), None)
    quantized = open_source(folder)
    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, QuantizedLinear)]:
        plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
        plain.weight = nn.Parameter(layer.quantized.dequantize(), requires_grad=False)
        put(model, name, plain)
    plain_folder = save_model(tmp_path / "plain", model, quantized, NoTokenizer(), None)
    assert "quantization_config" in json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in json.loads((plain_folder / "config.json").read_text())


def test_fused_layers_share_their_order(tmp_path):
    source = open_source(saved("phi3"))
    model = load_transformer(read_config(source.settings), source.weights, model_type="phi3")
    quantize_all(model, group_size=8, act_order=True)
    layer = model.get_submodule("layers.0.self_attn.k_proj")
    assert isinstance(layer, QuantizedLinear)
    assert layer.order is not None
    layer.order = layer.order.flip(0)
    said = r"qkv_proj\.qweight holds 3 layers, which must share .* that order"
    with pytest.raises(ValueError, match=said):
        save_model(tmp_path / "folder", model, source, NoTokenizer(), None)
    assert not any(tmp_path.iterdir())
    layer.order = None
    with pytest.raises(ValueError, match=said):
        dict(Checkpoint(model, "phi3"))
