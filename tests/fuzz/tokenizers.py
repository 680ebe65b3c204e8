"""Two small tokenizers, always the same: byte-level BPE, and one in the manner of SentencePiece."""

import json
from pathlib import Path
from typing import Any

from minillm.tokenizer import Tokenizer

TEXTS = ["the theme of the other hand", "hello world, hello there", "1984 and 42: ½ Grüße 🌶"] * 3
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
CHARACTERS = "▁etaoinshrdlucmfwygpbvkxqjz0123456789.,:!?'<|>_EH"
MERGES = ["t h", "th e", "▁ the", "h e", "l l", "he ll", "hell o", "▁ hello", "▁ a", "n d", "▁a nd"]
MERGES += ["o f", "▁ of", "o ther", "t her", "e r", "th er", "o r", "▁ w", "▁▁ ▁▁", "▁ ▁", "r l"]


def byte_level(path: Path) -> int:
    """Write a byte-level tokenizer.json; returns the number of tokens."""
    tokenizer = Tokenizer.train(TEXTS, vocab_size=300, special_tokens=SPECIAL)
    tokenizer.save(path)
    return tokenizer.vocab_size


def sentencepiece(path: Path, *, prefix: bool) -> int:
    """Write a tokenizer.json with byte fallback; returns the number of tokens.

    prefix: a space is put before the text, as in Llama 2; without it, as in Gemma.
    """
    tokens, merges = sentencepiece_vocabulary()
    special = ["<unk>", "<s>", "</s>", *SPECIAL]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    cut = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}
    begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*begin, {"Sequence": {"id": "B", "type_id": 1}}]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": tokens.index(content), "content": content, **plain, "special": True}
            for content in special
        ],
        "normalizer": prepend if prefix else space,
        "pre_tokenizer": None if prefix else cut | {"invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": begin,
            "pair": pair,
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges,
        },
    }
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return len(tokens)


def sentencepiece_vocabulary() -> tuple[list[str], list[list[str]]]:
    """Tokens by id, and merges: controls, bytes, characters, what the merges make."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *CHARACTERS]
    merges = []
    for merge in MERGES:
        left, right = merge.split(" ")
        if {left, right} <= set(tokens) and left + right not in tokens:
            tokens.append(left + right)
            merges.append([left, right])
    return [*tokens, *SPECIAL], merges
