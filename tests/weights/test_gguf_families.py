"""Every family's checkpoint through a GGUF file: the same settings, tensors and stops."""

import json

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from minillm.config import read_json
from minillm.hf_config import read_config
from minillm.weights.gguf import open_gguf
from minillm.weights.gguf_config import hf_config, token_ids
from minillm.weights.gguf_file import read_gguf
from minillm.weights.gguf_tensor import GGUFTensor
from minillm.weights.safetensors import open_weights
from tests.parity.models import CASES, SIZES, WINDOW, longrope, saved, written
from tests.weights.gguf_writer import unsaid, write_gguf

GEMMA = {
    "query_pre_attn_scalar": 16,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}
LINEAR = {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0}
LOCAL = {"rope_theta": 10_000.0, "rope_type": "default"}


@pytest.fixture(scope="module")
def through_gguf(tmp_path_factory):
    """A function from a folder to the model that came through a GGUF file of it."""

    def write(folder):
        return open_gguf(write_gguf(folder, tmp_path_factory.mktemp("gguf") / "a.gguf"))

    return write


def assert_same(model, folder):
    """The configuration, the tensors by name, and what transformers makes of the settings."""
    theirs = read_json(folder / "config.json")
    rope = theirs["rope_parameters"]
    if rope.get("rope_type") == "longrope" and rope.get("attention_factor") is None:
        # A GGUF file holds the factor that follows from the lengths; it is rounded to float32.
        stretch = theirs["max_position_embeddings"] / rope["original_max_position_embeddings"]
        trained = rope["original_max_position_embeddings"]
        factor = np.sqrt(1 + np.log(stretch) / np.log(trained))
        rope["attention_factor"] = float(str(np.float32(factor)))
    assert read_config(model.settings) == read_config(theirs)
    weights = open_weights(folder)
    assert model.tensors.keys() == weights.keys()
    for name, tensor in weights.items():
        found = model.tensors[name].to(dtype=torch.float32)
        # 1 + w, less 1, is w to within the last digit of 1.
        offset = "gemma" in theirs["model_type"] and name.endswith("norm.weight")
        torch.testing.assert_close(found, tensor, rtol=0, atol=6e-8 if offset else 0)
    found, expected = (AutoConfig.for_model(**made).to_dict() for made in (model.settings, theirs))
    # The RoPE is compared above; a head width may be left unsaid, and the pattern of layer_types.
    unequal = {"architectures", "head_dim", "rope_parameters"}
    unequal |= {"sliding_window_pattern", "_sliding_window_pattern"}
    for key in expected.keys() - unequal:
        assert found.get(key) == expected[key], key
    assert json.loads(json.dumps(model.settings)) == model.settings


SAID = [name for name in CASES if not unsaid(written(name))]


@pytest.mark.parametrize("name", SAID)
def test_a_family_through_gguf(name, through_gguf):
    folder = saved(name)
    model = through_gguf(folder)
    if name.startswith("mistral"):  # without its window it is a Llama
        assert model.settings["model_type"] == "llama"
        model.settings.update(model_type="mistral", sliding_window=None)
    assert_same(model, folder)


def test_every_family_has_a_case_that_a_file_can_say():
    kinds = {written(name)["model_type"] for name in SAID}
    assert kinds == {written(name)["model_type"] for name in CASES}


UNSAID = {
    "llama-dynamic": "a dynamic RoPE",
    "llama-yarn-untruncated": "a YaRN that is not truncated",
    "mistral": "a window",
    "olmo2-biased-tied": "biases",
    "qwen2-window": "a window",
    "qwen3-moe": "weights of experts",
    "qwen3-moe-dense-layer": "dense layers",
    "smollm3-list": "layers without RoPE",
}


@pytest.mark.parametrize(("name", "message"), UNSAID.items(), ids=UNSAID.keys())
def test_the_writer_refuses_what_a_file_cannot_say(name, message, tmp_path):
    with pytest.raises(ValueError, match=rf"cannot say: \['{message}"):
        write_gguf(saved(name), tmp_path / "a.gguf")


