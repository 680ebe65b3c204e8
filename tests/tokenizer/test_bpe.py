"""Merging and encoding, from the bytes up."""

import doctest
import importlib
import itertools
import time
import unicodedata
from functools import partial

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from minillm.tokenizer import Tokenizer
from minillm.tokenizer.added import AddedVocabulary
from minillm.tokenizer.bpe import encode_piece, merge, most_frequent_pair
from minillm.tokenizer.pretokenize import split
from tests.tokenizer.helpers import added, both, merged, small


@pytest.mark.parametrize("name", ["bpe", "pretokenize", "detokenize", "stop", "hf_json"])
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"minillm.tokenizer.{name}")
    result = doctest.testmod(
        module, extraglobs={"partial": partial, "regex": regex, "split": split}
    )
    assert result.failed == 0


def test_t06_merge_goes_left_to_right():
    aaa = [97, 97, 97]
    assert merge(aaa, (97, 97), 256) == [256, 97]
    assert aaa == [97, 97, 97]
    assert merge([97] * 4, (97, 97), 256) == [256, 256]
    assert merge([256, 97, 97], (97, 97), 256) == [256, 256]
    assert merge([], (97, 97), 256) == []
    assert merge([1, 2, 1, 2, 1], (2, 1), 3) == [1, 3, 3]


def test_most_frequent_pair():
    assert most_frequent_pair([(b"low", 1), (b" low", 1), (b" lower", 1)]) == (108, 111)
    assert most_frequent_pair([(b"ab", 1), (b"cd", 2)]) == (99, 100)  # by frequency
    assert most_frequent_pair([(b"cd", 1), (b"ab", 1)]) == (99, 100)  # a tie: seen first
    assert most_frequent_pair([(b"xaaa", 1)]) == (97, 97)  # both occurrences count
    assert most_frequent_pair([(b"ab", 1), (b"ba", 1), (b"ab", 1)]) == (97, 98)
    assert most_frequent_pair([(b"a", 5), (b"", 5)]) is None
    assert most_frequent_pair([]) is None


def test_t06_lowest_rank_first(tmp_path):
    pair = both(small(model=merged("b c", "a b")), tmp_path)
    assert pair.ours.encode("abc") == [97, 256] == pair.theirs.encode("abc").ids


