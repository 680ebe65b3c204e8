"""Where texts are cut, and how bytes are spelled."""

from functools import partial

import pytest
import regex

from minillm.tokenizer import Tokenizer
from minillm.tokenizer.pretokenize import (
    GPT2_SPLIT,
    LLAMA3_SPLIT,
    QWEN2_SPLIT,
    bytes_to_unicode,
    pretokenize,
    split,
)
from tests.tokenizer.helpers import GPT2, LLAMA3, QWEN2, both, small

SPLITS = {"gpt2": GPT2_SPLIT, "llama3": LLAMA3_SPLIT, "qwen2": QWEN2_SPLIT}


def cut(name: str, text: str) -> list[str]:
    return pretokenize(text, [partial(split, pattern=regex.compile(SPLITS[name]))])


def test_t02_two_leading_spaces():
    assert cut("gpt2", "  Hello World.") == [" ", " Hello", " World", "."]
    assert cut("gpt2", "a  ") == ["a", "  "]
    assert cut("gpt2", "a\tb\r\nc") == ["a", "\t", "b", "\r", "\n", "c"]


@pytest.mark.parametrize(
    ("text", "gpt2", "llama3", "qwen2"),
    [
        ("a\n\nb", ["a", "\n", "\n", "b"], ["a", "\n\n", "b"], ["a", "\n\n", "b"]),
        ("a\n\n", ["a", "\n\n"], ["a", "\n\n"], ["a", "\n\n"]),
        ("12345678", ["12345678"], ["123", "456", "78"], list("12345678")),
        ("I'M", ["I", "'", "M"], ["I", "'M"], ["I", "'M"]),
    ],
)
def test_t03_the_split_differs_by_family(text, gpt2, llama3, qwen2):
    assert (cut("gpt2", text), cut("llama3", text), cut("qwen2", text)) == (gpt2, llama3, qwen2)


def test_t03_the_split_is_read_from_the_file(tmp_path):
    vocab = small()["model"]["vocab"] | {"ĊĊ": 256}
    model = {"vocab": vocab, "merges": [["Ċ", "Ċ"]]}
    for pre_tokenizer, ids in ((GPT2, [97, 10, 10, 98]), (LLAMA3, [97, 256, 98])):
        pair = both(small(pre_tokenizer=pre_tokenizer, model=model), tmp_path)
        assert pair.ours.encode("a\n\nb") == ids == pair.theirs.encode("a\n\nb").ids
    assert both(small(pre_tokenizer=QWEN2, model=model), tmp_path).ours.encode("a\n\nb") == ids


@pytest.mark.parametrize(
    "text",
    [
        *("  Hello World.", "a  ", "a\tb", "a\r\nb", "hello !", "x != y and a.b == c"),
        *("the word 'social'", " ...", "it 's , n't ?"),
    ],
)
def test_t09_no_clean_up(ours, text):
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize(
    ("behavior", "pieces", "inverted"),
    [
        ("Isolated", ["a", "-", "b", "-", "-", "c"], ["a", "-", "b", "-", "-", "c"]),
        ("Removed", ["a", "b", "c"], ["-", "-", "-"]),
        ("Contiguous", ["a", "-", "b", "--", "c"], ["a", "-", "b", "--", "c"]),
        ("MergedWithPrevious", ["a-", "b-", "-", "c"], ["a", "-b", "-", "-c"]),
        ("MergedWithNext", ["a", "-b", "-", "-c"], ["a-", "b-", "-", "c"]),
    ],
)
def test_split_behaviors(behavior, pieces, inverted):
    dash = regex.compile("-")
    assert split("a-b--c", dash, behavior) == pieces
    assert split("a-b--c", dash, behavior, invert=True) == inverted
    assert split("", dash, behavior) == []


def test_a_pattern_that_leaves_gaps_or_has_groups_loses_nothing():
    for pattern in (r"\p{L}+", r"(\p{L})+|(\s)", r"(?=\p{Lu})", r"x*"):
        text = "a Bc, dE!"
        assert "".join(split(text, regex.compile(pattern))) == text


def test_bytes_to_unicode():
    table = bytes_to_unicode()
    assert list(table) == list(range(256))
    assert len(set(table.values())) == 256
    assert all(char.isprintable() and not char.isspace() for char in table.values())
    assert (table[0x20], table[0x0A], table[0xAD], table[0xFF]) == ("Ġ", "Ċ", "Ń", "ÿ")
    vocab = Tokenizer.train([], vocab_size=256).data.vocab
    assert [vocab[table[byte]] for byte in range(256)] == list(range(256))
