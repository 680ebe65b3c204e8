"""Decoding of SentencePiece-style tokens: streamed text is the text, and the library's."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer.helpers import texts
from tests.tokenizer.layouts import layouts, llama2, metaspace, model, trained
from tests.tokenizer.test_detokenize import BROKEN, FAMILY, STRINGS
from tests.tokenizer.test_sentencepiece import FALLBACK, PAIRS, Pair

VOCAB, _ = trained()
BYTE = re.compile("<0x([0-9A-F]{2})>")


def byte_ids(data: bytes) -> list[int]:
    return [VOCAB[f"<0x{byte:02X}>"] for byte in data]


def stream(tokenizer, ids, skip=False) -> list[str]:
    detokenizer = tokenizer.stream(skip_special_tokens=skip)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def same_as_the_library(pair: Pair, ids: list[int], skip: bool) -> bool:
    """Whether none of the stated exceptions applies to these ids."""
    specials = set(pair.ours.special_tokens.values())
    tokens = [pair.ours.id_to_token(i) for i in ids if not (skip and i in specials)]
    for fallback, run in itertools.groupby(tokens, lambda token: bool(BYTE.fullmatch(token))):
        if fallback:
            data = bytes(int(token[3:5], 16) for token in run)
            if "\ufffd" in data.decode(errors="replace"):
                return False  # one U+FFFD for each byte there, one for each attempt here
    metaspaces = pair.document["decoder"]["type"] == "Metaspace"
    normalized = any(token["normalized"] for token in pair.document["added_tokens"])
    # Of the first token, Metaspace drops every ▁. A token looked for in normalized text is spelled
    # as it is normalized, special or not.
    return not (metaspaces and tokens and "▁" in tokens[0][1:]) and not normalized


@given(data=st.data())
def test_any_ids_streamed_decoded_and_by_the_library(data):
    pair = PAIRS[data.draw(st.sampled_from(sorted(PAIRS)))]
    one = st.integers(0, len(VOCAB) - 1) | st.sampled_from([0, 1, 2, VOCAB["▁"], VOCAB["▁▁▁▁"]])
    byte = st.sampled_from(byte_ids(b" a\x80\xbf\xc3\xa9\xe5\x8f\xab\xf0\x9f\x8c\xb6\xff"))
    whole = st.sampled_from(["é", "깰", "🌶", FAMILY]).map(lambda text: byte_ids(text.encode()))
    part = one.map(lambda i: [i]) | byte.map(lambda i: [i]) | whole
    ids = list(itertools.chain(*data.draw(st.lists(part, max_size=10))))
    for skip in (False, True):
        text = pair.ours.decode(ids, skip_special_tokens=skip)
        assert "".join(stream(pair.ours, ids, skip)) == text
        if same_as_the_library(pair, ids, skip):
            assert text == pair.theirs.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_any_text_comes_back(newest, data):
    pair = PAIRS[data.draw(st.sampled_from([name for name in FALLBACK if name != "nfkc"]))]
    text = data.draw(texts(newest)).replace("▁", "")
    if pair.document["pre_tokenizer"] is not None and pair.ours.data.strip:
        text = text.lstrip(" ")  # Metaspace puts no ▁ before one that is there
    ids = pair.ours.encode(text, add_special_tokens=False)
    assert pair.ours.decode(ids) == text == "".join(stream(pair.ours, ids))


@pytest.mark.parametrize("name", FALLBACK)
def test_d01_one_character_over_several_tokens(name):
    tokenizer = PAIRS[name].ours
    assert stream(tokenizer, byte_ids(b"\xc4\x8f")) == ["", "ď", ""]
    assert stream(tokenizer, byte_ids("🌶".encode())) == ["", "", "", "🌶", ""]
    pieces = stream(tokenizer, byte_ids(FAMILY.encode()))
    assert "".join(pieces) == FAMILY
    assert not any("\ufffd" in piece for piece in pieces)


def test_d01_a_special_token_in_a_character():
    tokenizer = PAIRS["llama2"].ours
    first, *rest = byte_ids("🌶".encode())
    assert stream(tokenizer, [first, 2, *rest], skip=True)[-2:] == ["🌶", ""]
    assert tokenizer.decode([first, 2, *rest]) == "\ufffd</s>" + "\ufffd" * 3


@pytest.mark.parametrize("data", [*map(str.encode, STRINGS), *BROKEN], ids=repr)
@pytest.mark.parametrize("name", ["llama2", "gemma3"])
def test_d03_bytes_that_never_become_valid(name, data):
    tokenizer = PAIRS[name].ours
    ids = byte_ids(data)
    text = data.decode(errors="replace")
    assert tokenizer.decode(ids) == text == "".join(stream(tokenizer, ids))
    if "\ufffd" not in text:
        assert PAIRS[name].theirs.decode(ids) == text


def test_d03_by_hand():
    tokenizer = PAIRS["mistral"].ours
    ids = byte_ids(b"\xf0\x9f\x8cA\xb6B")
    assert stream(tokenizer, ids) == ["", "", "", "\ufffdA", "\ufffd", "B", ""]
    assert tokenizer.decode(ids) == "\ufffdA\ufffdB"


@pytest.mark.parametrize("name", FALLBACK)
def test_d05_spaces_between_words_stay(name):
    tokenizer = PAIRS[name].ours
    the, was = VOCAB["▁the"], VOCAB["▁was"]
    prefix = tokenizer.data.strip
    assert stream(tokenizer, [the, was]) == ["the" if prefix else " the", " was", ""]
    assert stream(tokenizer, [1, the, was], skip=True)[:2] == ["", "the" if prefix else " the"]
    # Only the text's first space is dropped, and only where a token put it there.
    assert tokenizer.decode([1, the]) == "<s> the"
    assert stream(tokenizer, [was, the, the])[1:] == [" the", " the", ""]


@pytest.mark.parametrize("name", FALLBACK)
def test_d05_a_stream_that_goes_on_with_a_text(name):
    # The last token of what stands before, pushed first, says that the text has begun.
    tokenizer = PAIRS[name].ours
    detokenizer = tokenizer.stream(skip_special_tokens=True)
    detokenizer.push(VOCAB["▁the"])
    assert detokenizer.push(VOCAB["▁was"]) == " was"
    # After a special token nothing has been shown yet.
    detokenizer = tokenizer.stream(skip_special_tokens=True)
    detokenizer.push(VOCAB["<s>"])
    assert detokenizer.push(VOCAB["▁was"]) == ("was" if tokenizer.data.strip else " was")


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("count", range(1, 9))
def test_d05_four_real_spaces_stay_four(name, count):
    tokenizer = PAIRS[name].ours
    prefix = int(tokenizer.data.strip)
    for split in range(count + 1):  # the run as one token, as two, and as many
        ways = [["▁" * split, "▁" * (count - split)], ["▁"] * count]
        for tokens in ways:
            ids = [VOCAB[token] for token in tokens if token in VOCAB]
            spaces = sum(len(token) for token in tokens if token in VOCAB)
            text = " " * (spaces - min(prefix, spaces))
            assert tokenizer.decode(ids) == text == "".join(stream(tokenizer, ids))


@pytest.mark.parametrize("name", FALLBACK)
def test_d05_every_layout_decodes_what_it_encoded(name):
    tokenizer = PAIRS[name].ours
    for text in ("Hello world", "    four", "the    four", "a\n    b", " one"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        lost = name in ("mistral", "always", "digits") and text.startswith(" ")
        assert tokenizer.decode(ids) == text[lost:]


@pytest.mark.parametrize("name", FALLBACK)
def test_t12_byte_fallback(name):
    tokenizer = PAIRS[name].ours
    assert stream(tokenizer, byte_ids("깰".encode())) == ["", "", "깰", ""]
    # An unfinished character is one U+FFFD, as in the byte-level tokenizer and in Python; the
    # library gives one for each byte.
    unfinished = byte_ids(b"\xe5\x8f")
    assert tokenizer.decode(unfinished) == "\ufffd" == "".join(stream(tokenizer, unfinished))
    assert PAIRS[name].theirs.decode(unfinished) == "\ufffd\ufffd"
    assert tokenizer.decode(byte_ids(b" ")) == ("" if tokenizer.data.strip else " ")


def test_after_a_flush_it_starts_anew_and_an_unknown_id_changes_nothing():
    detokenizer = PAIRS["llama2"].ours.stream()
    the = VOCAB["▁the"]
    assert [detokenizer.push(the), detokenizer.push(the)] == ["the", " the"]
    with pytest.raises(ValueError, match="99999"):
        detokenizer.push(99999)
    assert detokenizer.flush() == ""
    assert detokenizer.push(the) == "the"


def test_lower_case_byte_tokens_are_bytes_as_in_the_library():
    vocab = VOCAB | {"<0xea>": 9001, "<0xEG>": 9002, "<0x041>": 9003}
    pair = Pair(llama2(model=model(vocab=vocab)))
    for ids in ([9001, *byte_ids(b"\xb9\xb0")], [9002], [9003]):
        assert pair.ours.decode(ids) == pair.theirs.decode(ids)


def test_decoders_that_the_families_write_are_all_read():
    for name in layouts():
        assert PAIRS[name].ours.data.strip == (name not in ("gemma3", "never", "unknown")), name
    document = llama2(decoder=metaspace(prepend_scheme="first"), model=model(byte_fallback=False))
    assert Pair(document).ours.data.strip
