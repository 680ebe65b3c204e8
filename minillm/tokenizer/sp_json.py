"""Reads the tokenizer.json of SentencePiece-style tokenizers: Llama 1 and 2, Mistral, Gemma, Phi-3.

They run BPE on characters, with a space spelled ▁ (U+2581), and fall back to one token per byte,
spelled `<0xEA>`, for a character that the vocabulary lacks. (Kudo and Richardson 2018,
arXiv:1808.06226.) The `tokenizers` library normalizes, cuts and merges; what a part of the file
means is checked here first, for what is misread still encodes, to wrong ids.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minillm.tokenizer.added import AddedToken
from minillm.tokenizer.hf_json import read_added, read_merges, read_vocab
from minillm.tokenizer.hf_parts import field, members, one_of, show, template
from minillm.tokenizer.sp_pipeline import one_character, pipeline, prepend_scheme, replacement

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class SentencePieceData:
    """What a tokenizer.json says, checked.

    vocab: token to id. added: tokens cut out of the text before anything else.
    bytes_of: the bytes that a token stands for, added tokens included.
    unknown: id of the token for what the vocabulary cannot spell; None where it can spell all.
    strip: a decoded text loses one space at its beginning, the one that encoding put there.
    normalize: what is done to the text between two added tokens.
    first, later: `tokenizers.Tokenizer`s that turn a normalized part of a text into ids, for the
        part that begins the text and for the others; they differ in whether a ▁ is put before it.
    prefix, suffix: ids put around a text.
    rest: the file without vocabulary and merges, to save it again.
    """

    vocab: dict[str, int]
    added: tuple[AddedToken, ...]
    bytes_of: Callable[[str], bytes]
    unknown: int | None
    strip: bool
    normalize: Callable[[str], str]
    first: Any
    later: Any
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    rest: dict[str, Any]


def parse(document: Mapping[str, Any]) -> SentencePieceData:
    """Check a tokenizer.json and take it apart; ValueError names the field and the fault."""
    one_of(document.get("version", "1.0"), "version", "1.0")
    model = field(document, "", "model", dict)
    one_of(model.get("type"), "model", "BPE")
    for key in (
        "ignore_merges",  # it would read `<0x40>` in a text as a byte
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
    ):
        if model.get(key):
            needed = "null or false, as in SentencePiece"
            raise ValueError(f"model.{key} is {show(model[key])}, not supported; allowed: {needed}")
    vocab = read_vocab(model)
    added = read_added(document, vocab)
    bytes_of, strip = _decoder(document)
    prefix, suffix = template(document, {*vocab.values(), *(token.id for token in added)})
    unknown = _unknown(model, vocab)
    merges = _merges(model, vocab, added)
    normalize, first, later = pipeline(document, vocab, merges)
    return SentencePieceData(
        vocab=vocab,
        added=added,
        bytes_of=bytes_of,
        unknown=unknown,
        strip=strip,
        normalize=normalize,
        first=first,
        later=later,
        prefix=prefix,
        suffix=suffix,
        rest={**document, "model": {**model, "vocab": {}, "merges": []}},
    )


def _unknown(model: Mapping[str, Any], vocab: Mapping[str, int]) -> int | None:
    """Id of unk_token, if there is anything that it could stand for."""
    unk_token = field(model, "model", "unk_token", str, None)
    if unk_token is not None and unk_token not in vocab:
        raise ValueError(f"model.unk_token is {show(unk_token)}, which is not in model.vocab")
    if field(model, "model", "byte_fallback", bool, False):
        lacking = [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in vocab]
        if not lacking:
            return None
    else:
        lacking = ["model.byte_fallback"]
    if unk_token is None:
        raise ValueError(f"characters would vanish: neither model.unk_token nor {lacking[0]}")
    return vocab[unk_token]


def _merges(
    model: Mapping[str, Any], vocab: Mapping[str, int], added: tuple[AddedToken, ...]
) -> list[tuple[str, str]]:
    merges = read_merges(model, vocab)
    single = {token.content for token in added} | {model.get("unk_token")}
    for token in () if merges else vocab.keys() - single:
        # Every text would fall to single characters.
        if len(token) > 1 and not _BYTE.fullmatch(token):
            raise ValueError(f"model.merges is empty, yet model.vocab has {show(token)}")
    return merges


def _decoder(document: Mapping[str, Any]) -> tuple[Callable[[str], bytes], bool]:
    """How a token is read as bytes, and whether the text loses its first space.

    Known are a Metaspace, and the steps Replace, ByteFallback, Fuse, Strip in this order, each of
    them or not.
    """
    order = ("Replace", "ByteFallback", "Fuse", "Strip")
    steps = members(document, "decoder", "decoders")
    kinds = [one_of(kind, where, *order, "Metaspace") for _, kind, where in steps]
    replace: list[tuple[str, str]] = []
    strip = False
    if kinds == ["Metaspace"]:
        spec, _, where = steps[0]
        replace.append((one_character(spec, where, "replacement"), " "))
        strip = prepend_scheme(spec, where) != "never"
    else:
        if not kinds or kinds != [kind for kind in order if kind in kinds]:
            needed = f"a Metaspace, or {', '.join(order)} in this order"
            raise ValueError(f"decoder is {show(document.get('decoder'))}; allowed: {needed}")
        for spec, kind, where in steps:
            if kind == "Replace":
                pattern, content = replacement(spec, where)
                if pattern is None or len(content) > len(pattern):
                    raise ValueError(f"{where} is {show(spec)}; a String for a longer one is known")
                replace.append((pattern, content))
            elif kind == "Strip":
                strip = _stripped(spec, where, kinds)

    byte_fallback = "ByteFallback" in kinds
    if document["model"].get("byte_fallback") and not byte_fallback:
        raise ValueError("decoder has no ByteFallback, so byte tokens would show as <0x..>")

    def bytes_of(token: str) -> bytes:
        for pattern, content in replace:
            token = token.replace(pattern, content)
        found = _BYTE.fullmatch(token) if byte_fallback else None
        return bytes([int(found[1], 16)]) if found else token.encode()

    return bytes_of, strip


def _stripped(spec: Mapping[str, Any], where: str, kinds: list[str]) -> bool:
    content, start, stop = (spec.get(key) for key in ("content", "start", "stop"))
    if (content, stop) != (" ", 0) or start not in (0, 1) or "Fuse" not in kinds:
        needed = "content ' ', start 0 or 1, stop 0, after a Fuse"
        raise ValueError(f"{where} is {show(spec)}; allowed: {needed}")
    return bool(start)
