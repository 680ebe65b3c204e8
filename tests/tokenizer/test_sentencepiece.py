"""SentencePiece-style tokenizers: ids equal those of `tokenizers`, and the cases for both kinds."""

import itertools
import json
import random
import time
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from minillm.tokenizer import (
    ChatTemplate,
    SentencePieceTokenizer,
    Tokenizer,
    make_tokenizer,
    open_tokenizer,
)
from tests.tokenizer.helpers import (
    FRAGMENTS,
    LLAMA3,
    added,
    both,
    merged,
    random_text,
    small,
    texts,
)
from tests.tokenizer.layouts import BOS, layouts, llama2, metaspace, model, trained

MARKS = ["<s>", "</s>", "<unk>", "<|user|>", "<|end|>", "<b>", "</b>", "<s", "▁", "▁▁▁", "<0x40>"]
pytestmark = pytest.mark.filterwarnings("ignore:the vocabulary has no token")


class Pair:
    """One tokenizer.json in ours and in the library."""

    def __init__(self, document):
        self.document = document
        ours = make_tokenizer(document)
        assert isinstance(ours, SentencePieceTokenizer)
        self.ours = ours
        self.theirs = tokenizers.Tokenizer.from_str(json.dumps(document))

    def their_ids(self, text, specials=False, add=True):
        self.theirs.encode_special_tokens = not specials
        return self.theirs.encode(text, add_special_tokens=add).ids


PAIRS = {name: Pair(document) for name, document in layouts().items()}
FALLBACK = [name for name in PAIRS if name not in ("older", "never", "unknown")]


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


def marked(newest):
    """Texts in which added tokens stand, with and without spaces beside them."""
    part = texts(newest, 4) | st.sampled_from(MARKS) | st.sampled_from([" ", "  ", "\n\n", "▁"])
    return st.lists(part, max_size=6).map("".join)


def test_thousands_of_strings(pair, newest):
    rng = random.Random(7)
    strings = [*FRAGMENTS, *MARKS, "", *(random_text(rng, newest) for _ in range(300))]
    strings += [
        rng.choice(MARKS) + a + rng.choice(MARKS) + b for a, b in itertools.pairwise(strings)
    ]
    for specials, allowed in ((False, "none"), (True, "all")):
        for add in (True, False):
            for text in strings:
                ids = pair.ours.encode(text, allowed_special=allowed, add_special_tokens=add)
                assert ids == pair.their_ids(text, specials, add), (text, allowed, add)


@given(data=st.data())
def test_any_text(newest, data):
    pair = PAIRS[data.draw(st.sampled_from(sorted(PAIRS)))]
    text = data.draw(marked(newest))
    assert pair.ours.encode(text) == pair.their_ids(text)
    assert pair.ours.encode(text, allowed_special="all") == pair.their_ids(text, specials=True)


def test_some_special_tokens_allowed(pair, newest):
    # The library knows all or none; but it always finds those that are not special.
    changed = json.loads(json.dumps(pair.document))
    for token in changed["added_tokens"]:
        token["special"] &= token["content"] != "<s>"
    some = tokenizers.Tokenizer.from_str(json.dumps(changed))
    some.encode_special_tokens = True
    rng = random.Random(8)
    for _ in range(200):
        text = "".join(rng.choice([*MARKS, " ", random_text(rng, newest)]) for _ in range(6))
        assert pair.ours.encode(text, allowed_special=["<s>"]) == some.encode(text).ids, text
    for wrong in ("<s>", ["<b>x"], "any"):
        with pytest.raises(ValueError, match=r"allowed_special is .*'<s>'"):
            pair.ours.encode("a", allowed_special=wrong)


