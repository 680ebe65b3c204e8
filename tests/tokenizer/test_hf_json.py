"""tokenizer.json: both spellings of merges, and a clear error for everything else."""

import copy
import json
import random
import time
from typing import Any

import pytest

from minillm.tokenizer import Tokenizer
from tests.tokenizer.helpers import BYTE_LEVEL, GPT2, added, both, merged, sequence, small, split


def refused(document, tmp_path) -> str:
    """The error for a tokenizer.json, which must name the file."""
    path = tmp_path / "tokenizer.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ValueError, match=r"tokenizer\.json: ") as caught:
        Tokenizer.from_file(path)
    assert len(str(caught.value)) < 500
    return str(caught.value).partition(": ")[2]


def test_t05_both_spellings_of_merges(document, tmp_path, reference):
    texts = [case["text"] for case in reference["cases"]]
    results = []
    for spelling in (lambda pair: pair, " ".join):
        merges = [spelling(pair) for pair in document["model"]["merges"]]
        pair = both(document | {"model": document["model"] | {"merges": merges}}, tmp_path)
        results.append([pair.ours.encode(text) for text in texts])
        assert results[-1] == [case["ids"] for case in reference["cases"]]
    assert results[0] == results[1]


def test_t05_a_token_may_hold_a_space(tmp_path):
    model = merged("a b")
    model["vocab"] |= {"b c": 257, "ab c": 258}
    # Nothing reaches such a token, for a space is spelled Ġ; but the file is read.
    model["merges"] = [["a", "b"], ["a", "b c"]]
    assert both(small(model=model), tmp_path).ours.encode("ab c") == [256, 32, 99]


@pytest.mark.parametrize("merge", ["a b c", "ab", "", "a  b"])
def test_t05_an_ambiguous_merge_is_refused(tmp_path, merge):
    model = merged("a b")
    model["merges"] = ["a b", merge]
    message = refused(small(model=model), tmp_path)
    assert message.startswith(f"model.merges[1] is {merge!r}; a pair of tokens is needed")


@pytest.mark.parametrize(
    "merge",
    [["a"], ["a", "b", "c"], ["a", 5], ["a", ["b"]], [None, None], {"a": 1, "b": 2}, 7, None],
)
def test_t05_a_merge_of_another_shape_is_refused(tmp_path, merge):
    model = merged("a b")
    model["merges"] = [["a", "b"], merge]
    assert refused(small(model=model), tmp_path).startswith(f"model.merges[1] is {merge!r}")


@pytest.mark.parametrize(
    ("merge", "lacking"),
    [("a zz", "'zz'"), ("zz a", "'zz'"), ("a c", "'ac'"), (["b", "a"], "'ba'")],
)
def test_t05_a_merge_outside_the_vocabulary_is_refused(tmp_path, merge, lacking):
    model = merged("a b")
    model["merges"] += [merge]
    expected = f"model.merges[1] is {merge!r}, but {lacking} is not in model.vocab"
    assert refused(small(model=model), tmp_path) == expected


def test_t05_never_no_merges_in_silence(tmp_path):
    model = merged("a b")
    message = refused(small(model=model | {"merges": []}), tmp_path)
    assert message == "model.merges is empty, yet model.vocab has 'ab'"
    del model["merges"]
    document = small(model=model)
    for missing in (None, "absent"):
        if missing:
            del document["model"]["merges"]
        else:
            document["model"]["merges"] = None
        assert refused(document, tmp_path) == "model.merges is None; list is needed"
    # A vocabulary of bytes and added tokens has none and needs none.
    vocab = small()["model"]["vocab"] | {"<|x|>": 256}
    document = small(model={"vocab": vocab}, added_tokens=[added(256, "<|x|>", special=True)])
    assert both(document, tmp_path).ours.encode("ab") == [97, 98]


def test_the_library_takes_the_last_of_two_equal_merges(tmp_path):
    model = merged("a b", "b c", "a b")
    pair = both(small(model=model), tmp_path)
    assert pair.ours.encode("abc") == pair.theirs.encode("abc").ids
    pair.ours.save(tmp_path / "again.json")
    assert Tokenizer.from_file(tmp_path / "again.json").encode("abc") == pair.ours.encode("abc")


def test_ignore_merges_takes_a_whole_piece(tmp_path):
    # "abc" is a token that no merge reaches.
    vocab = merged("a b")["vocab"] | {"abc": 300}
    for ignore, ids in ((True, [300]), (False, [256, 99])):
        model = {"vocab": vocab, "merges": ["a b"], "ignore_merges": ignore}
        pair = both(small(model=model), tmp_path)
        assert pair.ours.encode("abc") == ids == pair.theirs.encode("abc").ids


