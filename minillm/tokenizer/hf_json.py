"""Reads and writes tokenizer.json, the format of Hugging Face's `tokenizers` library.

Covers the byte-level BPE families (GPT-2, SmolLM2, Llama 3, Qwen 2). A tokenizer of which one part
is misread still encodes and decodes, to wrong ids; so what is not known exactly is refused by name.
Left alone: `truncation` and `padding`, which are settings of the program that wrote the file.
"""

import codecs
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minillm.config import read_json
from minillm.tokenizer.added import AddedToken
from minillm.tokenizer.hf_parts import field, normal_forms, one_of, pretokenizer, show, template
from minillm.tokenizer.pretokenize import Step, bytes_to_unicode

# In characters. Each is compared with the text wherever its first character stands.
MAX_ADDED_LENGTH = 256

_SPELLING = bytes_to_unicode()
_BYTES = {char: byte for byte, char in _SPELLING.items()}
_TO_BYTES = codecs.charmap_build("".join(_SPELLING[byte] for byte in range(256)))
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """What a tokenizer.json says, checked.

    vocab: token, spelled by `bytes_to_unicode`, to id.
    merges: pair of ids to its rank and the id of the token that it becomes.
    ignore_merges: a piece that is in the vocabulary is not merged.
    byte_ids: id of each single byte, None where it has none. lost_bytes: those that have none.
    bytes_of: the bytes that a token stands for, added tokens included.
    added: tokens cut out of the text before anything else.
    forms: the normalizer. steps: the pre-tokenizer. prefix, suffix: ids put around a text.
    rest: the file without vocabulary and merges, to save it again.
    """

    vocab: dict[str, int]
    merges: dict[tuple[int, int], tuple[int, int]]
    ignore_merges: bool
    byte_ids: tuple[int | None, ...]
    lost_bytes: bytes
    bytes_of: Callable[[str], bytes]
    added: tuple[AddedToken, ...]
    forms: tuple[str, ...]
    steps: tuple[Step, ...]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    rest: dict[str, Any]


