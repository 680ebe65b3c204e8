"""Training: the same merges as the obvious way, much sooner, and a file the library reads."""

import random
import time
from collections import Counter

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from minillm.tokenizer import Tokenizer
from minillm.tokenizer.bpe import count_words, merge, most_frequent_pair, train_bpe
from minillm.tokenizer.pretokenize import LLAMA3_SPLIT
from tests.tokenizer.helpers import FRAGMENTS, random_text


def quadratic(words, num_merges):
    """Counts the whole text again for every merge."""
    sequences = [(list(word), count) for word, count in words.items()]
    merges = []
    for new_id in range(256, 256 + num_merges):
        pair = most_frequent_pair(sequences)
        if pair is None:
            break
        merges.append(pair)
        sequences = [(merge(ids, pair, new_id), count) for ids, count in sequences]
    return merges


def test_t06_ties_go_to_the_pair_seen_first():
    tokenizer = Tokenizer.train(["aaabdaaabac"], vocab_size=259)
    assert tokenizer.encode("aaabdaaabac") == [258, 100, 258, 97, 99]
    # "ab" and "cd" occur twice each; after "cd" is gone, "ab" of the second word is next.
    assert train_bpe({b"cd": 2, b"ab": 2}, 2) == [(99, 100), (97, 98)]
    assert train_bpe({b"xcd": 1, b"ab": 2, b"cd": 1}, 2) == [(99, 100), (97, 98)]


@given(
    st.dictionaries(
        st.text("ab", max_size=9).map(str.encode) | st.text("abcd ", max_size=6).map(str.encode),
        st.integers(1, 4),
        max_size=8,
    ),
    st.integers(0, 30),
)
def test_the_same_merges_as_the_quadratic_one(words, num_merges):
    assert train_bpe(words, num_merges) == quadratic(words, num_merges)


def test_the_same_merges_on_texts_of_many_scripts(reference, ours, capsys):
    texts = [case["text"] for case in reference["cases"]]
    texts += [ours.decode([i]) for i in range(17, 2000)]
    words = count_words(texts, ours.data.steps)
    start = time.perf_counter()
    merges = train_bpe(words, 250)
    middle = time.perf_counter()
    assert merges == quadratic(words, 250)
    end = time.perf_counter()
    with capsys.disabled():
        print(
            f"\n  250 merges on {len(words)} words: {middle - start:.2f} s, "
            f"the quadratic way {end - middle:.2f} s",
            end="",
        )


def test_no_two_merges_make_the_same_token():
    rng = random.Random(7)
    for _ in range(200):
        words = Counter(bytes(rng.choices(b"ab", k=rng.randint(1, 40))) for _ in range(5))
        tokens = [bytes([byte]) for byte in range(256)]
        for left, right in train_bpe(words, 100):
            tokens.append(tokens[left] + tokens[right])
        assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["a b c"]])
def test_t06_training_stops_when_no_pair_is_left(texts):
    tokenizer = Tokenizer.train(texts, vocab_size=500, special_tokens=["<|end|>"])
    assert tokenizer.vocab_size == 257 + ("b" in "".join(texts)) * 2
    assert tokenizer.special_tokens == {"<|end|>": tokenizer.vocab_size - 1}
    assert tokenizer.decode(tokenizer.encode("abc 🌶")) == "abc 🌶"


@pytest.mark.parametrize("pattern", [None, LLAMA3_SPLIT, r".|\n"])
def test_the_library_reads_what_was_trained(pattern, newer, tmp_path):
    rng = random.Random(3)
    texts = [random_text(rng, newer) for _ in range(300)]
    options = {"pattern": pattern} if pattern else {}
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ours = Tokenizer.train(texts, vocab_size=600, special_tokens=special, **options)
    path = tmp_path / "tokenizer.json"
    ours.save(path)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    again = Tokenizer.from_file(path)
    assert ours.vocab_size == theirs.get_vocab_size() == again.vocab_size <= 600
    for text in [*FRAGMENTS, *(random_text(rng, newer) for _ in range(300))]:
        ids = ours.encode(text, allowed_special="all")
        assert theirs.encode(text).ids == ids == again.encode(text, allowed_special="all")
        assert ours.decode(ids) == text == theirs.decode(ids, skip_special_tokens=False)
    ours.save(path)  # over what is there
    assert Tokenizer.from_file(path).data.merges == ours.data.merges


def test_what_cannot_be_trained():
    with pytest.raises(ValueError, match=r"vocab_size is 257; .* need 258"):
        Tokenizer.train(["a"], vocab_size=257, special_tokens=["x", "y"])
    with pytest.raises(ValueError, match="second id"):
        Tokenizer.train(["a"], vocab_size=300, special_tokens=["<x>", "<x>"])
    with pytest.raises(ValueError, match=r"'a'.* second id"):
        Tokenizer.train(["a"], vocab_size=300, special_tokens=["a"])
    with pytest.raises(ValueError, match=r"pattern is '\(', not supported"):
        Tokenizer.train(["a"], vocab_size=300, pattern="(")
    with pytest.raises(ValueError, match="surrogate"):
        Tokenizer.train(["\ud800"], vocab_size=300)
    with pytest.raises(TypeError, match="a str is needed"):
        Tokenizer.train([b"a"], vocab_size=300)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a list of texts"):
        Tokenizer.train("one text", vocab_size=300)


def test_a_file_that_cannot_be_written_leaves_nothing(ours, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        ours.save(tmp_path / "nowhere" / "tokenizer.json")
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(OSError, match=r"tokenizer\.json"):
        ours.save(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