def test_t12_byte_fallback_is_refused(tmp_path):
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    document = small(
        model={"vocab": vocab, "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True},
        pre_tokenizer=None,
    )
    assert "model.byte_fallback is True, not supported" in refused(document, tmp_path)


METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
TEMPLATE: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
}
BOS = [added(256, "<s>", special=True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, "version is '2.0', not supported; allowed: 1.0"),
        ({"model": {"type": "WordPiece"}}, "model is 'WordPiece', not supported; allowed: BPE"),
        ({"model": {"type": None}}, "model is None"),
        ({"model": {"dropout": 0.1}}, "model.dropout is 0.1, not supported"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "model.end_of_word_suffix is '</w>'"),
        ({"model": {"continuing_subword_prefix": "##"}}, "model.continuing_subword_prefix is '##'"),
        ({"model": {"vocab": {"a": 0}, "unk_token": "a"}}, "model.unk_token"),
        ({"model": {"ignore_merges": "yes"}}, "model.ignore_merges is 'yes'; bool is needed"),
        ({"pre_tokenizer": None}, "pre_tokenizer is 'null', not supported; allowed: ByteLevel"),
        ({"pre_tokenizer": METASPACE}, "pre_tokenizer is 'Metaspace'"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer is 'Whitespace'"),
        (
            {"pre_tokenizer": sequence({"type": "Punctuation", "behavior": "Isolated"})},
            "pretokenizers[0] is 'Punctuation', not supported; allowed: Split, Digits",
        ),
        ({"pre_tokenizer": sequence(GPT2)}, "pre_tokenizer.pretokenizers[0] is 'ByteLevel'"),
        ({"pre_tokenizer": sequence(sequence())}, "pre_tokenizer.pretokenizers[0] is 'Sequence'"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("a")]}},
            "pre_tokenizer.pretokenizers[0] is 'Split', not supported; allowed: ByteLevel",
        ),
        ({"pre_tokenizer": {"type": "Sequence"}}, "pre_tokenizer.pretokenizers is None"),
        ({"pre_tokenizer": sequence(split("a") | {"behavior": "Merged"})}, "'Merged', not supp"),
        ({"pre_tokenizer": sequence(split("a") | {"pattern": "a"})}, "pattern is 'a'; dict is"),
        ({"pre_tokenizer": sequence(split("("))}, "pattern is '(', not supported: missing )"),
        ({"pre_tokenizer": sequence(split(r"\w+|\S"))}, r"'\\w' in it is not supported"),
        ({"pre_tokenizer": sequence(split(r"\p{N}{1,3}+"))}, "'{1,3}+' in it is not supported"),
        ({"pre_tokenizer": sequence(split("[a--b]"))}, "'--' in it is not supported"),
        ({"pre_tokenizer": sequence(split("(?R)"))}, "'(?R' in it is not supported"),
        ({"pre_tokenizer": sequence(split("(a{999}){99}"))}, "at most 10,000 repeats are allowed"),
        ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": 1}}, "add_prefix_space is 1; bool"),
        ({"pre_tokenizer": ["ByteLevel"]}, "pre_tokenizer is ['ByteLevel']; an object is needed"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer is 'Lowercase', not supported; all"),
        ({"normalizer": {"type": "Replace"}}, "allowed: NFC, NFD, NFKC, NFKD"),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [{"type": "NFC"}, {"type": "Strip"}],
                }
            },
            "normalizer.normalizers[1] is 'Strip'",
        ),
        ({"decoder": {"type": "Metaspace"}}, "decoder is 'Metaspace', not supported"),
        ({"post_processor": {"type": "BertProcessing"}}, "post_processor is 'BertProcessing'"),
        ({"post_processor": TEMPLATE}, "special tokens whose ids are in the vocabulary"),
        ({"post_processor": TEMPLATE | {"single": []}}, "allowed: the text once"),
        (
            {"post_processor": TEMPLATE | {"single": TEMPLATE["single"] * 2}, "added_tokens": BOS},
            "post_processor.single is ",
        ),
        ({"post_processor": TEMPLATE | {"single": ["A"]}}, "post_processor.single is ['A']"),
        ({"post_processor": TEMPLATE | {"special_tokens": {}}}, "post_processor.single is "),
        ({"added_tokens": {}}, "added_tokens is {}; list is needed"),
        ({"added_tokens": ["<s>"]}, "added_tokens[0] is '<s>'; an object is needed"),
        ({"added_tokens": [added(256, "")]}, "added_tokens[0]: '' is empty"),
        ({"added_tokens": [added(-1, "<s>")]}, "added_tokens[0]: '<s>' has id -1"),
        ({"added_tokens": [added(True, "<s>")]}, "added_tokens[0]: '<s>' has id True"),
        ({"added_tokens": [added(97, "<s>")]}, "added_tokens[0]: 'a' and '<s>' have one id, 97"),
        ({"added_tokens": [added(300, "<s>")]}, "'<s>' has id 300; 256 is next"),
        ({"added_tokens": [added(256, "a" * 257)]}, "is longer than 256"),
        ({"added_tokens": [added(300, "a")]}, "'a' is empty, or has a second id, 300"),
        ({"added_tokens": BOS * 2}, "added_tokens[1]: '<s>' is empty, or has a second id, 256"),
        ({"added_tokens": [added(256, "<s>") | {"lstrip": 1}]}, "added_tokens[0].lstrip is 1"),
        ({"added_tokens": [{"id": 256}]}, "added_tokens[0].content is None; str is needed"),
        ({"model": {"vocab": ["a"]}}, "model.vocab is ['a']; dict is needed"),
        ({"model": {"vocab": {"a": "0"}}}, "model.vocab: 'a' has id '0'; allowed: 0 and above"),
        ({"model": {"vocab": {"a": 10**30}}}, "model.vocab: 'a' has id 1000000000"),
        ({"model": {"vocab": {"a": 1, "b": 1}}}, "model.vocab: 'a' and 'b' have one id, 1"),
        ({"model": {"vocab": {"\ud800": 1}}}, "holds half a surrogate pair"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, changes, message):
    assert message in refused(small(**copy.deepcopy(changes)), tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "5", '{"model": 5}', "{}", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}"],
)
def test_what_is_no_tokenizer_json_is_refused(tmp_path, text):
    refused(text, tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b'{"model": "\xff"}')
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        Tokenizer.from_file(tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        Tokenizer.from_file(tmp_path / "nothing.json")


def test_an_id_far_out_costs_nothing(tmp_path):
    vocab = small()["model"]["vocab"] | {"<far>": 2**31 - 1}
    pair = both(small(model={"vocab": vocab}, added_tokens=[added(2**31 - 1, "<far>")]), tmp_path)
    assert pair.ours.encode("<far>") == [2**31 - 1]
    assert pair.ours.vocab_size == 257


def test_settings_of_the_writing_program_are_left_alone(tmp_path):
    document = small(
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    )
    tokenizer = both(document, tmp_path).ours
    assert tokenizer.encode("abcd") == [97, 98, 99, 100]
    tokenizer.save(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))
    assert saved == document | {"model": {**document["model"], "merges": []}}


