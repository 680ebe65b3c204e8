"""Tokenizers of GGUF files: ids equal llama.cpp's, and what is not known is refused."""

import itertools
import json
import math
from pathlib import Path

import pytest
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st

from minillm.tokenizer import SentencePieceTokenizer, Tokenizer, make_tokenizer
from minillm.weights.gguf_tokenizer import tokenizer_files
from tests.weights.gguf_vocabularies import (
    CHAT,
    TEXTS,
    VOCABULARIES,
    Metadata,
    byte_level,
    sentencepiece,
)

KEY = "tokenizer.ggml."
# Letters beyond ASCII have a case in these models' own tokenizer.json, but not in llama.cpp.
CASED = {"tekken": {"École ÉCOLE"}, "gpt-4o": {"École ÉCOLE"}}


@pytest.fixture(scope="module")
def stored():
    """Ids of llama.cpp; gguf_vocabularies.py says how they were made."""
    return json.loads((Path(__file__).parent / "gguf_ids.json").read_text(encoding="utf-8"))


def convert(metadata: Metadata):
    files = tokenizer_files(metadata, len(metadata["tokenizer.ggml.tokens"]))
    return files["tokenizer.json"], files["tokenizer_config.json"]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_ids_of_llamacpp(name, stored):
    tokenizer = make_tokenizer(convert(VOCABULARIES[name])[0])
    assert stored.keys() == VOCABULARIES.keys()
    for text, (plain, special) in zip(TEXTS, stored[name], strict=True):
        if text in CASED.get(name, ()):
            continue
        assert tokenizer.encode(text) == plain, text
        assert tokenizer.encode(text, allowed_special="all") == special, text


@pytest.mark.parametrize("name", VOCABULARIES)
def test_the_library_reads_what_is_written(name, tmp_path):
    document, _ = convert(VOCABULARIES[name])
    tokenizer = make_tokenizer(document)
    kind = SentencePieceTokenizer if "tokenizer.ggml.scores" in VOCABULARIES[name] else Tokenizer
    assert type(tokenizer) is kind
    theirs = tokenizers.Tokenizer.from_str(json.dumps(document))
    theirs.encode_special_tokens = True
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text).ids
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt-2", "qwen2", "llama-bpe"])
def test_t08_t12_typed_tokens_are_text(name):
    tokenizer = make_tokenizer(convert(VOCABULARIES[name])[0])
    for text in ("<s>", "</s>", "<unk>", "<0x40>", "<0xEA><0xB9><0xB0>", "x<s> y"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(tokenizer.special_tokens.values())


def test_t08_typed_text_is_not_merged_to_a_control_token():
    # llama.cpp would: the parts of </s> are tokens, and so is what they make.
    metadata = sentencepiece(("<", 1), ("/", 1), ("s", 1), (">", 1), ("</", 1), ("s>", 1))
    metadata["tokenizer.ggml.scores"][-6:] = [-500.0 - i for i in range(6)]
    tokenizer = make_tokenizer(convert(metadata)[0])
    assert 2 not in tokenizer.encode("</s>")
    assert 2 in tokenizer.encode("</s>", allowed_special="all")


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_merges_are_those_that_transformers_derives(name):
    from transformers.tokenization_utils_base import generate_merges

    metadata = VOCABULARIES[name]
    document, _ = convert(metadata)
    entries = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], strict=True)
    scores = dict(list(entries)[259:])  # without special and byte tokens
    vocab = {token: document["model"]["vocab"][token] for token in scores}
    assert [tuple(m) for m in document["model"]["merges"]] == generate_merges(vocab, scores)


