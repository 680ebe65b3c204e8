"""Ids equal those of `tokenizers` and of llama.cpp."""

import random
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minillm
from minillm.tokenizer import Tokenizer
from minillm.weights.gguf_pre import PRE_TOKENIZERS
from tests.tokenizer.helpers import (
    BYTE_LEVEL,
    FRAGMENTS,
    GPT2,
    LLAMA3,
    QWEN2,
    added,
    random_text,
    sequence,
    split,
    texts,
)

pytestmark = pytest.mark.filterwarnings("ignore:the vocabulary has no token")
thorough = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_twenty_thousand_strings(ours, theirs, newer, capsys):
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    strings = [random_text(rng, newer) for _ in range(20_000)]
    expected = [encoding.ids for encoding in theirs.encode_batch(strings)]
    differ = [text for text, ids in zip(strings, expected, strict=True) if ours.encode(text) != ids]
    with capsys.disabled():
        print(f"\n  20,000 strings, seed {seed}: {len(differ)} differ from tokenizers", end="")
    assert not differ, (seed, differ[:3])


@thorough
@given(data=st.data())
def test_any_text(ours, theirs, newer, data):
    text = data.draw(texts(newer))
    ids = ours.encode(text)
    assert ids == theirs.encode(text).ids
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@thorough
@given(data=st.data())
def test_any_text_with_special_tokens(ours, theirs_special, newer, data):
    text = data.draw(texts(newer))
    ids = ours.encode(text, allowed_special="all")
    assert ids == theirs_special.encode(text).ids
    for skip in (False, True):
        expected = theirs_special.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == expected


@thorough
@given(ids=st.lists(st.integers(0, 49151), max_size=20))
def test_any_ids(ours, theirs, ids):
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


def test_llamacpp(ours, reference):
    assert len(reference["cases"]) > 150
    for case in reference["cases"]:
        assert ours.encode(case["text"]) == case["ids"], case["text"]
        assert ours.decode(case["ids"]) == case["text"]


def test_llamacpp_digits_stand_alone(variant, reference):
    # What is lost with ByteLevel alone, as the GGUF file is often read.
    bare = variant(pre_tokenizer=GPT2).ours
    expected = {case["text"]: case["ids"] for case in reference["cases"]}
    for text in (" ½", " Ⅷ", " ١٢"):
        assert bare.encode(text) != expected[text], text


BOS = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
EOS = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [BOS, TEXT, EOS],
    "pair": [BOS, TEXT, EOS],
    "special_tokens": {
        name: {"id": name, "ids": [index], "tokens": [name]}
        for index, name in ((1, "<|im_start|>"), (2, "<|im_end|>"))
    },
}
OFFSETS = BYTE_LEVEL | {"use_regex": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"pre_tokenizer": GPT2},
    "gpt2-prefix-space": {"pre_tokenizer": GPT2 | {"add_prefix_space": True}},
    "llama3": {
        "pre_tokenizer": LLAMA3,
        "model": {"ignore_merges": True},
        "post_processor": {"type": "Sequence", "processors": [OFFSETS, TEMPLATE]},
    },
    "qwen2": {"pre_tokenizer": QWEN2, "normalizer": {"type": "NFC"}, "post_processor": OFFSETS},
    "nfkd": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}]}},
    # Mistral Nemo; Phi-4 mini and GPT-4o
    "tekken": {"pre_tokenizer": PRE_TOKENIZERS["tekken"]["pre_tokenizer"]},
    "o200k": {"pre_tokenizer": PRE_TOKENIZERS["gpt-4o"]["pre_tokenizer"]},
    "digits": {
        "pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, split(r"\s"))
    },
    "string": {"pre_tokenizer": sequence(split("") | {"pattern": {"String": "a"}}, split("^.|$"))},
    "removed": {"pre_tokenizer": sequence(split(r" ?\p{L}+|\p{N}+", "Removed", invert=True))},
    "contiguous": {"pre_tokenizer": sequence(split(r"\p{L}|\s", "Contiguous"))},
    "contiguous-not": {"pre_tokenizer": sequence(split(r"\p{L}|\s", "Contiguous", invert=True))},
    "previous": {"pre_tokenizer": sequence(split(r"\s", "MergedWithPrevious"))},
    "previous-not": {"pre_tokenizer": sequence(split(r"\s", "MergedWithPrevious", invert=True))},
    "next": {"pre_tokenizer": sequence(split(r"\s", "MergedWithNext"))},
    "next-not": {"pre_tokenizer": sequence(split(r"\s", "MergedWithNext", invert=True))},
    "nested": {
        "pre_tokenizer": sequence(split(r"[\p{L}&&[^aeé]]+|[\p{N}[$<]]|(?i:the|ss|don't)|^ |,$"))
    },
    "lookahead": {"pre_tokenizer": sequence(split(r"(?=\p{Lu})"), split(r"(\s)(?!\S)|\s"))},
    "added": {
        "normalizer": {"type": "NFC"},
        "added_tokens": [
            added(0, "<|endoftext|>", special=True, lstrip=True, rstrip=True),
            added(1, "<|im_start|>", special=True, single_word=True),
            added(2, "<|im_end|>", special=True, normalized=True),
            added(49152, "<|im_"),
            added(49153, "<|im_start|>a", lstrip=True),
            added(49154, "e\u0301", normalized=True),
            added(49155, "  "),
            added(49156, "\n", rstrip=True),
            added(1195, "the", single_word=True),
            added(33, "1", special=True, lstrip=True, single_word=True),
        ],
    },
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(variant, request):
    return variant(**FAMILIES[request.param])