@pytest.mark.parametrize("tensor_type", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_permuted_rows_and_experts_in_blocks(tensor_type, tmp_path):
    """The values are those of the checkpoint, rounded as the type rounds them."""
    sizes = SIZES | {"hidden_size": 64, "head_dim": 8, "intermediate_size": 96}
    torch.manual_seed(0)
    MixtralForCausalLM(MixtralConfig(**sizes, num_local_experts=3)).save_pretrained(tmp_path)
    found = open_gguf(write_gguf(tmp_path, tmp_path / "a.gguf", tensor_type)).tensors
    kind = gguf.GGMLQuantizationType[tensor_type]
    weights = open_weights(tmp_path)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        value = tensor.numpy()
        # o_proj has rows of 48 values, which blocks of 32 do not divide: it stays as it is.
        if value.ndim > 1 and value.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            value = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
        assert np.array_equal(found[name].to(dtype=torch.float32).numpy(), value), name


# Gemma 3


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """A function from settings to the folder of a tiny Gemma 3."""

    def save(**settings):
        torch.manual_seed(0)
        model = Gemma3ForCausalLM(Gemma3TextConfig(**SIZES | GEMMA | settings))
        for parameter in model.requires_grad_(False).parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        folder = tmp_path_factory.mktemp("gemma")
        model.save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sliding_window_pattern": 3},
        {"num_hidden_layers": 7, "tie_word_embeddings": False},
        {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": LOCAL}},
    ],
    ids=["plain", "pattern", "untied", "linear"],
)
def test_gemma_through_gguf(settings, gemma, through_gguf):
    folder = gemma(**settings)
    assert_same(through_gguf(folder), folder)


def test_gemma_27b_scales_its_queries_by_the_width(gemma, tmp_path):
    settings = {"num_hidden_layers": 62, "query_pre_attn_scalar": 8, "intermediate_size": 16}
    model = open_gguf(write_gguf(gemma(**settings), tmp_path / "a.gguf"))
    assert model.settings["query_pre_attn_scalar"] == 48 // 6
    assert model.settings["head_dim"] == 16


def test_gemma_pattern_as_a_number_a_list_or_unsaid(gemma, tmp_path):
    file = read_gguf(write_gguf(gemma(), tmp_path / "a.gguf"))
    key = "gemma3.attention.sliding_window_pattern"
    full, local = "full_attention", "sliding_attention"
    for pattern, expected in (
        (None, [local] * 4),
        (2, [local, full] * 2),
        ([False, True, True, False], [full, local, local, full]),
    ):
        metadata = file.metadata if pattern is None else file.metadata | {key: pattern}
        assert hf_config(metadata, file.tensors)["layer_types"] == expected
    for wrong in ([True] * 3, [1, 0, 1, 0], 0, "6"):
        with pytest.raises(ValueError, match="sliding_window_pattern is"):
            hf_config(file.metadata | {key: wrong}, file.tensors)
    metadata = file.metadata | {"gemma3.attention.sliding_window": 0}
    settings = hf_config(metadata, file.tensors)
    assert (settings["layer_types"], settings["sliding_window"]) == ([full] * 4, None)
    read_config(settings)


def test_gemma_softcapping_is_carried_over(gemma, tmp_path):
    file = read_gguf(write_gguf(gemma(), tmp_path / "a.gguf"))
    for value, expected in ((0.0, None), (30.0, 30.0)):
        metadata = file.metadata | {"gemma3.final_logit_softcapping": value}
        settings = hf_config(metadata, file.tensors)
        assert settings["final_logit_softcapping"] == expected


# Keys


@pytest.mark.parametrize(
    "name",
    ["llama3", "mixtral", "qwen2", "qwen3", "qwen3-moe-normed", "olmo2", "phi3"],
)
def test_unknown_keys_are_refused_and_missing_ones_named(name, tmp_path):
    file = read_gguf(write_gguf(saved(name), tmp_path / "a.gguf"))
    arch = file.metadata["general.architecture"]
    for key in ("attention.clamp_kqv", "logit_scale", "attention.scale", "residual_scale"):
        with pytest.raises(ValueError, match=rf"carried over: {arch}\.{key}"):
            hf_config(file.metadata | {f"{arch}.{key}": 2.0}, file.tensors)
    for key in ("block_count", "context_length", "embedding_length", "attention.head_count"):
        metadata = {k: v for k, v in file.metadata.items() if k != f"{arch}.{key}"}
        with pytest.raises(ValueError, match=rf"{arch}\.{key} is None"):
            hf_config(metadata, file.tensors)


# RoPE


def with_rope(name, tmp_path, change, factors=None):
    """rope_parameters of a case with other metadata and factors."""
    file = read_gguf(write_gguf(saved(name), tmp_path / "a.gguf"))
    arch = file.metadata["general.architecture"]
    metadata = file.metadata | {f"{arch}.rope.{key}": value for key, value in change.items()}
    tensors = dict(file.tensors)
    for key, values in (factors or {}).items():
        data = np.array([values], np.float32)
        tensors[f"rope_{key}.weight"] = GGUFTensor("F32", data.shape[1:], data.view(np.uint8))
    return hf_config(metadata, tensors)["rope_parameters"]


