"""What a folder's files must agree on: tensors and configuration, end tokens."""

import json

import pytest
import torch
from safetensors.torch import save_file

from minillm import LLM, SamplingParams
from minillm.hf_config import read_config
from minillm.weights.load import load_transformer
from minillm.weights.safetensors import open_tensors

SETTINGS = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def tensors():
    shapes = {"model.embed_tokens.weight": (10, 8), "model.norm.weight": (8,)}
    shapes["lm_head.weight"] = (10, 8)
    for layer in range(2):
        for name, shape in {
            "input_layernorm": (8,),
            "post_attention_layernorm": (8,),
            "self_attn.q_proj": (8, 8),
            "self_attn.k_proj": (4, 8),
            "self_attn.v_proj": (4, 8),
            "self_attn.o_proj": (8, 8),
            "mlp.gate_proj": (12, 8),
            "mlp.up_proj": (12, 8),
            "mlp.down_proj": (8, 12),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return {name: torch.randn(shape) for name, shape in shapes.items()}


class Untouched:
    """A stored tensor whose values nobody may ask for."""

    def __init__(self, tensor):
        self.shape, self.is_floating_point = tensor.shape, tensor.is_floating_point

    def to(self, **_):
        pytest.fail("placed before everything was checked")


def test_l02_missing_and_unexpected_tensors_of_the_model_are_named():
    config = read_config(SETTINGS)
    weights = tensors()
    assert load_transformer(config, weights).layers[1] is not None
    del weights["model.layers.1.mlp.up_proj.weight"]
    weights["model.layers.2.mlp.up_proj.weight"] = torch.zeros(12, 8)
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(8)
    stored = {name: Untouched(tensor) for name, tensor in weights.items()}
    with pytest.raises(ValueError, match="weights do not fit") as caught:
        load_transformer(config, stored)
    for problem in (
        "missing: model.layers.1.mlp.up_proj.weight",
        "unexpected: model.layers.2.mlp.up_proj.weight",
        "unexpected: model.layers.0.self_attn.q_proj.bias",
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.to(torch.int8), "lm_head.weight is not of a floating-point type"),
        (lambda t: t[:9], "lm_head.weight is (9, 8), the configuration says (10, 8)"),
        (lambda t: t.T.contiguous(), "lm_head.weight is (8, 10), the configuration says (10, 8)"),
        (lambda t: t[:0], "lm_head.weight is (0, 8), the configuration says (10, 8)"),
    ],
)
def test_a_tensor_of_another_type_or_shape_is_named(tmp_path, change, message):
    weights = tensors()
    weights["lm_head.weight"] = change(weights["lm_head.weight"])
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="weights do not fit") as caught:
        load_transformer(read_config(SETTINGS), open_tensors(tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize("stored", [torch.float64, torch.float16, torch.float8_e5m2])
def test_a_model_is_placed_in_the_asked_dtype(tmp_path, stored):
    weights = {name: tensor.to(stored) for name, tensor in tensors().items()}
    save_file(weights, tmp_path / "model.safetensors")
    model = load_transformer(read_config(SETTINGS), open_tensors(tmp_path), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.lm_head.weight, weights["lm_head.weight"].to(torch.bfloat16))


@pytest.fixture
def changeable(smollm2, tmp_path):
    """The real model in a folder whose small files may be changed."""
    for path in smollm2.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_a02_every_end_token_of_generation_config_ends_an_answer(changeable, llm):
    comma, end = llm.tokenizer.encode(",")[0], sorted(llm.eos_token_ids)
    (changeable / "generation_config.json").unlink()
    text = json.dumps({"eos_token_id": [comma, *end]})
    (changeable / "generation_config.json").write_text(text)
    several = LLM.from_pretrained(changeable, device="cpu", dtype="float32")
    assert several.eos_token_ids == {comma, *end}
    answer = several.generate("1, 2, 3, 4,", SamplingParams(max_new_tokens=12))
    assert (answer.text, answer.finish_reason) == (" 5", "stop")
    assert answer.token_ids[-1] == comma


@pytest.mark.parametrize("ids", [[0, 49_152], [-1], ["2"], [True], 2.0, {"a": 1}])
def test_a02_an_end_token_that_cannot_be_one(changeable, ids):
    (changeable / "generation_config.json").unlink()
    (changeable / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ValueError, match=r"eos_token_id is .*; ids from 0 to 49151 needed"):
        LLM.from_pretrained(changeable, device="cpu", dtype="float32")
