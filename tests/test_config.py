"""Reading a config.json: both spellings, the families, and everything that is refused."""

import json
import re

import pytest

from minillm.config import LayerConfig, RopeConfig, read_json
from minillm.hf_config import read_config

LLAMA = {
    "model_type": "llama",
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1_536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8_192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000,
    "tie_word_embeddings": True,
}


def test_smollm2_by_hand():
    config = read_config(LLAMA)
    # 28,311,552 in the embedding; 30 · (2·576·576 + 2·576·192 + 3·576·1536 + 2·576); 576.
    assert config.num_parameters() == 134_515_008
    assert config.head_dim == 64
    # 2 · L · K · D values per token
    assert config.cache_bytes_per_token(2) == 2 * 30 * 3 * 64 * 2 == 23_040
    assert config.layers[29].rope == RopeConfig(rope_theta=100_000)
    assert config.layers[0].sliding_window is None


def test_both_spellings_of_rope():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8_192,
    }
    old = read_config(LLAMA | {"rope_scaling": scaling})
    new = read_config(
        {key: value for key, value in LLAMA.items() if key != "rope_theta"}
        | {"rope_parameters": scaling | {"rope_theta": 100_000}}
    )
    oldest = dict(scaling)
    oldest["type"] = oldest.pop("rope_type")
    assert old == new == read_config(LLAMA | {"rope_scaling": oldest})
    assert old.layers[0].rope == RopeConfig(100_000, "llama3", 8.0, 8_192)


def test_m12_head_dim_is_not_width_over_heads():
    small = {"hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    assert read_config(LLAMA | small).head_dim == 16
    assert read_config(LLAMA | small | {"head_dim": None}).head_dim == 10


def test_absent_key_value_heads_mean_multi_head_attention():
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read_config(config).num_key_value_heads == 9


def test_windows_by_layer():
    layer_types = ["full_attention", "sliding_attention"] * 15
    listed = {"sliding_window": 7, "layer_types": layer_types}
    config = read_config(LLAMA | {"model_type": "qwen2", "use_sliding_window": True} | listed)
    assert [layer.sliding_window for layer in config.layers] == [None, 7] * 15
    with pytest.raises(
        ValueError, match=r"layer_types\[0\] is 'full_attention'; it may be sliding"
    ):
        read_config(LLAMA | {"model_type": "mistral"} | listed)  # its code has one kind of layer
    mistral = read_config(LLAMA | {"model_type": "mistral", "sliding_window": 7})
    assert {layer.sliding_window for layer in mistral.layers} == {7}
    llama = read_config(LLAMA | {"sliding_window": 7})  # Llama's own code has no window
    assert {layer.sliding_window for layer in llama.layers} == {None}


def test_qwen_window_counts_only_with_its_flag():
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 7, "max_window_layers": 28}
    assert {layer.sliding_window for layer in read_config(qwen).layers} == {None}
    flagged = read_config(qwen | {"use_sliding_window": True})
    assert [layer.sliding_window for layer in flagged.layers] == [None] * 28 + [7] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'; known are llama"),
        ({"model_type": None}, "model_type is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"model_type": "phi3", "partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.01}, "would rotate 0 values"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.05}, "would rotate 3 values"),
        ({"rope_scaling": {"rope_type": "mrope", "factor": 2.0}}, "rope_type is 'mrope'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor has 0 entries"),
        ({"rope_scaling": {"rope_type": ["yarn"], "factor": 2.0}}, "rope_type is"),
        ({"rope_scaling": {"rope_type": "linear"}}, "needs a factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "8"}}, "factor is '8'"),
        ({"rope_scaling": 5}, "an object is needed"),
        ({"vocab_size": None}, "no 'vocab_size'"),
        ({"vocab_size": "49152"}, "vocab_size is '49152'"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"hidden_size": 2**31 - 1, "head_dim": 64}, "hidden_size 2147483647 among them"),
        ({"num_hidden_layers": 257}, "num_hidden_layers is 257"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": []}, r"num_hidden_layers is \[\]"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 2}, "must divide"),
        ({"head_dim": 63}, "head_dim is 63"),
        ({"num_attention_heads": 600, "num_key_value_heads": 600}, "head_dim is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"rms_norm_eps": 10**30}, "rms_norm_eps is 10"),  # an int that no float64 op takes
        ({"rope_scaling": {"rope_type": "default", "high_freq_factor": []}}, "high_freq_factor is"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_slow": 1e308}},
            "beta_slow is 1e",  # the logarithm of 0 in the first forward pass
        ),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"attention_bias": 1}, "attention_bias is 1"),
        ({"layer_types": ["full_attention"]}, "one entry per layer"),
        ({"layer_types": ["linear_attention"] * 30}, r"layer_types\[0\] is 'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 30}, r"layer_types\[0\] is 'sliding_attention'"),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 30},
            "without a sliding_window",
        ),
        ({"model_type": "mistral", "sliding_window": -4}, "sliding_window is -4"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_config(LLAMA | changes)


@pytest.mark.parametrize("text", ["{", "[]", "\x00", "[" * 100_000, '"text"', "nul"])
def test_broken_json_names_the_file(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_json(path)


def test_json_that_is_not_utf8(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(json.dumps(LLAMA).encode() + b"\xff\xfe")
    with pytest.raises(ValueError, match="not valid JSON"):
        read_json(path)


def test_with_window():
    config = read_config(LLAMA)
    rope = config.layers[0].rope
    local = config.with_window(64, sinks=2)
    assert local.layers == (LayerConfig(64, rope, sinks=2),) * 30
    assert config.layers == (LayerConfig(None, rope),) * 30
    mixed = config.with_window(64, global_every=6)
    windows = [layer.sliding_window for layer in mixed.layers]
    assert windows == [64, 64, 64, 64, 64, None] * 5
    assert config.with_window(64, global_every=1) == config
    assert config.with_window(64, global_every=31) == config.with_window(64)
    assert local.with_window(9).layers == (LayerConfig(9, rope),) * 30
    half = local.with_window(9, global_every=2)  # a layer that is left out stays as it is
    assert [layer.sliding_window for layer in half.layers] == [9, 64] * 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window is 0"),
        ({"window": -4}, "window is -4"),
        ({"window": True}, "window is True"),
        ({"window": 2.0}, "window is 2.0"),
        ({"window": None}, "window is None"),
        ({"window": "64"}, "window is '64'"),
        ({"window": 64, "sinks": -1}, "sinks is -1"),
        ({"window": 64, "sinks": True}, "sinks is True"),
        ({"window": 64, "sinks": 1.5}, "sinks is 1.5"),
        ({"window": 64, "global_every": 0}, "global_every is 0"),
        ({"window": 64, "global_every": -6}, "global_every is -6"),
        ({"window": 64, "global_every": True}, "global_every is True"),
    ],
)
def test_with_window_refuses(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}; a whole number from 1"):
        read_config(LLAMA).with_window(**arguments)


def test_context_is_unlimited_where_all_layers_have_a_window():
    config = read_config(LLAMA)
    assert config.context == 8_192
    assert config.with_window(8_192).context is None
    assert config.with_window(8_192, sinks=1).context == 8_192
    assert config.with_window(8_193).context == 8_192  # reaches further than the trained length
    assert config.with_window(64, sinks=4).context is None
    assert config.with_window(64, global_every=6).context == 8_192
    assert config.with_window(64, global_every=31).context is None