def naive(ids: list[int], merges: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """The leftmost pair of lowest rank, one occurrence at a time."""
    while True:
        ranked = [
            (merges[pair][0], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in merges
        ]
        if not ranked:
            return ids
        i = min(ranked)[1]
        ids = [*ids[:i], merges[ids[i], ids[i + 1]][1], *ids[i + 2 :]]


@given(st.data())
def test_encode_piece_is_the_naive_one(data):
    # Merges in any order, such as no training would give: parts may rank after the whole.
    tokens = [b"a", b"b", b"c"]
    pairs = set()
    for _ in range(data.draw(st.integers(0, 12))):
        left, right = (data.draw(st.integers(0, len(tokens) - 1)) for _ in range(2))
        if tokens[left] + tokens[right] not in tokens:
            tokens.append(tokens[left] + tokens[right])
        pairs.add((left, right))
    order = data.draw(st.permutations(sorted(pairs)))
    merges = {
        (left, right): (rank, tokens.index(tokens[left] + tokens[right]))
        for rank, (left, right) in enumerate(order)
    }
    ids = data.draw(st.lists(st.integers(0, 2), max_size=30))
    given_ids = tuple(ids)
    assert encode_piece(given_ids, merges) == naive(ids, merges)


@pytest.mark.parametrize("char", ["a", "^", " ", "\n"])
def test_t01_a_long_run_takes_time_in_proportion(ours, theirs, capsys, char):
    sizes = (20_000, 40_000, 80_000)
    seconds = []
    for size in sizes:
        runs = []
        for _ in range(3):
            start = time.process_time()
            ids = ours.encode(char * size)
            runs.append(time.process_time() - start)
        seconds.append(min(runs))
        assert ids == theirs.encode(char * size).ids
    ratios = [later / earlier for earlier, later in itertools.pairwise(seconds)]
    with capsys.disabled():
        times = ", ".join(
            f"{size // 1000}k {s:.3f} s" for size, s in zip(sizes, seconds, strict=True)
        )
        print(f"\n  a run of {char!r}: {times}", end="")
    assert min(ratios) < 2.7, ratios  # a quadratic one takes four times as long for twice the text


def test_t01_a_megabyte_of_one_character(ours, theirs):
    text = "a" * 1_000_000
    assert ours.encode(text) == theirs.encode(text).ids


def test_t01_a_long_run_of_marks_through_the_normalizer(variant):
    # Python's own NFC takes a minute for this: it sorts the marks one by one.
    pair = variant(normalizer={"type": "NFC"})
    for text in ("a" + "\u0301\u0323" * 60_000, "e" + "\u0301" * 60_000, "\u0345\u0334" * 99):
        assert pair.ours.encode(text) == pair.theirs.encode(text).ids


@given(st.text("ae\u0301\u0323\u0345\u0334\u0f73\u0344각\ue000", max_size=40), st.integers(0, 40))
def test_marks_in_order_change_nothing_else(text, repeats):
    text += "\u0323\u0301\u0334" * repeats
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        ((part, _),) = AddedVocabulary([], [form]).split(f"x{text}", "all")
        assert part == unicodedata.normalize(form, f"x{text}")


def test_what_is_remembered_stays_small(ours):
    tokenizer = Tokenizer(ours.data)
    tokenizer.encode("a" * 1000 + " short " + "b" * 65)
    assert sorted(tokenizer._cache) == [" short"]
    assert tokenizer.encode(" short") is not tokenizer._cache[" short"]


@pytest.fixture(scope="module")
def special() -> Tokenizer:
    return Tokenizer.train(["a b"], vocab_size=300, special_tokens=["<|end|>", "<|end|>x"])


def test_t08_the_caller_chooses_what_a_special_token_is(special):
    end, longer = special.special_tokens["<|end|>"], special.special_tokens["<|end|>x"]
    text = "a<|end|>b"
    pieces = special.encode(text)
    assert end not in pieces
    assert special.decode(pieces) == text
    assert special.encode(text, allowed_special="all") == [97, end, 98]
    assert special.encode(text, allowed_special={"<|end|>"}) == [97, end, 98]
    assert special.encode(text, allowed_special=[]) == pieces
    assert special.encode("<|end|>x", allowed_special="all") == [longer]
    assert special.decode([97, end, 98]) == text
    assert special.decode([97, end, 98], skip_special_tokens=True) == "ab"
    assert special.decode([end]) == "<|end|>"
    for wrong in ("<|end|>", ["<|other|>"], "any"):
        with pytest.raises(ValueError, match=r"allowed_special is .*'<\|end\|>'"):
            special.encode(text, allowed_special=wrong)


def test_an_added_token_is_decoded_as_it_is_written(tmp_path):
    # The library's decoder takes this "é" for the vocabulary's spelling of byte 0xE9.
    document = small(added_tokens=[added(256, "fé"), added(257, "<｜x｜>", special=True)])
    pair = both(document, tmp_path)
    ids = pair.ours.encode("café")
    assert ids == [99, 97, 256] == pair.theirs.encode("café").ids
    assert pair.ours.decode([*ids, 257]) == "café<｜x｜>"
    assert pair.theirs.decode(ids) == "caf\ufffd"


def test_an_added_token_that_the_vocabulary_has_keeps_its_bytes(tmp_path):
    pair = both(small(added_tokens=[added(233, "é"), added(65, "A")]), tmp_path)
    assert pair.ours.encode("éA") == [233, 65] == pair.theirs.encode("éA").ids
    assert pair.ours.token_bytes(233) == b"\xe9"
    assert pair.ours.decode([233, 65]) == "\ufffdA" == pair.theirs.decode([233, 65])


@pytest.mark.parametrize("text", ["\ud83d", "ab\udc80c"])
def test_half_a_surrogate_pair_is_no_text(ours, text):
    position = next(i for i, char in enumerate(text) if ord(char) >= 0xD800)
    with pytest.raises(ValueError, match=rf"U\+{ord(text[position]):04X}.*position {position}"):
        ours.encode(text)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a"]])
def test_what_is_no_str_is_a_type_error(ours, text):
    with pytest.raises(TypeError, match="a str is needed"):
        ours.encode(text)


@pytest.mark.parametrize("wrong", [-1, 49152, 10**12, None, "a", 1.5])
def test_unknown_ids_are_quoted(ours, wrong):
    for use in (ours.token_bytes, ours.id_to_token, lambda i: ours.decode([1195, i])):
        with pytest.raises(ValueError, match=regex.escape(repr(wrong))):
            use(wrong)


def test_lookups(ours):
    assert ours.vocab_size == 49152
    assert ours.id_to_token(260) == "Ġthe"
    assert ours.token_to_id("Ġthe") == 260
    assert ours.token_to_id(" the") is None
    assert ours.token_bytes(260) == b" the"
    assert (ours.id_to_token(1), ours.token_bytes(1)) == ("<|im_start|>", b"<|im_start|>")
    assert len(ours.special_tokens) == 17
    assert ours.pieces(ours.encode("a 🌶")) == ["a", " \ufffd", "\ufffd", "\ufffd"]
    assert ours.decode(iter([260])) == " the"