def read(path: str | Path) -> TokenizerData:
    """Read a tokenizer.json; ValueError names the file, the field and the fault."""
    document = read_json(Path(path))
    try:
        return parse(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def as_document(data: TokenizerData) -> dict[str, Any]:
    """The contents of a tokenizer.json that `tokenizers` reads back."""
    token_of = {index: token for token, index in data.vocab.items()}
    by_rank = sorted(data.merges, key=lambda pair: data.merges[pair])
    merges = [[token_of[left], token_of[right]] for left, right in by_rank]
    model = {**data.rest["model"], "vocab": data.vocab, "merges": merges}
    return {**data.rest, "model": model}


def write(document: Mapping[str, Any], path: str | Path) -> None:
    """Write a tokenizer.json, whole or not at all."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    partly = Path(path).with_name(f".{Path(path).name}.{os.getpid()}")
    try:
        partly.write_text(text, encoding="utf-8")
        partly.replace(path)
    finally:
        partly.unlink(missing_ok=True)


def trained(
    merges: Sequence[tuple[int, int]], special_tokens: Sequence[str], pattern: str
) -> TokenizerData:
    """A trained vocabulary: the 256 bytes, then the merges in order, then special tokens."""
    tokens = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    spelled = [spell(token) for token in tokens]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    options = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), False)
    byte_level = {"type": "ByteLevel", **options}
    document = {
        "version": "1.0",
        "added_tokens": [
            {"id": len(tokens) + i, "content": content, "special": True, **plain}
            for i, content in enumerate(special_tokens)
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(spelled)},
            "merges": [[spelled[left], spelled[right]] for left, right in merges],
        },
    }
    return parse(document)


def parse(document: Mapping[str, Any]) -> TokenizerData:
    """Check a tokenizer.json and take it apart; ValueError names the field and the fault."""
    one_of(document.get("version", "1.0"), "version", "1.0")
    if document.get("decoder") is not None:
        one_of(field(document["decoder"], "decoder", "type", str), "decoder", "ByteLevel")
    model = field(document, "", "model", dict)
    one_of(model.get("type"), "model", "BPE")
    for key in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            needed = "null or false, as in byte-level BPE"
            raise ValueError(f"model.{key} is {show(model[key])}, not supported; allowed: {needed}")
    vocab = read_vocab(model)
    added = read_added(document, vocab)
    byte_ids = tuple(map(vocab.get, _SPELLING.values()))
    lost_bytes = bytes(byte for byte, index in enumerate(byte_ids) if index is None)
    if model.get("unk_token") is not None and lost_bytes:
        raise ValueError("model.unk_token with bytes that lack a token is not supported")
    prefix, suffix = template(document, {*vocab.values(), *(token.id for token in added)})
    return TokenizerData(
        vocab=vocab,
        merges=_merges(model, vocab, {token.content for token in added}),
        ignore_merges=field(model, "model", "ignore_merges", bool, False),
        byte_ids=byte_ids,
        lost_bytes=lost_bytes,
        bytes_of=partial(_bytes_of, {token.content for token in added} - vocab.keys()),
        added=added,
        forms=normal_forms(document),
        steps=pretokenizer(document),
        prefix=prefix,
        suffix=suffix,
        rest={**document, "model": {**model, "vocab": {}, "merges": []}},
    )


def spell(data: bytes) -> str:
    """Bytes as the vocabulary spells them.

    >>> spell(b" the")
    'Ġthe'
    """
    return "".join(_SPELLING[byte] for byte in data)


def _bytes_of(literal: Collection[str], token: str) -> bytes:
    with suppress(UnicodeEncodeError):
        if token not in literal:
            return codecs.charmap_encode(token, "strict", _TO_BYTES)[0]
    return token.encode()  # with another character it is literal, as `tokenizers` takes it


def _check_token(where: str, token: str, index: object) -> None:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 2**31:
        raise ValueError(f"{where}: {show(token)} has id {show(index)}; allowed: 0 and above")
    try:
        token.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}: {show(token)} holds half a surrogate pair") from None


def _is_sound(vocab: Mapping[str, Any]) -> bool:
    ids = vocab.values()
    if set(map(type, ids)) != {int} or len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids):
        return False
    return max(ids) < 2**31 and not _SURROGATES.search("".join(vocab))


def read_vocab(model: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of `model.vocab` with their ids, no two of them equal."""
    vocab: dict[str, int] = field(model, "model", "vocab", dict)
    if _is_sound(vocab):  # at once; the loop below names what is wrong
        return vocab
    token_of: dict[int, str] = {}
    for token, index in vocab.items():
        _check_token("model.vocab", token, index)
        if (other := token_of.setdefault(index, token)) != token:
            raise ValueError(f"model.vocab: {show(other)} and {show(token)} have one id, {index}")
    return vocab


def read_added(document: Mapping[str, Any], vocab: Mapping[str, int]) -> tuple[AddedToken, ...]:
    """The entries of `added_tokens`; what they and the vocabulary both have, has one id."""
    token_of = {index: token for token, index in vocab.items()}
    added: dict[str, AddedToken] = {}
    following = len(vocab)
    for i, entry in enumerate(field(document, "", "added_tokens", list, [])):
        where = f"added_tokens[{i}]"
        content: str = field(entry, where, "content", str)
        index = entry.get("id")
        _check_token(where, content, index)
        if len(content) > MAX_ADDED_LENGTH:
            raise ValueError(f"{where}: {show(content)} is longer than {MAX_ADDED_LENGTH}")
        if not content or content in added or vocab.get(content, index) != index:
            raise ValueError(f"{where}: {show(content)} is empty, or has a second id, {index}")
        if (other := token_of.setdefault(index, content)) != content:
            raise ValueError(f"{where}: {show(other)} and {show(content)} have one id, {index}")
        if content not in vocab and index != following:
            # `tokenizers` ignores the file's id and goes on counting.
            raise ValueError(f"{where}: {show(content)} has id {index}; {following} is next")
        following = max(following, index + 1)
        flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
        values = {flag: field(entry, where, flag, bool, False) for flag in flags}
        added[content] = AddedToken(index, content, **values)
    return tuple(added.values())


def read_merges(model: Mapping[str, Any], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of `model.merges` in their order; they and what they become are tokens."""
    listed = field(model, "model", "merges", list)
    merges: list[tuple[str, str]] = []
    for rank, merge in enumerate(listed):
        if isinstance(merge, str) and merge.startswith("#version"):
            continue
        # A token may hold a space, so "a b c" could be cut in two ways, and is refused.
        pair = merge.split(" ") if isinstance(merge, str) else merge
        try:
            left, right = pair if isinstance(pair, list) else []
            _ = vocab[left], vocab[right], vocab[left + right]
        except KeyError as error:
            lacking = f"{show(error.args[0])} is not in model.vocab"
            raise ValueError(f"model.merges[{rank}] is {show(merge)}, but {lacking}") from None
        except (TypeError, ValueError):
            needed = "a pair of tokens is needed, ['a', 'b'] or 'a b'"
            raise ValueError(f"model.merges[{rank}] is {show(merge)}; {needed}") from None
        merges.append((left, right))
    return merges


def _merges(
    model: Mapping[str, Any], vocab: Mapping[str, int], added: set[str]
) -> dict[tuple[int, int], tuple[int, int]]:
    pairs = field(model, "model", "merges", list)
    if not all(type(pair) is list for pair in pairs):
        pairs = read_merges(model, vocab)
    if not pairs and not model.get("ignore_merges"):
        # Every text would fall to single bytes, and still come back whole from a round trip.
        for token in vocab.keys() - added:
            if len(token) > 1 and _BYTES.keys() >= set(token):
                raise ValueError(f"model.merges is empty, yet model.vocab has {show(token)}")
    try:
        return {(vocab[a], vocab[b]): (rank, vocab[a + b]) for rank, (a, b) in enumerate(pairs)}
    except (KeyError, TypeError, ValueError):
        read_merges(model, vocab)  # says what is wrong, and where
        raise
