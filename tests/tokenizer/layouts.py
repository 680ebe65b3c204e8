"""Small SentencePiece-style tokenizers, in the layouts in which the families ship theirs."""

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Replace
from tokenizers.trainers import BpeTrainer

from tests.tokenizer.helpers import FRAGMENTS, added, split

LESSON = """\
The quick brown fox jumps over the lazy dog. Hello world! I'm sure that they don't know it.
    for index in range(10):
        print("hello", index)   # two  spaces,    and four
In 1984 and 2024 there were 12,345 other words; the weather was the same there.
Привет мир, это не первый раз. 안녕하세요 세계, 한국어. 中文和日本語のテキスト. Ça va déjà.
"""
SPECIAL = ("<unk>", "<s>", "</s>")
BOS = 1


@cache
def trained() -> tuple[dict[str, int], list[list[str]]]:
    """vocab and merges: special tokens, one token per byte, then what a text holds.

    Most characters of FRAGMENTS are missing, and some that the text has, to need the byte tokens.
    """
    learner = Tokenizer(BPE())
    learner.normalizer = Replace(" ", "▁")
    text = [LESSON, *(fragment for fragment in FRAGMENTS if fragment.isascii())]
    learner.train_from_iterator(text * 3, BpeTrainer(vocab_size=700, show_progress=False))
    model = json.loads(learner.model.__getstate__())
    missing = set("<>한😀q")
    tokens = [token for token in model["vocab"] if not missing & set(token)]
    names = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    names += ["<|user|>", "<|end|>", "<b>", "</b>"]
    merges = [pair for pair in model["merges"] if not missing & set("".join(pair))]
    vocab = dict(zip(dict.fromkeys(names), range(len(names)), strict=False))
    for count in range(2, 8):  # as in Gemma
        vocab.setdefault("\n" * count, len(vocab))
        vocab.setdefault("▁" * count, len(vocab))
    return vocab, merges


def model(**changes: Any) -> dict[str, Any]:
    vocab, merges = trained()
    empty = dict.fromkeys(("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    return {"type": "BPE", **empty, **options, "vocab": vocab, "merges": merges, **changes}


def special(content: str, **flags: bool) -> dict[str, Any]:
    return added(trained()[0][content], content, **{"special": True, **flags})


def word(content: str, **flags: bool) -> dict[str, Any]:
    return special(content, special=False, **flags)


SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND = {"type": "Prepend", "prepend": "▁"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
DECODERS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
WITH_BOS: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
}


def sequence(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


def metaspace(**options: Any) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", **options}


def llama2(**changes: Any) -> dict[str, Any]:
    """Llama 1 and 2, TinyLlama, Mistral v0.1, Mixtral."""
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special(name) for name in SPECIAL],
        "normalizer": sequence("normalizers", PREPEND, SPACES),
        "pre_tokenizer": None,
        "post_processor": WITH_BOS,
        "decoder": sequence("decoders", *DECODERS, STRIP),
        "model": model(),
    }
    return document | changes


def gemma3() -> dict[str, Any]:
    runs = [char * count for char in "\n▁" for count in range(2, 8)]
    return llama2(
        normalizer=SPACES,
        pre_tokenizer=split("", "MergedWithPrevious") | {"pattern": {"String": " "}},
        decoder=sequence("decoders", *DECODERS),
        added_tokens=[
            *(special(name) for name in (*SPECIAL, "<|user|>", "<|end|>")),
            *(word(content) for content in (*runs, "<b>", "</b>")),
        ],
    )


def layouts() -> dict[str, dict[str, Any]]:
    """A tokenizer.json for each layout."""
    first = metaspace(prepend_scheme="first", split=False)
    # Without byte tokens, as the Metaspace decoder cannot read them.
    words = llama2(normalizer=None, model=model(byte_fallback=False))
    phi3 = [
        *(special("<unk>"), special("<s>"), special("</s>", rstrip=True, special=False)),
        *(special("<|user|>", rstrip=True), special("<|end|>", rstrip=True)),
    ]
    nfkc = sequence("normalizers", {"type": "NFKC"}, PREPEND, SPACES)
    digits = sequence("pretokenizers", first, {"type": "Digits", "individual_digits": True})
    return {
        "llama2": llama2(),
        "mistral": llama2(normalizer=None, pre_tokenizer=first),
        "gemma3": gemma3(),
        "phi3": llama2(added_tokens=phi3),
        "llama1": llama2(added_tokens=[special(name, normalized=True) for name in SPECIAL]),
        "always": llama2(
            normalizer=None, pre_tokenizer=metaspace(prepend_scheme="always", split=True)
        ),
        "older": words
        | {
            "pre_tokenizer": metaspace(add_prefix_space=True),
            "decoder": metaspace(add_prefix_space=True),
        },
        "never": words
        | {
            "pre_tokenizer": metaspace(prepend_scheme="never"),
            "decoder": metaspace(prepend_scheme="never"),
        },
        "nfkc": llama2(normalizer=nfkc, added_tokens=[*phi3, word("<b>", normalized=True)]),
        "digits": llama2(normalizer=None, pre_tokenizer=digits),
        "marked": llama2(
            added_tokens=[
                *(special(name, lstrip=True) for name in SPECIAL),
                *(word("<b>", lstrip=True), word("</b>", single_word=True), word("▁▁▁")),
            ]
        ),
        "unknown": words | {"decoder": sequence("decoders", DECODERS[0], {"type": "Fuse"})},
    }
