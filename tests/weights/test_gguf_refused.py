"""GGUF files that a Hugging Face folder could not express, or that are not whole."""

import struct

import numpy as np
import pytest

from minillm.weights.gguf import convert
from tests.weights.helpers import HEADS, D, tiny_tensors, write_gguf

REFUSED = {
    "architecture": ({"general.architecture": "qwen2"}, r"general\.architecture is 'qwen2'"),
    "unknown_key": ({"llama.expert_count": 8}, r"carried over: llama\.expert_count"),
    "window": ({"llama.attention.sliding_window": 64}, r"llama\.attention\.sliding_window"),
    "rope_scaling": ({"llama.rope.scaling.type": "yarn"}, "'yarn'"),
    "partial_rope": ({"llama.rope.dimension_count": 4}, "dimension_count is 4"),
    "no_heads": ({"llama.attention.head_count": None}, "head_count is None"),
    "zero_heads": ({"llama.attention.head_count": 0}, "head_count is 0"),
    "heads_by_layer": ({"llama.attention.head_count_kv": [2, 2]}, r"head_count_kv is \[2, 2\]"),
    "no_epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "epsilon is None"),
    "more_layers": ({"llama.block_count": 3}, r"missing: blk\.2\."),
    "fewer_layers": ({"llama.block_count": 1}, r"unexpected: blk\.1\."),
    "wrong_width": ({"llama.feed_forward_length": 64}, r"the metadata says \[96, 64\]"),
    "vocabulary": ({"llama.vocab_size": 9}, r"token_embd\.weight is \[263, 96\]"),
    "token_twice": ({"tokenizer.ggml.tokens": ["a"] * 263}, "263 tokens, 1 of them"),
    "tokenizer_kind": ({"tokenizer.ggml.model": "llama"}, r"model is 'llama'"),
    "split": ({"tokenizer.ggml.pre": "llama-bpe"}, r"pre is 'llama-bpe'; supported are gpt-2"),
    "no_split": ({"tokenizer.ggml.pre": None}, "pre is None"),
    "adds_bos": ({"tokenizer.ggml.add_bos_token": True}, "add_bos_token is true"),
    "merges": ({"tokenizer.ggml.merges": ["t h", "t h e"]}, "'t h e'"),
    "merge_unknown": ({"tokenizer.ggml.merges": ["q q"]}, "'q q'"),
    "token_types": ({"tokenizer.ggml.token_type": [1, 3]}, "2 token types"),
    "eos": ({"tokenizer.ggml.eos_token_id": 10**6}, "eos_token_id is 1000000"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_the_folder_could_not_express_is_refused(tmp_path, change, message):
    write_gguf(tmp_path / "tiny.gguf", tiny_tensors(), change=change)
    with pytest.raises(ValueError, match=rf"tiny\.gguf: .*{message}") as caught:
        convert(tmp_path / "tiny.gguf", tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_bias_is_refused_by_name(tmp_path):
    tensors = tiny_tensors() | {"blk.0.attn_q.bias": np.zeros(HEADS * D, np.float32)}
    write_gguf(tmp_path / "tiny.gguf", tensors)
    with pytest.raises(ValueError, match=r"unexpected: blk\.0\.attn_q\.bias"):
        convert(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 4, 12, 40, 500, 20_000, -1])
def test_a_cut_file_is_refused(tmp_path, keep):
    write_gguf(tmp_path / "tiny.gguf", tiny_tensors())
    content = (tmp_path / "tiny.gguf").read_bytes()
    # The file ends with padding after the last tensor: cut into the tensor itself.
    (tmp_path / "tiny.gguf").write_bytes(content[:keep] if keep >= 0 else content[:-64])
    with pytest.raises(ValueError, match=r"tiny\.gguf: "):
        convert(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("start", [b"version https://git-lfs", b"PK\3\4", struct.pack(">I", 1)])
def test_another_kind_of_file_is_refused(tmp_path, start):
    (tmp_path / "tiny.gguf").write_bytes(start + bytes(100))
    with pytest.raises(ValueError, match="not a GGUF file"):
        convert(tmp_path / "tiny.gguf", tmp_path)
