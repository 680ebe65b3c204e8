"""Files that transformers itself writes: ids, text and chats equal its own."""

import random
from typing import Any

import pytest
import transformers

from minillm.tokenizer import ChatTemplate, open_tokenizer
from tests.tokenizer.helpers import FRAGMENTS, random_text
from tests.tokenizer.layouts import BOS, trained
from tests.tokenizer.test_sentencepiece import CHAT, MARKS

GEMMA = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>", "mask_token": "<|user|>"}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaTokenizer, {"add_bos_token": True}),
    "llama-without-prefix": (transformers.LlamaTokenizer, {"add_prefix_space": False}),
    "llama-legacy": (transformers.LlamaTokenizer, {"legacy": True, "add_bos_token": True}),
    "gemma": (transformers.GemmaTokenizer, GEMMA),
}


@pytest.fixture(params=KINDS)
def written(request, tmp_path):
    """transformers' tokenizer, and the folder that it saves."""
    kind, options = KINDS[request.param]
    vocab, merges = trained()
    theirs = kind(vocab=dict(vocab), merges=[(left, right) for left, right in merges], **options)
    theirs.add_tokens(["<|end|>", "\n\n\n"])
    theirs.chat_template = CHAT
    theirs.save_pretrained(tmp_path)
    return theirs, tmp_path


def test_ids_and_text(written, newest):
    theirs, folder = written
    ours = open_tokenizer(folder / "tokenizer.json")
    rng = random.Random(11)
    strings = [*FRAGMENTS, *MARKS, *(random_text(rng, newest) for _ in range(200))]
    strings += [rng.choice(MARKS) + text + rng.choice(MARKS) for text in strings]
    for text in strings:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text, allowed_special="all") == ids, text
        for skip in (False, True):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected


def test_a09_a_chat(written):
    theirs, folder = written
    ours, chat = open_tokenizer(folder / "tokenizer.json"), ChatTemplate.from_folder(folder)
    assert chat is not None
    messages = [{"role": "user", "content": text} for text in ("Hello  world", " x\n\n\n한")]
    ids = chat.encode(ours, messages)
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert (ids[0], ids.count(BOS)) == (BOS, 1)
