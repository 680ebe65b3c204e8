"""Reading config.json of every family: published files, both spellings, what they leave unsaid."""

import math

import pytest

from minillm.config import ExpertsConfig
from minillm.families import FAMILIES
from minillm.hf_config import read_config
from tests.parity.models import CASES, RICHEST, old_spelling, settings, settings_of, written
from tests.published import PUBLISHED


def test_every_family_is_tested():
    assert RICHEST.keys() == FAMILIES.keys()
    assert {case.family for case in CASES.values()} >= {
        CASES[name].family for name in RICHEST.values()
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_size(name):
    found, parameters = PUBLISHED[name]
    assert read_config(found).num_parameters() == parameters


def test_features_of_published_models():
    def layers(name):
        return read_config(PUBLISHED[name][0]).layers

    assert [layer.rope is None for layer in layers("SmolLM3-3B")] == [False, False, False, True] * 9
    assert [layer.sliding_window for layer in layers("gemma-3-1b")][:7] == [512] * 5 + [None, 512]
    bases = [layer.rope.rope_theta for layer in layers("gemma-3-1b")][:7]
    assert bases == [1e4] * 5 + [1e6, 1e4]
    assert {layer.sliding_window for layer in layers("Mistral-7B-v0.1")} == {4096}
    assert {layer.sliding_window for layer in layers("Qwen2.5-0.5B")} == {None}
    assert layers("Llama-3.1-8B")[0].rope.rope_type == "llama3"
    for name in ("Phi-3-mini-128k", "Phi-4-mini"):
        rope = layers(name)[0].rope
        assert (rope.rope_type, rope.original_max_position_embeddings) == ("longrope", 4096)
        # sqrt(1 + ln(131072 / 4096) / ln(4096))
        assert rope.attention_scale == pytest.approx(math.sqrt(1 + 5 / 12))
    config = read_config(PUBLISHED["Qwen3-30B-A3B"][0])
    assert {layer.experts for layer in config.layers} == {ExpertsConfig(128, 8, 768, True)}
    gemma = read_config(PUBLISHED["gemma-3-270m"][0])
    assert gemma.embedding_scale == pytest.approx(math.sqrt(640))
    assert (gemma.tie_word_embeddings, gemma.activation, gemma.norms) == (True, "geglu", "both")


@pytest.mark.parametrize("type_key", ["type", "rope_type"])
@pytest.mark.parametrize("name", CASES)
def test_older_spelling_means_the_same(name, type_key):
    assert read_config(old_spelling(written(name), type_key)) == read_config(written(name))


@pytest.mark.parametrize("spelling", ["newer", "older"])
@pytest.mark.parametrize("name", CASES)
def test_what_a_file_leaves_unsaid_is_what_transformers_takes(name, spelling):
    """Without any one key: the model that transformers would make of it, or a refusal."""
    whole = written(name) if spelling == "newer" else old_spelling(written(name))
    for key in whole:
        rest = {other: value for other, value in whole.items() if other != key}
        if key == "num_key_value_heads":
            continue  # taken as all heads; where there are others, the weights do not fit
        try:
            found = read_config(rest)
        except ValueError:
            continue
        expected = type(settings_of(CASES[name])).from_dict(rest).to_dict()
        assert found == read_config(expected), key


@pytest.mark.parametrize("model_type", RICHEST)
def test_values_that_say_nothing_are_taken(model_type):
    neutral = {
        "attention_chunk_size": None,
        "attn_logit_softcapping": None,
        "quantization_config": None,
        "use_bidirectional_attention": False,
        "rope_interleaved": False,
        "pretraining_tp": 2,
        "an_unknown_key": "any",
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    }
    assert read_config(settings(model_type, **neutral)) == read_config(settings(model_type))


def test_m12_head_dim_is_not_width_over_heads():
    toy = {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    for model_type in ("llama", "mistral", "qwen3", "qwen3_moe", "gemma3_text", "mixtral"):
        assert read_config(settings(model_type, **toy)).head_dim == 16
