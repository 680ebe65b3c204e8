"""Small tokenizers of every kind, and generated texts."""

import json
import random
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import regex
import tokenizers
from hypothesis import strategies as st
from tokenizers.normalizers import NFD, NFKD
from tokenizers.pre_tokenizers import Digits, Split

from minillm.tokenizer import Tokenizer
from minillm.tokenizer.pretokenize import LLAMA3_SPLIT, QWEN2_SPLIT, bytes_to_unicode

REFERENCE = Path(__file__).parents[2] / "data/reference/llamacpp_ids.json"

# What texts go wrong on: borders of classes, things that look like special tokens, long runs.
FRAGMENTS = [
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u0085", "\u3000"),
    *("'", "'s", "'S", "'ll", "'LL", "'ſ", "’s", "don't", "I'M"),
    *("a", "A", "the", " the", "The", "hello", " world", "JavaScript", "é", "e\u0301", "Å", "ß"),
    *("0", "12", "345", "2024", "½", " ½", "Ⅷ", "²", "١٢", "१२", "七", "𝟘"),
    *(".", ",", "...", "!", "?!", "(", ")", "==", "->", "://", "`", "_", "#", "^", "$", "|", "<"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "end|>", "<repo_name>", "<think>"),
    *("def f(x):\n    return x", "\n\tif", "int i = 0;", "</div>", '{"a": [1, 2]}'),
    *(
        "中文",
        "東京",
        "ひらがな",
        "カタカナ",
        "한국어",
        "안녕",
        "مرحبا",
        "שלום",
        "नमस्ते",
        "ไทย",
        "Привет",
    ),
    *(
        "😀",
        "👩‍👩‍👧‍👦",
        "👍🏽",
        "🇫🇷",
        "❤️",
        "\u200d",
        "\ufe0f",
        "\u200b",
        "\ufeff",
        "\ufffd",
        "\0",
        "\x1b",
        "\x7f",
    ),
    *("aaaaaaaaaaaaaaaa", "abababab", " " * 17, "\n" * 9, "-" * 40, "0" * 11),
]

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


class Pair(NamedTuple):
    """One tokenizer in ours and in the library."""

    ours: Tokenizer
    theirs: tokenizers.Tokenizer


def both(document: dict[str, Any], folder: Path) -> Pair:
    """Reads a tokenizer.json with ours and with the library."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return Pair(Tokenizer.from_file(path), tokenizers.Tokenizer.from_file(str(path)))


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    """A pre-tokenizer: the steps, then the spelling of bytes."""
    return {"type": "Sequence", "pretokenizers": [*steps, BYTE_LEVEL | {"use_regex": False}]}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": behavior,
        "invert": invert,
    }


GPT2 = BYTE_LEVEL | {"use_regex": True}
LLAMA3 = sequence(split(LLAMA3_SPLIT))
QWEN2 = sequence(split(QWEN2_SPLIT))


def added(index: int, content: str, **flags: bool) -> dict[str, Any]:
    return {"id": index, "content": content, "special": False, **PLAIN, **flags}


def small(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json with one token per byte (its id is the byte) and no merges.

    The keys of model.vocab and model.merges may be changed like those of the file.
    """
    model = {
        "type": "BPE",
        "vocab": {char: byte for byte, char in bytes_to_unicode().items()},
        "merges": [],
    }
    model |= changes.pop("model", {})
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": GPT2,
        "post_processor": None,
        "decoder": GPT2,
        "model": model,
    }
    return document | changes


def merged(*merges: str) -> dict[str, Any]:
    """model.vocab and model.merges: the bytes, then one token for each merge, "a b"."""
    vocab = {char: byte for byte, char in bytes_to_unicode().items()}
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    return {"vocab": vocab, "merges": [merge.split(" ") for merge in merges]}


def _assigned() -> list[str]:
    return [char for char in map(chr, range(0x110000)) if unicodedata.category(char)[0] != "C"]


def texts(newer: frozenset[str], max_size: int = 12) -> st.SearchStrategy[str]:
    """Texts of fragments and of any characters that all tables class alike."""
    one = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters=sorted(newer))
    part = st.sampled_from(FRAGMENTS) | one | st.text("ab '\n1é<|", max_size=4)
    return st.lists(part, max_size=max_size).map("".join)


def random_text(rng: random.Random, newer: frozenset[str]) -> str:
    """The same from a random generator, many times faster."""
    parts = []
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.7:
            parts.append(rng.choice(FRAGMENTS))
        else:
            char = chr(rng.randrange(rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x20000, 0x110000])))
            if char not in newer and unicodedata.category(char) not in ("Cs", "Cn"):
                parts.append(char)
    return "".join(parts)


def newer_characters() -> frozenset[str]:
    """Assigned characters that `regex` and `tokenizers` put into different classes."""
    assigned = "".join(_assigned())
    differ: set[str] = set()
    for pattern in (r"\s+", r"\p{L}+", r"\p{N}+"):
        cut = Split(tokenizers.Regex(pattern), "removed", invert=True)
        theirs = "".join(piece for piece, _ in cut.pre_tokenize_str(assigned))
        differ |= set(theirs) ^ set("".join(regex.findall(pattern, assigned)))
    # Digits has a table of its own: what it leaves alone between two letters is a number to it.
    numbers = regex.findall(r"\p{N}", assigned)
    pieces = Digits(individual_digits=True).pre_tokenize_str("a".join(["", *numbers, ""]))
    return frozenset(differ | set(numbers) - {piece for piece, _ in pieces})


def newer_to_the_normalizer() -> frozenset[str]:
    """Assigned characters that the library's normalizer, of Unicode 9, does not know."""
    differ: set[str] = set()
    marks = [char for char in _assigned() if unicodedata.combining(char)]
    ordered = [f"a{pair}" for char in marks for pair in (f"{char}\u0334", f"\u0345{char}")]
    for text in [*_assigned(), *ordered]:
        ours = unicodedata.normalize("NFKD", text), unicodedata.normalize("NFD", text)
        if ours != (NFKD().normalize_str(text), NFD().normalize_str(text)):
            differ.update(text)
    return frozenset(differ - {"a", "\u0334", "\u0345"})
