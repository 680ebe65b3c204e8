"""The real vocabulary, in ours and in the `tokenizers` library, and texts to compare them on."""

import json

import pytest
import tokenizers

from minillm.tokenizer import Tokenizer
from tests.tokenizer.helpers import REFERENCE, Pair, both, newer_characters, newer_to_the_normalizer


@pytest.fixture(scope="session")
def document(smollm2):
    """The real tokenizer.json, as data."""
    return json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def ours(smollm2) -> Tokenizer:
    return Tokenizer.from_file(smollm2 / "tokenizer.json")


@pytest.fixture(scope="session")
def theirs(smollm2) -> tokenizers.Tokenizer:
    """The library, which takes special tokens in a text for ordinary text, as ours does."""
    tokenizer = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="session")
def theirs_special(smollm2) -> tokenizers.Tokenizer:
    """The library as it comes: special tokens in a text become their ids."""
    return tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.fixture(scope="session")
def variant(document, tmp_path_factory):
    """Makes a tokenizer with the real vocabulary and other components, in ours and theirs."""

    def make(**changes) -> Pair:
        model = document["model"] | changes.pop("model", {})
        return both(document | changes | {"model": model}, tmp_path_factory.mktemp("variant"))

    return make


@pytest.fixture(scope="session")
def reference():
    """Texts with the ids that llama.cpp gives them."""
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def newer() -> frozenset[str]:
    """Characters newer than the tables of `regex` or of `tokenizers`, which class them differently.

    Those that are newer than Python's own table, its category Cn, are left out elsewhere.
    """
    return newer_characters()


@pytest.fixture(scope="session")
def newest(newer) -> frozenset[str]:
    """The same, and what is new to the library's normalizer."""
    return newer | newer_to_the_normalizer()
