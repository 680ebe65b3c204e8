"""Streamed text is the text, and each part of it comes as soon as it is final."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.tokenizer import StreamingDetokenizer
from minillm.tokenizer.detokenize import unfinished
from tests.tokenizer.helpers import FRAGMENTS, texts

FAMILY = "👩‍👩‍👧‍👦"
STRINGS = [
    *(
        "",
        "a",
        "é",
        "ď",
        "中",
        "🌶",
        "a🌶b",
        "Ḁ\u0300",
        FAMILY,
        "\ufffd",
        "x\ufffdy",
        "\0",
        "\ufeffa",
    ),
    *("مرحبا", "नमस्ते", "🇫🇷", "한국어", "日本語のテキスト"),
]
BROKEN = [
    *(b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf0\x80\x80\x80"),
    *(b"\xf4\x90\x80\x80", b"\xf5\x80", b"\xff\xfe", b"a\xf0\x9f\x8cA\xb6B", b"\xe4\xb8a"),
    *(b"\xc4\xc4\x8f", b"\xf0\x9f\x8c", b"\xe4\xb8", b"\xf0\x9f", b"\xf0", b"\xe2\x82\xe2\x82\xac"),
    *(b"\xf0\x9f\xf0\x9f\x8c\xb6", b"\xe4\xb8\xad\xb8\xc3\xa9"),
]
# At each place a byte from each range that matters.
BYTES = b"\x00\x41\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xe0\xed\xf0\xf4"
NEXT = [b"", b"a", b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\x90\x80\x80", b"\xa0\x80"]


def stream(chunks: list[bytes]) -> list[str]:
    detokenizer = StreamingDetokenizer(chunks.__getitem__)
    return [*(detokenizer.push(i) for i in range(len(chunks))), detokenizer.flush()]


def one_by_one(data: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in data]


def test_d01_one_character_over_several_tokens():
    assert stream([b"\xc4", b"\x8f"]) == ["", "ď", ""]
    assert stream(one_by_one("🌶".encode())) == ["", "", "", "🌶", ""]
    pieces = stream(one_by_one(FAMILY.encode()))
    assert "".join(pieces) == FAMILY
    assert not any("\ufffd" in piece for piece in pieces)


def test_d03_bytes_that_never_become_valid():
    data = b"\xf0\x9f\x8cA\xb6B"
    assert stream(one_by_one(data)) == ["", "", "", "\ufffdA", "\ufffd", "B", ""]
    assert data.decode(errors="replace") == "\ufffdA\ufffdB"


@pytest.mark.parametrize("data", [*map(str.encode, STRINGS), *BROKEN], ids=repr)
def test_every_split(data):
    data = data[:11]  # up to 1,024 ways to cut it
    for cuts in itertools.product((False, True), repeat=max(0, len(data) - 1)):
        borders = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(data)]
        chunks = [data[a:b] for a, b in itertools.pairwise(borders)]
        assert "".join(stream(chunks)) == data.decode(errors="replace")


def final(data: bytes) -> str:
    """The text that stands firm whatever comes after the data."""
    possible = [(data + more).decode(errors="replace") for more in NEXT]
    same = itertools.takewhile(lambda chars: len(set(chars)) == 1, zip(*possible, strict=False))
    return "".join(chars[0] for chars in same)


def check(chunks: list[bytes]) -> None:
    pieces = stream(chunks)
    for i in range(len(chunks)):
        assert "".join(pieces[: i + 1]) == final(b"".join(chunks[: i + 1]))
    assert "".join(pieces) == b"".join(chunks).decode(errors="replace")


def test_all_short_byte_sequences():
    for first in range(256):
        for rest in itertools.product(BYTES, repeat=2):
            check(one_by_one(bytes([first, *rest])))


@given(st.lists(st.binary(max_size=5) | st.sampled_from([FAMILY.encode(), b"\xf0\x9f"])))
def test_any_bytes(chunks):
    check(chunks)


@given(st.lists(st.sampled_from([bytes([byte]) for byte in BYTES + b"\x8c\xb6\xf5"]), max_size=9))
def test_any_bytes_one_by_one(chunks):
    check(chunks)


@given(data=st.data())
def test_any_text_of_the_real_vocabulary(ours, newer, data):
    text = data.draw(texts(newer) | st.sampled_from(FRAGMENTS))
    for ids in (ours.encode(text), data.draw(st.lists(st.integers(0, 49151), max_size=8))):
        for skip in (False, True):
            detokenizer = ours.stream(skip_special_tokens=skip)
            pieces = [*map(detokenizer.push, ids), detokenizer.flush()]
            assert "".join(pieces) == ours.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", ["Hello world", "    four", " a  b   c ", "x\n    y"])
def test_d05_spaces_between_words_stay(ours, text):
    detokenizer = ours.stream()
    assert "".join([*map(detokenizer.push, ours.encode(text)), detokenizer.flush()]) == text


def test_a_skipped_token_within_a_character(ours):
    first, *rest = ours.encode("🌶")
    for skip, text in ((True, "🌶"), (False, "\ufffd<|im_end|>\ufffd\ufffd")):
        ids = [first, 2, *rest]
        detokenizer = ours.stream(skip_special_tokens=skip)
        assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == text
        assert ours.decode(ids, skip_special_tokens=skip) == text


def test_after_a_flush_it_starts_anew_and_an_unknown_id_changes_nothing(ours):
    half = ours.encode("🌶")[0]
    detokenizer = ours.stream()
    assert detokenizer.push(half) == ""
    with pytest.raises(ValueError, match="49152"):
        detokenizer.push(49152)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""
    assert detokenizer.push(260) == " the"


def test_unfinished_holds_back_at_most_three_bytes():
    assert unfinished(b"\x80\x80\x80\x80") == 0
    assert unfinished(b"\xf4\x8f\xbf") == 3
    assert unfinished(b"\xf4\x90") == 0
    assert unfinished(b"\xf4\x8f\xbf\xbf") == 0