def by_scores(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece from its definition: join the neighbours of the best score, leftmost first."""
    parts = list(text)
    while True:
        pairs = [(a + b, i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        best = max(((scores[p], -i) for p, i in pairs if p in scores), default=None)
        if best is None:
            return parts
        i = -best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


LETTERS = "xyz"  # none of which the vocabulary has


@given(st.data())
def test_merges_follow_the_scores(data):
    longer = st.text(LETTERS, min_size=2, max_size=4)
    words = data.draw(st.lists(longer, unique=True, min_size=4, max_size=12))
    metadata = sentencepiece(*((token, 1) for token in (*LETTERS, *words)))
    metadata[f"{KEY}scores"][-len(words) :] = [-2000.0 - i for i in range(len(words))]
    scores = dict(zip(metadata[f"{KEY}tokens"], metadata[f"{KEY}scores"], strict=True))
    tokenizer = make_tokenizer(convert(metadata)[0])
    assume(not overlap(words))
    for text in data.draw(st.lists(st.text(LETTERS, min_size=3, max_size=20), min_size=5)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert [tokenizer.id_to_token(i) for i in ids] == by_scores("▁" + text, scores)


def overlap(words: list[str]) -> bool:
    """Whether a + b and b + c are one token: three such neighbours join in one of two ways."""
    parts = {*LETTERS, *words}
    cuts = [(word[:i], word[i:]) for word in words for i in range(1, len(word))]
    made = [(left, right) for left, right in cuts if left in parts and right in parts]
    return any(
        right == other and left + right == other + last
        for (left, right), (other, last) in itertools.product(made, repeat=2)
    )


def test_special_tokens_and_chat_template():
    metadata = sentencepiece(*CHAT, **{"tokenizer.chat_template": "{{ messages }}"})
    metadata |= {"tokenizer.ggml.padding_token_id": 0, "general.architecture": "phi3"}
    _, config = convert(metadata | {"phi3.context_length": 4096})
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<unk>",
        "unk_token": "<unk>",
        "chat_template": "{{ messages }}",
    }
    for name in ("bos", "eos", "unknown"):  # llama.cpp's defaults
        del metadata[f"tokenizer.ggml.{name}_token_id"]
    document, again = convert(metadata | {"phi3.context_length": 4096})
    assert again == config
    assert make_tokenizer(document).encode("") == [1]
    bare = byte_level("gpt-2")
    del bare["tokenizer.ggml.bos_token_id"], bare["tokenizer.ggml.eos_token_id"]
    assert not {"bos_token", "eos_token"} & convert(bare)[1].keys()


GPT2, LLAMA = byte_level("gpt-2"), sentencepiece(*CHAT)


def first(values, value):
    return [value, *values[1:]]


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (GPT2, {"model": "bert"}, "tokenizer.ggml.model is 'bert'; supported are 'gpt2'"),
        (GPT2, {"model": ["gpt2"]}, r"tokenizer.ggml.model is \['gpt2'\]"),
        (GPT2, {"pre": "default"}, "tokenizer.ggml.pre is 'default'; supported are gpt-2"),
        (GPT2, {"pre": None}, "tokenizer.ggml.pre is None"),
        (GPT2, {"pre": ["gpt-2"]}, r"tokenizer.ggml.pre is \['gpt-2'\]"),
        (GPT2, {"merges": ["a b c"]}, "merge 'a b c' does not join"),
        (GPT2, {"merges": ["a b"]}, "merge 'a b' does not join"),
        (GPT2, {"merges": [5]}, r"tokenizer.ggml.merges is \[5\]; a list of str is needed"),
        (GPT2, {"merges": None}, "tokenizer.ggml.merges is None; a list of str"),
        (GPT2, {"add_space_prefix": True}, "tokenizer.ggml.add_space_prefix is true"),
        (GPT2, {"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1; true or false"),
        (
            GPT2,
            {"add_bos_token": True, "bos_token_id": None},
            "add_bos_token is true, but there is no bos_token_id",
        ),
        (GPT2, {"token_type": first(GPT2[f"{KEY}token_type"], 6)}, r"token types \[6\]; supported"),
        (GPT2, {"token_type": None}, "tokenizer.ggml.token_type is None"),
        (GPT2, {"token_type": [1]}, "1 token types for"),
        (GPT2, {"token_type": first(GPT2[f"{KEY}token_type"], [])}, "a list of int is needed"),
        (GPT2, {"tokens": first(GPT2[f"{KEY}tokens"], "a")}, "of them different"),
        (GPT2, {"tokens": first(GPT2[f"{KEY}tokens"], 5)}, "a list of str is needed"),
        (GPT2, {"eos_token_id": 10**6}, "eos_token_id is 1000000, beyond the vocabulary"),
        (GPT2, {"eos_token_id": "</s>"}, "eos_token_id is '</s>', beyond the vocabulary"),
        (LLAMA, {"remove_extra_whitespaces": True}, "remove_extra_whitespaces is true"),
        (LLAMA, {"add_sep_token": True}, "add_sep_token is true; supported is false"),
        (LLAMA, {"scores": [1.0]}, "1 scores for"),
        (LLAMA, {"scores": None}, "tokenizer.ggml.scores is None"),
        (LLAMA, {"scores": first(LLAMA[f"{KEY}scores"], math.nan)}, "or not all are numbers"),
        (LLAMA, {"scores": [-1000.0] * len(LLAMA[f"{KEY}scores"])}, "all tokens have the score -1"),
        (LLAMA, {"tokens": first(LLAMA[f"{KEY}tokens"], "a" * 300)}, "more than 256 characters"),
        (
            LLAMA,
            {"tokens": [t.replace("<0x41>", "<A>") for t in LLAMA[f"{KEY}tokens"]]},
            "no token for the byte <0x41>",
        ),
        (LLAMA, {"token_type": first(LLAMA[f"{KEY}token_type"], 9)}, r"token types \[9\]"),
    ],
)
def test_what_is_not_known_is_refused_by_name(base, changes, message):
    size = len(base[f"{KEY}tokens"])
    with pytest.raises(ValueError, match=message) as caught:
        tokenizer_files(base | {KEY + name: value for name, value in changes.items()}, size)
    assert len(str(caught.value)) < 500


def test_another_vocabulary_size_is_refused():
    size = len(LLAMA[f"{KEY}tokens"])
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(ValueError, match=f"the vocabulary size is {wrong}"):
            tokenizer_files(LLAMA, wrong)
