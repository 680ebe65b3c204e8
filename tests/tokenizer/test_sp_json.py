"""tokenizer.json of SentencePiece-style tokenizers: what is not known is refused by name."""

import base64
import copy
import json
import random
import time

import pytest

from minillm.tokenizer import make_tokenizer, open_tokenizer
from tests.tokenizer.helpers import small, split
from tests.tokenizer.layouts import (
    DECODERS,
    PREPEND,
    SPACES,
    STRIP,
    WITH_BOS,
    gemma3,
    llama2,
    metaspace,
    model,
    sequence,
    special,
    trained,
)
from tests.tokenizer.test_hf_json import mutate
from tests.tokenizer.test_sentencepiece import Pair


def refused(document, tmp_path) -> str:
    """The error for a tokenizer.json, which must name the file."""
    path = tmp_path / "tokenizer.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ValueError, match=r"tokenizer\.json: ") as caught:
        open_tokenizer(path)
    assert len(str(caught.value)) < 600
    return str(caught.value).partition(": ")[2]


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        ("a b c", "model.merges[1] is 'a b c'; a pair of tokens is needed"),
        ("ab", "a pair of tokens is needed"),
        (["a"], "model.merges[1] is ['a']; a pair of tokens is needed"),
        (["a", 5], "but 5 is not in model.vocab"),
        (["a", ["b"]], "a pair of tokens is needed"),
        (None, "a pair of tokens is needed"),
        ("a zz", "model.merges[1] is 'a zz', but 'zz' is not in model.vocab"),
        (["b", "a"], "model.merges[1] is ['b', 'a'], but 'ba' is not in model.vocab"),
    ],
)
def test_t05_a_merge_that_is_not_known_is_refused(tmp_path, merge, message):
    vocab = {name: i for name, i in trained()[0].items() if i < 259} | {"a": 300, "b": 301}
    changed = model(vocab=vocab | {"ab": 302}, merges=[["a", "b"], merge])
    assert message in refused(llama2(model=changed), tmp_path)


def test_t05_never_no_merges_in_silence(tmp_path):
    assert "model.merges is empty, yet model.vocab has" in refused(
        llama2(model=model(merges=[])), tmp_path
    )
    assert "model.merges is None; list is needed" in refused(
        llama2(model=model(merges=None)), tmp_path
    )
    vocab = {name: i for name, i in trained()[0].items() if i < 259} | {"a": 300}
    bare = make_tokenizer(llama2(model=model(vocab=vocab, merges=[])))
    assert bare.encode("a", add_special_tokens=False)[-1] == 300


def test_t05_a_token_may_hold_a_space(tmp_path):
    vocab = trained()[0] | {"a b": 5000, " b": 5001}
    document = llama2(model=model(vocab=vocab, merges=[["a", " b"]]), normalizer=PREPEND)
    assert make_tokenizer(document).encode("a b", add_special_tokens=False)[-1] != 5000
    assert "a pair of tokens is needed" in refused(
        llama2(model=model(vocab=vocab, merges=["a  b"])), tmp_path
    )