@pytest.mark.parametrize(("width", "factor"), [(128, 8.0), (64, 32.0)], ids=["3.1", "3.2"])
def test_llama_3_rope_is_recognised(width, factor, tmp_path):
    from transformers import LlamaConfig

    expected = {
        "rope_theta": 500_000.0,
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=width, rope_parameters=expected, max_position_embeddings=131072)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500_000.0 ** -(torch.arange(0, width, 2) / width)
    factors = (plain / scaled).tolist()
    change = {"freq_base": 500_000.0, "dimension_count": width}
    file = read_gguf(write_gguf(saved("llama3"), tmp_path / "a.gguf"))
    metadata = file.metadata | {f"llama.rope.{key}": value for key, value in change.items()}
    metadata |= {f"llama.attention.{key}_length": width for key in ("key", "value")}
    data = np.array([factors], np.float32)
    tensor = GGUFTensor("F32", (width // 2,), data.view(np.uint8))
    found = hf_config(metadata, {**file.tensors, "rope_freqs.weight": tensor})
    assert found["rope_parameters"] == expected


def test_other_factors_become_a_longrope_of_equal_lists(tmp_path):
    factors = [1.0, 1.5, 2.25, 7.0]
    found = with_rope("llama3", tmp_path, {}, {"freqs": factors})
    assert found == {
        "rope_theta": 10_000.0,
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": 128,
        "attention_factor": 1.0,
    }
    assert with_rope("llama3", tmp_path, {}, {"freqs": [1.0] * 4})["rope_type"] == "default"


def test_linear_in_all_spellings(tmp_path):
    expected = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
    for change in (
        {"scaling.type": "linear", "scaling.factor": 4.0},
        {"scaling.factor": 4.0},
        {"scale_linear": 4.0, "scaling.finetuned": True},
    ):
        assert with_rope("qwen2", tmp_path, change) == expected
    for change in ({"scaling.type": "none", "scaling.factor": 4.0}, {"scaling.factor": 1.0}):
        assert with_rope("qwen2", tmp_path, change)["rope_type"] == "default"


def test_yarn_and_its_attention_factor(tmp_path):
    yarn = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 32}
    found = with_rope("qwen2", tmp_path, yarn)
    assert found["original_max_position_embeddings"] == 32
    assert "attention_factor" not in found
    # llama.cpp multiplies its own factor by this one; Hugging Face's is the product.
    found = with_rope("qwen2", tmp_path, yarn | {"scaling.attn_factor": 2.0})
    assert found["attention_factor"] == pytest.approx(2 * (0.1 * np.log(4) + 1))
    more = {"scaling.yarn_attn_factor": 1.25, "scaling.yarn_beta_fast": 16.0}
    found = with_rope("qwen2", tmp_path, yarn | more)
    assert (found["attention_factor"], found["beta_fast"]) == (1.25, 16.0)


def test_a_kind_of_another_type_is_refused(tmp_path):
    for kind in (["yarn"], 1, None):
        with pytest.raises(ValueError, match=r"rope\.scaling\.type is"):
            with_rope("qwen2", tmp_path, {"scaling.type": kind})


def test_factors_that_nothing_uses_are_refused(tmp_path):
    both = {"factors_long": [1.0] * 4, "factors_short": [1.0] * 4}
    with pytest.raises(ValueError, match="longrope needs the tensors"):
        with_rope("phi3", tmp_path, {}, {"factors_long": [1.0] * 4})
    with pytest.raises(ValueError, match=r"rope_factors_short\.weight, rope_factors_long\.weight"):
        with_rope("phi3", tmp_path, {"scaling.type": "linear"}, both)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight without a rope\.scaling\.type"):
        with_rope("llama3", tmp_path, {"scaling.factor": 2.0}, {"freqs": [1.0, 1.0, 2.0, 2.0]})
    assert with_rope("phi3", tmp_path, {}, both)["rope_type"] == longrope(4)["rope_type"]


# Tokens at which a text ends


def test_ends_of_turn():
    tokens = ["a", "<s>", "</s>", "<|eot_id|>", "<|im_end|>", "<|eom_id|>"]
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1, 3, 3, 3, 1, 3]}
    names = {"bos": 1, "eos": 2, "padding": 0}
    metadata |= {f"tokenizer.ggml.{name}_token_id": index for name, index in names.items()}
    # By name in the file, then control tokens by their text; a plain token with that text is none.
    expected = {"bos_token_id": 1, "eos_token_id": [2, 3, 5], "pad_token_id": 0}
    assert token_ids(metadata) == expected
    metadata |= {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 4}
    assert token_ids(metadata)["eos_token_id"] == [2, 5, 4, 3]
    metadata |= {"tokenizer.ggml.token_type": [1, 3, 3, 1, 1, 1]}
    del metadata["tokenizer.ggml.eot_token_id"], metadata["tokenizer.ggml.eom_token_id"]
    assert token_ids(metadata)["eos_token_id"] == 2
    assert token_ids({}) == {}


def test_ends_of_a_sentencepiece_vocabulary_are_known_without_keys():
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"]}
    assert token_ids(metadata) == {"bos_token_id": 1, "eos_token_id": 2}