def test_family(family, newest):
    pair = family
    rng = random.Random(5)
    strings = [*FRAGMENTS, *(random_text(rng, newest) for _ in range(500))]
    for specials, allowed in ((True, "none"), (False, "all")):
        pair.theirs.encode_special_tokens = specials
        for add in (True, False):
            expected = pair.theirs.encode_batch(strings, add_special_tokens=add)
            for text, encoding in zip(strings, expected, strict=True):
                ids = pair.ours.encode(text, allowed_special=allowed, add_special_tokens=add)
                assert ids == encoding.ids, (text, allowed, add)
    pair.theirs.encode_special_tokens = False


def test_family_saved_and_read_by_the_library(family, newest, tmp_path):
    ours = family.ours
    ours.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.from_file(tmp_path / "tokenizer.json")
    rng = random.Random(5)
    for text in [random_text(rng, newest) for _ in range(100)]:
        ids = ours.encode(text, allowed_special="all")
        assert theirs.encode(text).ids == ids, text
        assert again.encode(text, allowed_special="all") == ids
        assert again.decode(ids) == ours.decode(ids)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer.json"]


def test_speed_beside_the_library(ours, theirs, capsys):
    sources = sorted(Path(minillm.__file__).parent.rglob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    times = {"theirs": 9.0, "first time": 9.0, "again": 9.0}
    for _ in range(3):
        ours._cache.clear()
        for name, encode in (
            ("theirs", theirs.encode),
            ("first time", ours.encode),
            ("again", ours.encode),
        ):
            start = time.perf_counter()
            encode(text)
            times[name] = min(times[name], time.perf_counter() - start)
    speed = {name: len(text.encode()) / seconds / 1e6 for name, seconds in times.items()}
    with capsys.disabled():
        print(
            f"\n  encoding {len(text.encode()) / 1e3:.0f} kB of code, MB/s: "
            f"tokenizers {speed['theirs']:.1f}, ours {speed['first time']:.1f} the first time, "
            f"{speed['again']:.1f} again",
            end="",
        )
    assert ours.encode(text) == theirs.encode(text).ids


def test_bytes_without_a_token_are_lost_with_a_warning(ours, theirs):
    text = "!\x04!"
    with pytest.warns(UserWarning, match="0x04"):
        ids = ours.encode(text)
    assert ids == theirs.encode(text).ids == theirs.encode("!!").ids
    with pytest.warns(UserWarning, match="0x04"):  # not only the first time
        ours.encode(text)
    with pytest.raises(ValueError, match="0x04"):
        ours.encode(text, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ours.encode("!!", strict=True) == ids