def replace(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def charsmap(trie: bytes, texts: bytes) -> dict:
    data = len(trie).to_bytes(4, "little") + trie + texts
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


BYTES = ("<0xEA>", "<0x40>")
# A hundred million ids, from a file of a few hundred kB.
LONG = WITH_BOS | {
    "single": [*WITH_BOS["single"]] * 10**3,
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1] * 10**5, "tokens": ["<s>"]}},
}
LACKING = {name: i for name, i in trained()[0].items() if name not in BYTES}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, "version is '2.0', not supported"),
        ({"model": model(type="Unigram")}, "model is 'Unigram', not supported; allowed: BPE"),
        ({"model": model(type=None)}, "model is None"),
        ({"model": None}, "model is None; dict is needed"),
        ({"model": model(dropout=0.1)}, "model.dropout is 0.1, not supported"),
        ({"model": model(ignore_merges=True)}, "model.ignore_merges is True, not supported"),
        ({"model": model(end_of_word_suffix="</w>")}, "model.end_of_word_suffix is '</w>'"),
        ({"model": model(unk_token="<none>")}, "model.unk_token is '<none>', which is not in"),
        ({"model": model(unk_token=None, byte_fallback=False)}, "characters would vanish"),
        ({"model": model(unk_token=None, vocab=LACKING)}, "neither model.unk_token nor <0x40>"),
        ({"model": model(byte_fallback="yes")}, "model.byte_fallback is 'yes'; bool is needed"),
        ({"model": model(fuse_unk=1)}, "model.fuse_unk is 1; bool is needed"),
        ({"model": model(vocab={"a": -1})}, "model.vocab: 'a' has id -1"),
        ({"model": model(vocab={"a": 1, "b": 1})}, "model.vocab: 'a' and 'b' have one id, 1"),
        ({"decoder": None}, "decoder is None; allowed: a Metaspace, or Replace"),
        ({"decoder": {"type": "WordPiece"}}, "decoder is 'WordPiece', not supported"),
        ({"decoder": metaspace()}, "decoder has no ByteFallback"),
        ({"decoder": sequence("decoders", *DECODERS[::-1])}, "in this order"),
        ({"decoder": sequence("decoders", *DECODERS, metaspace())}, "in this order"),
        ({"decoder": sequence("decoders", *DECODERS, STRIP, STRIP)}, "in this order"),
        ({"decoder": sequence("decoders", *DECODERS[:2], STRIP)}, "after a Fuse"),
        ({"decoder": sequence("decoders", *DECODERS, STRIP | {"start": 2})}, "start 0 or 1"),
        ({"decoder": sequence("decoders", *DECODERS, STRIP | {"stop": 1})}, "stop 0"),
        ({"decoder": sequence("decoders", *DECODERS, STRIP | {"content": "a"})}, "content ' '"),
        ({"decoder": sequence("decoders", replace("", "aaaa"))}, "pattern is empty"),
        ({"decoder": sequence("decoders", replace("▁", "aa"))}, "a String for a longer one"),
        ({"decoder": sequence("decoders", replace(["▁"], "a"))}, "pattern.String is ['▁']"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer is 'Lowercase', not supported"),
        ({"normalizer": {"type": "BertNormalizer"}}, "not supported; allowed: Prepend, Replace"),
        ({"normalizer": replace("", "▁")}, "normalizer.pattern is empty"),
        ({"normalizer": replace("a", "a" * 17)}, "normalizer: a text gets 17 times as long"),
        (
            {"normalizer": sequence("normalizers", *[replace("a", "aa")] * 30)},
            "normalizer: a text gets 1.07e+09 times as long",
        ),
        (
            {"normalizer": sequence("normalizers", *[replace("a", "a" * 10**4)] * 30)},
            "normalizer: a text gets",
        ),
        ({"normalizer": PREPEND | {"prepend": "▁" * 10_000}}, "is longer than 64 characters"),
        ({"normalizer": PREPEND | {"prepend": 5}}, "normalizer.prepend is 5; str is needed"),
        ({"normalizer": {"type": "Precompiled"}}, "precompiled_charsmap is None"),
        ({"normalizer": charsmap(b"", b"")}, "a table of SentencePiece"),
        ({"normalizer": charsmap(b"\0" * 8, b"a" * 1000 + b"\0")}, "at most 64 bytes"),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "é"}},
            "a table of SentencePiece",
        ),
        (
            {"normalizer": sequence("normalizers", *[PREPEND] * 33)},
            "normalizer.normalizers has 33 steps; 32 at most",
        ),
        (
            {"pre_tokenizer": sequence("pretokenizers", *[metaspace()] * 5000)},
            "pre_tokenizer.pretokenizers has 5000 steps; 32 at most",
        ),
        (
            {"pre_tokenizer": sequence("pretokenizers", metaspace(), metaspace(replacement="b"))},
            "pre_tokenizer has 2 Metaspace steps; one is allowed",
        ),
        ({"post_processor": LONG}, "post_processor.single is "),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer is 'Whitespace', not supp"),
        ({"pre_tokenizer": metaspace(replacement="ab")}, "replacement is 'ab'; one character"),
        ({"pre_tokenizer": metaspace(prepend_scheme="last")}, "prepend_scheme is 'last'"),
        (
            {"pre_tokenizer": metaspace(prepend_scheme="first")},
            "prepend_scheme 'first' with a normalizer that keeps the beginning",
        ),
        ({"pre_tokenizer": split("(")}, "the tokenizers library says"),
        ({"pre_tokenizer": split("a") | {"behavior": "Merged"}}, "the tokenizers library says"),
        ({"pre_tokenizer": sequence("pretokenizers", sequence("pretokenizers"))}, "'Sequence'"),
        ({"post_processor": {"type": "BertProcessing"}}, "post_processor is 'BertProcessing'"),
        ({"added_tokens": [special("<s>") | {"id": 7}]}, "'<s>' is empty, or has a second id, 7"),
        ({"added_tokens": [special("<s>") | {"content": ""}]}, "'' is empty"),
        ({"added_tokens": [special("<s>") | {"lstrip": 1}]}, "added_tokens[0].lstrip is 1"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, changes, message):
    assert message in refused(llama2(**copy.deepcopy(changes)), tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"model": 5}', "{}", "[" * 100_000, '{"pre_tokenizer": 5}']
)
def test_what_is_no_tokenizer_json_is_refused(tmp_path, text):
    refused(text, tmp_path)


