"""`LLM.save`: transformers opens the folder and computes the same, whatever the family."""

import json
import shutil

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
)

from minillm import LLM, Tokenizer
from tests.parity.models import CASES, SIZES, saved, token_ids

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory):
    """A folder with a small tokenizer and a chat template, and nothing else."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "~"})
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def _tokenizer_json():
    """94 tokens, for the tiny models have 97 ids: the printable bytes."""
    letters = [chr(code) for code in range(0x21, 0x7F)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level | {"use_regex": True},
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {letter: i for i, letter in enumerate(letters)},
            "merges": [],
        },
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_transformers_gets_equal_logits(name, dtype, tokenizer_files, tmp_path):
    folder = tmp_path / "original"
    shutil.copytree(saved(name), folder)
    shutil.copytree(tokenizer_files, folder, dirs_exist_ok=True)
    llm = LLM.from_pretrained(folder, device="cpu", dtype=dtype)
    written = llm.save(tmp_path / "written")

    again = AutoModelForCausalLM.from_pretrained(written)
    assert str(again.dtype) == f"torch.{dtype}"
    ids = token_ids(2, 40)
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=again.dtype)
    assert torch.equal(again(ids, use_cache=False).logits, original(ids, use_cache=False).logits)
    reopened = LLM.from_pretrained(written, device="cpu", dtype=dtype)
    row = ids[0, : llm.config.context].tolist()
    assert torch.equal(reopened.logits(row), llm.logits(row))
    messages = [{"role": "user", "content": "hello"}]
    assert reopened.chat_ids(messages) == llm.chat_ids(messages) == llm.tokenizer.encode("hello")


def test_the_text_part_of_a_model_that_sees(tokenizer_files, tmp_path):
    text = dict(SIZES, head_dim=16, sliding_window=9, query_pre_attn_scalar=24, vocab_size=97)
    vision = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    tokens = {"image_token_index": 90, "boi_token_index": 91, "eoi_token_index": 92}
    torch.manual_seed(0)
    config = Gemma3Config(text_config=text, vision_config=vision, **tokens)
    seeing = Gemma3ForConditionalGeneration(config).eval()
    seeing.save_pretrained(tmp_path / "seeing")
    shutil.copytree(tokenizer_files, tmp_path / "seeing", dirs_exist_ok=True)
    llm = LLM.from_pretrained(tmp_path / "seeing", device="cpu", dtype="float32")
    ids = token_ids(1, 40) % 90
    found, expected = llm.logits(ids[0].tolist()), seeing(ids).logits[0]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    alone = AutoModelForCausalLM.from_pretrained(llm.save(tmp_path / "text"))
    assert torch.allclose(alone(ids).logits[0], expected, atol=1e-5)


def test_the_real_model_out_of_its_gguf_file(smollm2, tmp_path):
    gguf = next(smollm2.glob("*.gguf"))
    llm = LLM.from_pretrained(gguf, device="cpu", dtype="bfloat16")
    written = llm.save(tmp_path / "smollm2")
    again = AutoModelForCausalLM.from_pretrained(written, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(written)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = llm.chat_ids(messages)
    assert ids == tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    found = llm.logits(ids)
    expected = again(torch.tensor([ids])).logits[0].float()
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()
    assert again.generation_config.eos_token_id == next(iter(llm.eos_token_ids))


def test_what_cannot_be_saved(smollm2, tmp_path):
    llm = LLM.from_pretrained(smollm2, device="cpu", window=64)
    with pytest.raises(ValueError, match="got other windows"):
        llm.save(tmp_path / "new")
    without_files = LLM(llm.model, Tokenizer.train(["a"], vocab_size=256))
    with pytest.raises(ValueError, match="was not read from files"):
        without_files.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