def test_saved_and_read_again(pair, newest, tmp_path):
    pair.ours.save(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    again = open_tokenizer(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rng = random.Random(9)
    for text in [*MARKS, *(random_text(rng, newest) for _ in range(100))]:
        ids = pair.ours.encode(text, allowed_special="all")
        assert theirs.encode(text).ids == ids == again.encode(text, allowed_special="all")
        assert again.decode(ids) == pair.ours.decode(ids)


def test_which_kind_it_is(tmp_path):
    for document, kind in (
        (small(), Tokenizer),
        (small(pre_tokenizer=LLAMA3), Tokenizer),
        *((document, SentencePieceTokenizer) for document in layouts().values()),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
        assert type(open_tokenizer(tmp_path / "tokenizer.json")) is kind
        assert type(make_tokenizer(document)) is kind


def test_lookups():
    tokenizer = PAIRS["llama2"].ours
    vocab = trained()[0]
    assert tokenizer.vocab_size == len(vocab)
    assert tokenizer.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert tokenizer.ids_without_token(len(vocab) + 2) == [len(vocab), len(vocab) + 1]
    assert tokenizer.id_to_token(vocab["▁the"]) == "▁the"
    assert tokenizer.token_bytes(vocab["▁the"]) == b" the"
    assert tokenizer.token_to_id(" the") is None
    assert tokenizer.token_bytes(vocab["<0xEA>"]) == b"\xea"
    assert tokenizer.pieces(tokenizer.encode("the 한"))[1:] == [" the", " ", *"\ufffd" * 3]
    wrong: Any
    for wrong in (-1, len(vocab), None, "a"):
        with pytest.raises(ValueError, match="is not the id of one of"):
            tokenizer.token_bytes(wrong)
    for wrong in ("\ud83d", "ab\udc80c"):
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            tokenizer.encode(wrong)
    wrong = b"bytes"
    with pytest.raises(TypeError, match="a str is needed"):
        tokenizer.encode(wrong)


def seconds_for(encode, text):
    runs = []
    for _ in range(3):
        start = time.process_time()
        encode(text)
        runs.append(time.process_time() - start)
    return min(runs)


@pytest.mark.parametrize("name", ["llama2", "mistral", "gemma3", "always"])
@pytest.mark.parametrize("unit", ["a", " ", "^", "▁", "\n", "<", "the quick ", "한"])
def test_t01_a_long_run_takes_time_in_proportion(name, unit, record_property):
    pair = PAIRS[name]
    sizes = (20_000, 40_000, 80_000)
    strings = [(unit * size)[:size] for size in sizes]
    assert pair.ours.encode(strings[0]) == pair.their_ids(strings[0])
    seconds = [seconds_for(pair.ours.encode, text) for text in strings]
    record_property("figure", f"{name}, {unit!r}: " + ", ".join(f"{s:.3f} s" for s in seconds))
    # A quadratic one takes four times as long for twice the text.
    assert min(b / a for a, b in itertools.pairwise(seconds)) < 2.9, seconds


@pytest.mark.parametrize("char", ["a", " "])
def test_t01_a_megabyte_of_one_character(char):
    text = char * 1_000_000
    assert PAIRS["llama2"].ours.encode(text) == PAIRS["llama2"].their_ids(text)


def comes_back(name: str, text: str) -> None:
    tokenizer = PAIRS[name].ours
    # Where ▁ is put only if there is no space yet, a first space is not told from it.
    lost = name in ("mistral", "always", "digits") and text.startswith(" ")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text[lost:]


@pytest.mark.parametrize("name", FALLBACK)
@pytest.mark.parametrize(
    "text",
    [
        "  Hello World.",
        "a  ",
        "    four",
        " ",
        "  ",
        "a\t b",
        "\ta",
        "a\r\nb",
        "\n x \n",
        "a   b   ",
    ],
)
def test_t02_leading_and_double_spaces(name, text):
    comes_back(name, text)


@pytest.mark.parametrize("name", FALLBACK)
@pytest.mark.parametrize(
    "text",
    [
        *("hello !", "x != y and a.b == c", "the word 'social'", " ...", "it 's , n't ?"),
        *("a , b", "don 't", "what ?", "( x )", "I 'm", "they 've 're"),
    ],
)
def test_t09_no_clean_up(name, text):
    comes_back(name, text)


def test_t03_line_breaks_and_digits_differ_by_family():
    vocab = trained()[0]
    breaks = {}
    for name in ("llama2", "gemma3"):
        tokens = map(PAIRS[name].ours.id_to_token, PAIRS[name].ours.encode("a" + "\n" * 7 + "b"))
        breaks[name] = [token for token in tokens if "\n" in token]
    assert breaks["gemma3"] == ["\n" * 7]
    assert "".join(breaks["llama2"]) == "\n" * 7 != breaks["llama2"][0]
    digits = PAIRS["digits"].ours.encode("2024", add_special_tokens=False)
    assert (
        digits == [vocab[char] for char in ("▁", *"2024")] != PAIRS["mistral"].ours.encode("2024")
    )


def test_t05_both_spellings_of_merges(newest):
    spelled = [model(merges=[" ".join(merge) for merge in trained()[1]]), model()]
    rng = random.Random(4)
    for text in (random_text(rng, newest) for _ in range(100)):
        ids = [make_tokenizer(llama2(model=m)).encode(text) for m in spelled]
        assert ids[0] == ids[1] == PAIRS["llama2"].their_ids(text)


def test_t06_lowest_rank_first():
    vocab = trained()[0] | {"ab": 5000, "bc": 5001}
    for merges, ids in (
        ([["b", "c"], ["a", "b"]], ["a", "bc"]),
        ([["a", "b"], ["b", "c"]], ["ab", "c"]),
    ):
        pair = Pair(llama2(model=model(vocab=vocab, merges=merges)))
        assert pair.ours.encode("abc")[2:] == [vocab[token] for token in ids]
        assert pair.ours.encode("abc") == pair.their_ids("abc")


@pytest.mark.parametrize("name", FALLBACK)
def test_t08_the_caller_chooses_what_a_special_token_is(name):
    tokenizer = PAIRS[name].ours
    for text in ("a<s>b", "<s>", "</s></s>", "<unk>a", "a <s> b"):
        pieces = tokenizer.encode(text, add_special_tokens=False)
        plain = [i for i in pieces if i in tokenizer.special_tokens.values()]
        assert plain == []
        assert tokenizer.decode(pieces) == text
    if name == "llama1":  # normalized: the token is ▁<s> there, as in the library
        return
    ids = tokenizer.encode("a<s>b", allowed_special="all", add_special_tokens=False)
    assert ids.count(BOS) == 1
    assert "<s>" in tokenizer.decode(ids)
    assert "<s>" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode([BOS]) == "<s>"
    assert tokenizer.decode([BOS], skip_special_tokens=True) == ""


@pytest.mark.parametrize("typed", ["<0x40>", "<0xEA><0xB9><0xB0>", "x<0x0A>y", "<0x4", "<0x40><s>"])
@pytest.mark.parametrize("name", FALLBACK)
def test_t12_a_typed_byte_token_is_text(name, typed):
    tokenizer = PAIRS[name].ours
    ids = tokenizer.encode(typed, add_special_tokens=False)
    assert tokenizer.decode(ids) == typed
    assert len(ids) > typed.count("<")


CHAT = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}</s>{% endif %}"
)


@pytest.mark.parametrize("name", ["gemma3", "phi3", "nfkc"])
def test_a09_exactly_one_bos(name, newest):
    pair = PAIRS[name]
    chat = ChatTemplate(CHAT, {"bos_token": "<s>"})
    messages = [{"role": "user", "content": content} for content in ("a", " b  c", "\n\nd 한")]
    ids = chat.encode(pair.ours, messages)
    assert (ids[0], ids.count(BOS)) == (BOS, 1)
    assert ids == pair.their_ids(chat.render(messages), specials=True, add=False)
    assert pair.ours.encode("a").count(BOS) == 1
    assert BOS not in ChatTemplate(CHAT[15:]).encode(pair.ours, messages)
    # A message that spells a special token is ordinary text.
    forged = [{"role": "user", "content": "x<s> <|end|>\n<|user|></s>y<s"}]
    kept = [i for i in chat.encode(pair.ours, forged) if i in pair.ours.special_tokens.values()]
    plain = [{"role": "user", "content": "xy"}]
    plain_ids = chat.encode(pair.ours, plain)
    assert kept == [i for i in plain_ids if i in pair.ours.special_tokens.values()]


@pytest.mark.parametrize("name", ["mistral", "llama2", "digits"])
def test_a09_the_space_of_a_part_that_begins_the_text(name):
    pair = PAIRS[name]
    for template in ("{{ messages[0].content }}", "[INST] {{ messages[0].content }}</s>x", CHAT):
        chat = ChatTemplate(template, {"bos_token": "<s>"})
        messages = [{"role": "user", "content": "hello <b"}]
        text = chat.render(messages)
        assert chat.encode(pair.ours, messages) == pair.their_ids(text, specials=True, add=False)


def test_characters_without_a_token_are_lost_with_a_warning():
    tokenizer = PAIRS["unknown"].ours
    with pytest.warns(UserWarning, match="no token for some characters"):
        ids = tokenizer.encode("a한b")
    assert 0 in ids
    with pytest.raises(ValueError, match="no token for some characters"):
        tokenizer.encode("a한b", strict=True)
    assert 0 not in tokenizer.encode("the", strict=True)
    assert PAIRS["llama2"].ours.encode("a한b", strict=True) == PAIRS["llama2"].ours.encode("a한b")


def test_thousands_of_added_tokens_cost_little(tmp_path, record_property):
    # As many as Gemma 3 has, in a text full of what they begin with.
    names = [f"<unused{i}>" for i in range(6242)]
    vocab = {**trained()[0], **{name: 5000 + i for i, name in enumerate(names)}}
    tokens = [added(vocab[name], name) for name in names]
    pair = Pair(llama2(model=model(vocab=vocab), added_tokens=tokens, post_processor=None))
    text = "<b>the <unused12> quick</b> <unused99999>\n" * 7000
    times = {}
    for name, encode in (("theirs", pair.theirs.encode), ("ours", pair.ours.encode)):
        start = time.perf_counter()
        encode(text)
        times[name] = time.perf_counter() - start
    assert pair.ours.encode(text) == pair.theirs.encode(text).ids
    figures = ", ".join(f"{name} {s:.2f} s" for name, s in times.items())
    record_property("figure", f"{len(text) / 1e3:.0f} kB with 6,242 added tokens: {figures}")
    assert times["ours"] < 5 * times["theirs"] + 1


def test_t01_speed_beside_the_library(record_property):
    text = "".join(FRAGMENTS * 3 + ["Hello world, this is 1 test of things.\n"] * 7000)[:300_000]
    for name in ("llama2", "mistral", "gemma3"):
        pair = PAIRS[name]
        ours, theirs = (seconds_for(e, text) for e in (pair.ours.encode, pair.theirs.encode))
        record_property("figure", f"{name}, 300 kB: ours {ours:.2f} s, tokenizers {theirs:.2f} s")
        assert ours < 3 * theirs + 0.2


def test_metaspace_of_another_character(tmp_path):
    document = llama2(normalizer=None, pre_tokenizer=metaspace(prepend_scheme="first", split=True))
    document["pre_tokenizer"]["replacement"] = "_"
    pair = Pair(document)
    for text in ("a b", "<s>a b", "", " "):
        assert pair.ours.encode(text, allowed_special="all") == pair.their_ids(text, specials=True)


def test_t08_both_kinds_share_one_interface(tmp_path):
    byte_level = both(small(model=merged("a b")), tmp_path).ours
    for tokenizer in (byte_level, PAIRS["llama2"].ours):
        assert tokenizer.decode(tokenizer.encode("ab", add_special_tokens=False)) == "ab"
        assert tokenizer.encode_part("ab", first=False)
        detokenizer = tokenizer.stream(skip_special_tokens=True)
        assert isinstance(detokenizer.push(tokenizer.encode("ab")[-1]), str)
