"""Two small tokenizers, always the same: byte-level BPE, and one in the manner of SentencePiece."""

import json
from pathlib import Path
from typing import Any

from minillm.tokenizer import Tokenizer

TEXTS = ["the theme of the other hand", "hello world, hello there", "1984 and 42: ½ Grüße 🌶"] * 3
SPECIAL = ["<|end|>", "<|im_start|>", "<|im_end|>"]
CHARACTERS = "▁etaoinshrdlucmfwygpbvkxqjz0123456789.,:!?'<|>_EH"
MERGES = ["t h", "th e", "▁ the", "h e", "l l", "he ll", "hell o", "▁ hello", "▁ a", "n d", "▁a nd"]
MERGES += ["o f", "▁ of", "e r", "h er", "t her", "o ther", "o r", "▁ w", "▁ ▁", "▁▁ ▁▁", "r l"]


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
    made = dict.fromkeys(merge.replace(" ", "") for merge in MERGES)
    known = {*tokens, *made}
    # Every way to make a token, as when such a tokenizer.json is written from scores.
    merges = [
        [token[:cut], token[cut:]]
        for token in made
        for cut in range(1, len(token))
        if {token[:cut], token[cut:]} <= known
    ]
    tokens += made
    return [*tokens, *SPECIAL], merges


def gguf_tokens(kind: str, folder: Path) -> dict[str, Any]:
    """The lists of a GGUF file for one of the two tokenizers ("gpt2" or "llama").

    Token types: 1 normal, 2 unknown, 3 control, 6 byte.
    """
    if kind == "gpt2":
        byte_level(folder / "tokenizer.json")
        document = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocab = document["model"]["vocab"]
        vocab |= {entry["content"]: entry["id"] for entry in document["added_tokens"]}
        tokens = sorted(vocab, key=lambda token: vocab[token])
        merges = [" ".join(merge) for merge in document["model"]["merges"]]
        types = [3 if token in SPECIAL else 1 for token in tokens]
        ends = {"bos": vocab["<|im_start|>"], "eos": vocab["<|im_end|>"]}
        return {"tokens": tokens, "types": types, "merges": merges, **ends}
    tokens, pairs = sentencepiece_vocabulary()
    rank = {left + right: float(-i) for i, (left, right) in enumerate(pairs)}
    kinds = {"<unk>": 2, **dict.fromkeys(["<s>", "</s>", *SPECIAL], 3)}
    types = [6 if token.startswith("<0x") else kinds.get(token, 1) for token in tokens]
    scores = [
        rank.get(token, -1_000.0 - i) if kind == 1 else 0.0
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
    ]
    return {"tokens": tokens, "types": types, "scores": scores, "bos": 1, "eos": 2}
