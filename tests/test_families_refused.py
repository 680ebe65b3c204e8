"""A config.json that asks for what minillm lacks, or makes no sense, is refused by name."""

import copy
import functools
import math
import re
from typing import Any

import pytest

from minillm.hf_config import read_config
from tests.parity.models import RICHEST, settings, written


def with_rope(model_type, **changes):
    found = settings(model_type)
    rope = found["rope_parameters"]
    (rope.get("full_attention") or rope).update(changes)
    return found


def assert_refused(found, said):
    """The message names the key and the value at fault."""
    with pytest.raises(ValueError, match=".*".join(map(re.escape, said))):
        read_config(found)


def _named(value):
    """The id of a test: what the message has to say."""
    return "=".join(value)[:60] if isinstance(value, list) else ""


ODD = [None, True, 0, -1, 1.5, math.nan, math.inf, 10**30, "x", "", [], [1], ["x"], {}, {"a": 1}]


@pytest.mark.parametrize("model_type", RICHEST)
def test_odd_values_are_refused_by_name_or_change_nothing(model_type):
    """Whatever stands in the file: a ValueError, or a model that is meant; never another error."""

    def keys(found, path=()):
        for key, value in found.items():
            yield *path, key
            if isinstance(value, dict):
                yield from keys(value, (*path, key))

    whole = settings(model_type)
    for path in keys(whole):
        for value in ODD:
            found = copy.deepcopy(whole)
            functools.reduce(dict.__getitem__, path[:-1], found)[path[-1]] = value
            try:
                config = read_config(found)
            except ValueError:
                continue
            except Exception as error:
                raise AssertionError(f"{path} = {value!r}") from error
            config.num_parameters(), config.context
            for layer in config.layers:
                _ = layer.rope and layer.rope.attention_scale


UNKNOWN_FAMILIES: list[Any] = [
    *("gemma2", "gemma3n", "llama4", "llama4_text", "mllama", "mamba", "phi", "phimoe"),
    *("qwen2_moe", "qwen2_vl", "qwen3_next", "olmo", "olmo3", "deepseek_v3", "gpt2", "Llama"),
    *("llama ", "", None, 5, [], ["llama"], {}),
]
UNKNOWN_ACTIVATIONS: list[Any] = [
    *("gelu", "gelu_new", "quick_gelu", "relu", "relu2", "SiLU", "", 0, ["silu"], {}),
]
UNKNOWN_ROPES: list[Any] = ["mrope", "proportional", "ntk", "xpos", "YARN", "", 5, ["yarn"]]
GPTQ = {"quant_method": "gptq", "bits": 4}
MROPE = {"rope_type": "mrope", "mrope_section": [2, 1, 1]}
REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    # A family that is not known, or only looks like one
    *(({"model_type": name}, [f"model_type is {name!r}"]) for name in UNKNOWN_FAMILIES),
    # What gates the feed-forward network
    *(({"hidden_act": name}, [f"hidden_act is {name!r}"]) for name in UNKNOWN_ACTIVATIONS),
    # Rotations
    *(
        ({"rope_parameters": {"rope_type": name, "factor": 2.0}}, [f"rope_type is {name!r}"])
        for name in UNKNOWN_ROPES
    ),
    ({"rope_scaling": MROPE, "rope_parameters": None}, ["rope_type", "'mrope'"]),
    ({"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}}, ["mrope_section"]),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}}, ["mscale", "0.7"]),
    (
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0}},
        ["mscale_all_dim", "1.0"],
    ),
    ({"rope_parameters": {"full_attention": 5}}, ["full_attention", "5"]),
    # Attention
    ({"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping", "50.0"]),
    ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping", "30.0"]),
    ({"use_bidirectional_attention": True}, ["use_bidirectional_attention", "True"]),
    ({"use_bidirectional_attention": "all"}, ["use_bidirectional_attention", "'all'"]),
    ({"is_causal": False}, ["is_causal", "False"]),
    ({"attention_chunk_size": 8192}, ["attention_chunk_size", "8192"]),
    ({"clip_qkv": 8.0}, ["clip_qkv", "8.0"]),
    ({"kv_lora_rank": 512}, ["kv_lora_rank", "512"]),
    ({"q_lora_rank": 1536}, ["q_lora_rank", "1536"]),
    ({"layer_types": ["chunked_attention"] * 3}, ["layer_types[0]", "'chunked_attention'"]),
    ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, ["layer_types[1]"]),
    ({"layer_types": "full_attention"}, ["layer_types"]),
    ({"layer_types": ["full_attention"] * 4}, ["layer_types"]),
    ({"is_encoder_decoder": True}, ["is_encoder_decoder", "True"]),
    ({"add_cross_attention": True}, ["add_cross_attention", "True"]),
    # Scales of other families
    ({"attention_multiplier": 0.0078125}, ["attention_multiplier", "0.0078125"]),
    ({"embedding_multiplier": 12.0}, ["embedding_multiplier", "12.0"]),
    ({"residual_multiplier": 0.22}, ["residual_multiplier", "0.22"]),
    ({"logits_scaling": 8.0}, ["logits_scaling", "8.0"]),
    ({"logit_scale": 0.0625}, ["logit_scale", "0.0625"]),
    # Experts of other families
    ({"n_shared_experts": 1}, ["n_shared_experts", "1"]),
    ({"shared_expert_intermediate_size": 128}, ["shared_expert_intermediate_size", "128"]),
    # Files that hold something else
    ({"quantization_config": GPTQ | {"bits": 3}}, ["quantization_config", "bits", "3", "4 and 8"]),
    ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8"]),
    ({"compression_config": {"format": "x"}}, ["compression_config"]),
    ({"text_config": {"model_type": "llama"}}, ["text_config"]),
    ({"vision_config": {"model_type": "siglip"}}, ["vision_config"]),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED, ids=_named)
