"""Models that run on a GGUF file's blocks: the dequantized model, but for rounded inputs."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from minillm import LLM, SamplingParams
from minillm.kernels.reference import dequantize_blocks, quantize_blocks
from minillm.kv_cache import new_cache
from minillm.quantization.blocks import BlockEmbedding, BlockLinear
from minillm.weights.gguf_file import read_gguf
from minillm.weights.load import load_transformer
from tests.parity.models import SIZES
from tests.weights.gguf_writer import write_gguf

# Every matrix has rows of a multiple of 32 values.
WIDE = SIZES | {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "mixtral": {"num_local_experts": 3},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma3_text": {"head_dim": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "olmo2": {},
    "phi3": {},
    "smollm3": {"num_hidden_layers": 4},
}
PROMPT = "The capital of France is"


def gguf_of(family, path, kind, **changes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **WIDE | FAMILIES[family] | changes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # or biases would all be 0, and norms 1
        torch.nn.init.normal_(parameter, std=0.3)
    return write_gguf(model, path / "model.gguf", kind)


def rounding_inputs(model):
    """Let every layer that blocks take the place of round its inputs as those do."""

    def rounded(module, inputs):
        (x,) = inputs
        return dequantize_blocks(*quantize_blocks(x)) if x.shape[-1] % 32 == 0 else x

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith("mlp.gate"):
            module.register_forward_pre_hook(rounded)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_blocks_stay_blocks(family, kind, tied, tmp_path):
    path = gguf_of(family, tmp_path, kind, tie_word_embeddings=tied)
    llm, plain = LLM.from_pretrained(path, quantize="gguf"), LLM.from_pretrained(path)
    assert isinstance(llm.model.embed_tokens, BlockEmbedding)
    assert isinstance(llm.model.lm_head, BlockLinear)
    kept = [name for name, m in llm.model.named_modules() if isinstance(m, BlockLinear)]
    assert len(kept) == 1 + 7 * llm.config.num_hidden_layers
    assert llm.config == plain.config
    for name in kept:
        weight = "embed_tokens" if tied and name == "lm_head" else name
        expected = plain.model.get_submodule(weight).weight
        assert torch.equal(llm.model.get_submodule(name).blocks.dequantize(), expected), name
    assert torch.equal(llm.model.embed_tokens.weight, plain.model.embed_tokens.weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_rounded_inputs(family, tmp_path):
    path = gguf_of(family, tmp_path, "Q8_0")
    llm, plain = LLM.from_pretrained(path, quantize="gguf"), LLM.from_pretrained(path)
    rounding_inputs(plain.model)
    ids = [5, 9, 2, 31, 7, 7, 40, 11]
    found, expected = llm.logits(ids), plain.logits(ids)
    if plain.config.tie_word_embeddings:  # no module, so no hook: its input is rounded here
        cache = new_cache(plain.config, 1, len(ids))
        hidden = dequantize_blocks(*quantize_blocks(plain.model(torch.tensor([ids]), cache)))
        expected = plain.model.logits(hidden)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_smollm2_on_its_own_blocks():
    llm = LLM.from_pretrained("smollm2", quantize="gguf")
    kinds = {module.kind for module in llm.model.modules() if isinstance(module, BlockLinear)}
    assert kinds == {"Q4_1", "Q8_0"}
    assert llm.generate(PROMPT, SamplingParams(max_new_tokens=3)).text.startswith(" Paris")


def test_what_has_no_blocks_is_refused(tmp_path):
    path = gguf_of("llama", tmp_path, "F16")
    with pytest.raises(ValueError, match="'gguf', but no weights are Q4_0, Q4_1, Q8_0 blocks"):
        LLM.from_pretrained(path, quantize="gguf")
    folder = LLM.from_pretrained(path).save(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"'gguf', which needs a \.gguf file"):
        LLM.from_pretrained(folder, quantize="gguf")
    path = gguf_of("llama", tmp_path, "Q8_0")
    with pytest.raises(ValueError, match="group_size is 32, but nothing is quantized"):
        LLM.from_pretrained(path, quantize="gguf", group_size=32)


def test_a_gguf_file_of_another_model_beside_the_folder_is_refused(tmp_path):
    path = gguf_of("llama", tmp_path, "Q8_0")
    folder = LLM.from_pretrained(path).save(tmp_path / "folder")
    other = gguf_of("llama", folder, "Q8_0", hidden_size=96)
    with pytest.raises(ValueError, match=other.name):
        LLM.from_pretrained(folder, quantize="gguf")


def test_blocks_cannot_be_saved(tmp_path):
    path = gguf_of("llama", tmp_path, "Q8_0")
    with pytest.raises(ValueError, match="load the model without quantize='gguf'"):
        LLM.from_pretrained(path, quantize="gguf").save(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_mixed_file_keeps_the_blocks_it_has(tmp_path):
    # Rows of 80 values stay floats.
    path = gguf_of("llama", tmp_path, "Q8_0", intermediate_size=80)
    model = LLM.from_pretrained(path, quantize="gguf").model
    mlp = model.get_submodule("layers.0.mlp")
    assert isinstance(mlp.gate_proj, BlockLinear)
    assert isinstance(mlp.down_proj, torch.nn.Linear)


def test_plain_tensors_have_no_blocks():
    llm = LLM.from_pretrained("smollm2")
    with pytest.raises(ValueError, match="no weights are"):
        load_transformer(llm.config, llm.model.state_dict(), quantize="gguf")


def test_a_header_without_its_vocabulary(tmp_path):
    path = gguf_of("llama", tmp_path, "Q8_0")
    whole, quick = read_gguf(path), read_gguf(path, vocabulary=False)
    assert whole.tensors.keys() == quick.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert tensor.kind == quick.tensors[name].kind
        assert (tensor.data == quick.tensors[name].data).all()
    differing = {k for k in whole.metadata if whole.metadata[k] != quick.metadata[k]}
    assert differing == {"tokenizer.ggml.tokens", "tokenizer.ggml.merges"}
    assert all(quick.metadata[key] == [] for key in differing)