def mutate(rng: random.Random, value):
    """The value with one thing in it changed, somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: mutate(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        i = rng.randrange(len(value))
        if rng.random() < 0.2:
            return value[:i] + value[i + 1 :]
        return [*value[:i], mutate(rng, value[i]), *value[i + 1 :]]
    scalars = [None, True, -1, 0, 1, 256, 10**18, 0.5, "", "a", "a b", "Ġ", "Sequence"]
    nested = [[], [None], ["a", "b"], [[[]]], {}, {"type": "Sequence"}, {"a": {"b": []}}]
    return rng.choice([*scalars, *nested])


def test_damaged_files_are_clear_errors_or_tokenizers(tmp_path, capsys):
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    whole = small(
        model=merged("a b", "ab c") | {"ignore_merges": True},
        added_tokens=[added(258, "<0>"), added(259, "<s>"), added(260, "<1>", lstrip=True)],
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKC"}]},
        pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, split(r"\s")),
        post_processor=TEMPLATE | {"special_tokens": {"<s>": {"id": "<s>", "ids": [259]}}},
    )
    path = tmp_path / "tokenizer.json"
    errors = unnamed = 0
    start = time.perf_counter()
    for _ in range(1000):
        document = whole
        for _ in range(rng.choice([1, 1, 2, 5])):
            document = mutate(rng, document)
        text = json.dumps(document)
        if rng.random() < 0.2:  # bytes, too
            cut = rng.randrange(len(text))
            text = text[:cut] + rng.choice(["", "\0", '"', "}", "\\u"]) + text[cut + 1 :]
        path.write_text(text)
        try:
            tokenizer = Tokenizer.from_file(path)
            assert isinstance(tokenizer.decode(tokenizer.encode("abc <s> 12")), str)
        except ValueError as error:
            errors += str(error).startswith(f"{path}: ")
            unnamed += not str(error).startswith(f"{path}: ")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text}") from error
    assert unnamed == 0, seed
    assert 200 < errors < 1000, seed
    with capsys.disabled():
        seconds = time.perf_counter() - start
        print(f"\n  1,000 damaged files, seed {seed}: {errors} errors in {seconds:.1f} s", end="")