def test_a_panic_of_the_library_is_a_value_error(tmp_path, capfd):
    # A regular expression that gives up, and tables of replacements that point outside.
    hopeless = llama2(normalizer=None, pre_tokenizer=split("(a+)+$"))
    tokenizer = make_tokenizer(hopeless)
    assert tokenizer.encode("a b")
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"the tokenizers library says: .*retry-limit"):
        tokenizer.encode("a" * 40 + "b")
    pattern = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}
    with pytest.raises(ValueError, match=r"the tokenizers library says: .*retry-limit"):
        make_tokenizer(llama2(normalizer=pattern)).encode("a" * 40 + "b")
    for trie in (b"\x01\x05\x00\x80" * 16, bytes(range(256)) * 4, b"\xff" * 64):
        with pytest.raises(ValueError, match="normalizer: the tokenizers library says"):
            make_tokenizer(llama2(normalizer=charsmap(trie, b"abc\0"))).encode("aab b")
    assert time.perf_counter() - start < 5
    capfd.readouterr()  # Rust writes its stack there


def test_a_table_of_replacements_is_run(tmp_path):
    # One that replaces nothing: no unit of its trie has a label.
    document = llama2(normalizer=sequence("normalizers", charsmap(b"\0" * 2048, b"x\0"), SPACES))
    pair = Pair(document)
    for text in ("ab c", "한 <s> é"):
        assert pair.ours.encode(text) == pair.their_ids(text)


def test_settings_of_the_writing_program_are_left_alone(tmp_path):
    document = llama2(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0},
    )
    ids = make_tokenizer(document).encode("the quick brown fox")
    assert ids == make_tokenizer(llama2()).encode("the quick brown fox")
    tokenizer = make_tokenizer(document)
    tokenizer.save(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))
    assert saved == document


@pytest.mark.filterwarnings("ignore:the vocabulary has no token")
def test_damaged_files_are_clear_errors_or_tokenizers(tmp_path, record_property, capfd):
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    names = [*list(trained()[0])[:259], "a", "b", "▁", "ab", "▁ab"]
    vocab = {name: i for i, name in enumerate(names)}
    tiny = model(vocab=vocab, merges=[["a", "b"], ["▁", "ab"]])
    wholes = [llama2(model=tiny), gemma3() | {"model": tiny, "added_tokens": [special("<s>")]}]
    wholes += [
        llama2(
            model=tiny,
            normalizer=sequence("normalizers", {"type": "NFKC"}, SPACES),
            pre_tokenizer=sequence("pretokenizers", metaspace(prepend_scheme="first"), split("b")),
        )
    ]
    path = tmp_path / "tokenizer.json"
    start, errors = time.perf_counter(), 0
    for _ in range(1000):
        document = rng.choice(wholes)
        for _ in range(rng.choice([1, 1, 2, 5])):
            document = mutate(rng, document)
        text = json.dumps(document)
        if rng.random() < 0.1:
            cut = rng.randrange(len(text))
            text = text[:cut] + rng.choice(["", "\0", '"', "}", "\\u"]) + text[cut + 1 :]
        path.write_text(text)
        try:
            tokenizer = open_tokenizer(path)
            assert isinstance(tokenizer.decode(tokenizer.encode("ab <s> 한 12")), str)
        except ValueError:
            errors += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text}") from error
    assert 200 < errors < 1000, seed
    seconds = time.perf_counter() - start
    record_property("figure", f"1,000 damaged files, seed {seed}: {errors} errors, {seconds:.1f} s")
    capfd.readouterr()


def test_byte_level_files_are_refused_as_before(tmp_path):
    assert "model.dropout is 0.1" in refused(small(model={"dropout": 0.1}), tmp_path)
