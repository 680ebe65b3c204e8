"""GGUF files whose metadata or tensors a Hugging Face folder could not express."""

import numpy as np
import pytest

from minillm.weights.gguf import convert, open_gguf
from tests.weights.helpers import HEADS, D, tiny_tensors, write_gguf

L = "llama."
REFUSED = {
    "architecture": ({"general.architecture": "mamba"}, r"architecture is 'mamba'; supported are"),
    "no_experts": ({"general.architecture": "qwen3moe"}, r"architecture is 'qwen3moe'"),
    "adapter": ({"general.type": "adapter"}, r"general\.type is 'adapter'; supported is 'model'"),
    "unknown_key": ({L + "logit_scale": 8.0}, r"carried over: llama\.logit_scale"),
    "window": ({L + "attention.sliding_window": 64}, r"llama\.attention\.sliding_window"),
    "rope_scaling": ({L + "rope.scaling.type": "ntk"}, r"'ntk'; known are none, linear"),
    "no_factors": ({L + "rope.scaling.type": "longrope"}, r"longrope needs the tensors rope_fac"),
    "yarn_mix": (
        {
            L + "rope.scaling.type": "yarn",
            L + "rope.scaling.factor": 4.0,
            L + "rope.scaling.yarn_ext_factor": 0.5,
        },
        r"yarn_ext_factor is 0\.5",
    ),
    "attention_factor": ({L + "rope.scaling.attn_factor": 1.5}, r"attn_factor is 1\.5; without"),
    "no_base": ({L + "rope.freq_base": -1.0}, r"freq_base is -1\.0; a number above 0"),
    "partial_rope": ({L + "rope.dimension_count": 4}, "dimension_count is 4"),
    "value_width": ({L + "attention.value_length": 4}, "value_length is 4 and the head width is 8"),
    "no_heads": ({L + "attention.head_count": None}, "head_count is None"),
    "zero_heads": ({L + "attention.head_count": 0}, "head_count is 0"),
    "true_heads": ({L + "attention.head_count": True}, "head_count is True"),
    "heads_by_layer": ({L + "attention.head_count_kv": [2, 2]}, r"head_count_kv is \[2, 2\]"),
    "no_epsilon": ({L + "attention.layer_norm_rms_epsilon": None}, "epsilon is None"),
    "more_layers": ({L + "block_count": 3}, r"missing: blk\.2\."),
    "fewer_layers": ({L + "block_count": 1}, r"unexpected: blk\.1\."),
    "many_layers": ({L + "block_count": 10**6}, r"block_count is 1000000; 256 at most"),
    "experts": ({L + "expert_count": 8}, r"expert_used_count is None"),
    "few_experts": ({L + "expert_count": 2, L + "expert_used_count": 3}, "is 3, of 2 experts"),
    "wrong_width": ({L + "feed_forward_length": 64}, r"the metadata says \[96, 64\]"),
    "vocabulary": ({L + "vocab_size": 9}, r"token_embd\.weight is \[263, 96\]"),
    "eos": ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000"),
    "eot": ({"tokenizer.ggml.eot_token_id": 263}, "eot_token_id is 263, beyond the vocabulary"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_folder_could_not_express_is_refused(tmp_path, change, message):
    write_gguf(tmp_path / "tiny.gguf", tiny_tensors(), change=change)
    with pytest.raises(ValueError, match=rf"tiny\.gguf: .*{message}") as caught:
        convert(tmp_path / "tiny.gguf", tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_bias_of_one_projection_alone_is_refused(tmp_path):
    bias = np.zeros(HEADS * D, np.float32)
    for name, message in (("q", r"missing: blk\.0\.attn_k\.bias"), ("k", r"unexpected: blk\.0\.")):
        write_gguf(tmp_path / "a.gguf", tiny_tensors() | {f"blk.0.attn_{name}.bias": bias})
        with pytest.raises(ValueError, match=message):
            open_gguf(tmp_path / "a.gguf")


def test_a_bias_in_blocks_is_refused(tmp_path):
    tensors = tiny_tensors()
    for layer in range(2):
        for name in ("q", "k", "v", "output"):
            tensors[f"blk.{layer}.attn_{name}.weight"] = np.zeros((96, 96), np.float32)
            tensors[f"blk.{layer}.attn_{name}.bias"] = np.zeros(96, np.float32)
    # Heads of 16 values, as many for the keys, so that a bias holds whole blocks of 32.
    change = {L + "attention.head_count_kv": 6, L + "rope.dimension_count": 16}
    change |= {L + "attention.key_length": 16, L + "attention.value_length": 16}
    write_gguf(tmp_path / "a.gguf", tensors, change=change)
    assert open_gguf(tmp_path / "a.gguf").settings["attention_bias"] is True
    write_gguf(tmp_path / "a.gguf", tensors, types={"blk.1.attn_k.bias": "Q8_0"}, change=change)
    with pytest.raises(ValueError, match="a bias is Q8_0; supported are F32"):
        open_gguf(tmp_path / "a.gguf")


def test_factors_of_the_wrong_length_are_refused(tmp_path):
    for factors, message in (
        (np.ones(3), r"rope_freqs\.weight is \[3\]; \[4\] is needed"),
        (np.array([1, 0, 1, 1]), "values that are not above 0"),
        (np.array([1, np.nan, 1, 1]), "values that are not above 0"),
    ):
        tensors = tiny_tensors() | {"rope_freqs.weight": factors.astype(np.float32)}
        write_gguf(tmp_path / "a.gguf", tensors)
        with pytest.raises(ValueError, match=message):
            open_gguf(tmp_path / "a.gguf")