def test_a_feature_that_is_missing_is_refused_by_name(changes, said):
    found = {key: value for key, value in written("llama-mha").items() if key not in changes}
    assert_refused(found | changes, said)


# A family's own keys
OWN = [
    (settings("gemma3_text", hidden_activation="gelu"), ["hidden_act", "'gelu'"]),
    (settings("gemma3_text", hidden_activation=["silu"]), ["hidden_act", "['silu']"]),
    (settings("gemma3_text", query_pre_attn_scalar=0), ["query_pre_attn_scalar", "0"]),
    (settings("gemma3_text", attn_logit_softcapping=50.0), ["attn_logit_softcapping", "50.0"]),
    (settings("gemma3_text", final_logit_softcapping=30.0), ["final_logit_softcapping", "30.0"]),
    (
        settings("gemma3_text", use_bidirectional_attention=True),
        ["use_bidirectional_attention", "True"],
    ),
    (settings("gemma3_text", layer_types=None, sliding_window_pattern=0), ["pattern is 0"]),
    (settings("gemma3_text", layer_types=None, sliding_window_pattern="LLG"), ["'LLG'"]),
    (settings("gemma3_text", sliding_window=None), ["sliding_window"]),
    (settings("gemma3_text", sliding_window=-1), ["sliding_window is -1"]),
    (settings("gemma3_text", rope_parameters={"full_attention": []}), ["full_attention"]),
    (settings("gemma3_text", rope_parameters={"sliding_attention": "x"}), ["sliding_attention"]),
    (with_rope("gemma3_text", rope_type="mrope"), ["rope_type", "'mrope'"]),
    (with_rope("phi3", short_factor=[1.0] * 5), ["short_factor has 5"]),
    (with_rope("phi3", short_factor=[1.0] * 5, long_factor=[1.0] * 5), ["5 factors"]),
    (with_rope("phi3", long_factor=2.0), ["long_factor is 2.0"]),
    (with_rope("phi3", long_factor=None), ["long_factor"]),
    (with_rope("phi3", long_factor=[1.0] * 5 + ["1"]), ["long_factor is '1'"]),
    (with_rope("phi3", long_factor=[1.0] * 5 + [0.0]), ["long_factor is 0.0"]),
    (with_rope("phi3", long_factor=[1.0] * 5 + [math.nan]), ["long_factor is nan"]),
    (with_rope("phi3", partial_rotary_factor=0.7), ["partial_rotary_factor 0.7"]),
    (with_rope("phi3", partial_rotary_factor=1.5), ["partial_rotary_factor is 1.5"]),
    (with_rope("phi3", partial_rotary_factor=-1), ["partial_rotary_factor is -1"]),
    (settings("phi3", original_max_position_embeddings=0), ["longrope"]),
    (settings("phi3", original_max_position_embeddings=1), ["original_max_position_embeddings"]),
    (settings("smollm3", no_rope_layers=[1, 0]), ["no_rope_layers"]),
    (settings("smollm3", no_rope_layers=[1, 0, 2, 1]), ["no_rope_layers[2] is 2"]),
    (settings("smollm3", no_rope_layers="1010"), ["no_rope_layers is '1010'"]),
    (settings("smollm3", no_rope_layers=None, no_rope_layer_interval=0), ["interval is 0"]),
    (settings("smollm3", use_sliding_window="false"), ["use_sliding_window", "'false'"]),
    (settings("qwen2", use_sliding_window=1), ["use_sliding_window", "1"]),
    (settings("qwen2", layer_types=None, max_window_layers="1"), ["max_window_layers is '1'"]),
    (settings("qwen2", sliding_window=None), ["sliding_window"]),
    (settings("mixtral", num_local_experts=0), ["num_local_experts is 0"]),
    (settings("mixtral", num_local_experts=10**9), ["experts is 1000000000"]),
    (settings("mixtral", num_experts_per_tok=6), ["num_experts_per_tok is 6"]),
    (settings("mixtral", num_experts_per_tok=0), ["num_experts_per_tok is 0"]),
    (settings("mixtral", num_experts_per_tok="2"), ["num_experts_per_tok is '2'"]),
    (settings("qwen3_moe", moe_intermediate_size=None), ["intermediate_size"]),
    (settings("qwen3_moe", decoder_sparse_step=0), ["decoder_sparse_step is 0"]),
    (settings("qwen3_moe", mlp_only_layers="1"), ["mlp_only_layers is '1'"]),
    (settings("qwen3_moe", mlp_only_layers=["1"]), ["mlp_only_layers", "'1'"]),
    (settings("qwen3_moe", norm_topk_prob="true"), ["norm_topk_prob is 'true'"]),
    (settings("llama", head_dim=7), ["head_dim is 7"]),
    (settings("llama", partial_rotary_factor=0.5), ["partial_rotary_factor", "0.5"]),
]


@pytest.mark.parametrize(("found", "said"), OWN, ids=_named)
def test_a_familys_own_keys_are_checked(found, said):
    assert_refused(found, said)


def test_dynamic_scaling_starts_where_transformers_starts_it():
    """At max_position_embeddings, whatever else the file says."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    plain = read_config(settings("llama", rope_parameters=rope))
    assert {layer.rope.original_max_position_embeddings for layer in plain.layers} == {128}  # type: ignore[union-attr]
    rope |= {"original_max_position_embeddings": 64}
    assert read_config(settings("llama", rope_parameters=rope)) == plain
