"""Reads the tokenizer.json of SentencePiece-style tokenizers: Llama 1 and 2, Mistral, Gemma, Phi-3.

They run BPE on characters, with a space spelled ▁ (U+2581), and fall back to one token per byte,
spelled `<0xEA>`, for a character that the vocabulary lacks. (Kudo and Richardson 2018,
arXiv:1808.06226.) The `tokenizers` library normalizes, cuts and merges; what a part of the file
means is checked here first, for what is misread still encodes, to wrong ids.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minillm.tokenizer.added import AddedToken
from minillm.tokenizer.hf_json import read_added, read_merges, read_vocab
from minillm.tokenizer.hf_parts import NORMAL_FORMS, field, members, one_of, show, template

# A text of 1 MB must not become one of many, nor a few bytes of the file a few GB.
MAX_GROWTH = 16
MAX_ADDED = 256

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class SentencePieceData:
    """What a tokenizer.json says, checked.

    vocab: token to id. added: tokens cut out of the text before anything else.
    token_bytes: id to the bytes that the token stands for, added tokens included.
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
    token_bytes: dict[int, bytes]
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
    token_bytes = {index: bytes_of(token) for token, index in vocab.items()}
    token_bytes |= {token.id: bytes_of(token.content) for token in added}
    prefix, suffix = template(document, set(token_bytes))
    unknown = _unknown(model, vocab)
    normalize, first, later = _pipeline(document, model, vocab, added)
    return SentencePieceData(
        vocab=vocab,
        added=added,
        token_bytes=token_bytes,
        unknown=unknown,
        strip=strip,
        normalize=normalize,
        first=first,
        later=later,
        prefix=prefix,
        suffix=suffix,
        rest={**document, "model": {**model, "vocab": {}, "merges": []}},
    )


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """ValueError for whatever the library raises; a panic of its Rust code is no Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
            raise ValueError(f"{where}: the tokenizers library says: {error!s:.200}") from None
        raise


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
        replace.append((_one_character(spec, where, "replacement"), " "))
        strip = _scheme(spec, where) != "never"
    else:
        if not kinds or kinds != [kind for kind in order if kind in kinds]:
            needed = f"a Metaspace, or {', '.join(order)} in this order"
            raise ValueError(f"decoder is {show(document.get('decoder'))}; allowed: {needed}")
        for spec, kind, where in steps:
            if kind == "Replace":
                pattern, content = _replacement(spec, where)
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


def _one_character(spec: Mapping[str, Any], where: str, key: str) -> str:
    text: str = field(spec, where, key, str)
    if len(text) != 1:
        raise ValueError(f"{where}.{key} is {show(text)}; one character is needed")
    return text


def _scheme(spec: Mapping[str, Any], where: str) -> str:
    """prepend_scheme of a Metaspace, which older files write as add_prefix_space."""
    if spec.get("prepend_scheme") is None:
        return "always" if field(spec, where, "add_prefix_space", bool, True) else "never"
    return one_of(spec["prepend_scheme"], f"{where}.prepend_scheme", "always", "first", "never")


def _replacement(spec: Mapping[str, Any], where: str) -> tuple[str | None, str]:
    """Pattern (None for a regular expression) and content of a Replace."""
    pattern, where_pattern = field(spec, where, "pattern", dict), f"{where}.pattern"
    content: str = field(spec, where, "content", str)
    if "String" not in pattern:
        field(pattern, where_pattern, "Regex", str)
        return None, content
    text: str = field(pattern, where_pattern, "String", str)
    if not text:
        raise ValueError(f"{where_pattern} is empty; a text is needed")
    return text, content


def _pipeline(
    document: Mapping[str, Any],
    model: Mapping[str, Any],
    vocab: dict[str, int],
    added: tuple[AddedToken, ...],
) -> tuple[Callable[[str], str], Any, Any]:
    """The normalizer, and the library's tokenizers for the first part of a text and the others."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    begins_text = _check_normalizer(document)
    pre_tokenizer, first_only = _check_pre_tokenizer(document)
    if first_only and not begins_text:
        needed = "prepend_scheme 'first' with a normalizer that keeps the beginning of the text"
        raise ValueError(f"normalizer is {show(document['normalizer'])}; known is {needed}")
    merges = read_merges(model, vocab)
    names = {token.content for token in added}
    for token in () if merges else vocab.keys() - names:
        if len(token) > 1 and not _BYTE.fullmatch(token) and token != model.get("unk_token"):
            raise ValueError(f"model.merges is empty, yet model.vocab has {show(token)}")
    with library_errors("model"):
        bpe = BPE(
            vocab=vocab,
            merges=merges,
            unk_token=model.get("unk_token"),
            fuse_unk=field(model, "model", "fuse_unk", bool, False),
            byte_fallback=bool(model.get("byte_fallback")),
        )
    tokenizers = []
    for scheme in ("first", "never"):
        tokenizer = Tokenizer(bpe)  # the two share the model
        with library_errors("pre_tokenizer"):
            prefix = {"prepend_scheme": scheme, "add_prefix_space": scheme == "first"}
            steps = [{**s, **prefix} if s in first_only else s for s in pre_tokenizer]
            tokenizer.pre_tokenizer = _component("pre_tokenizer", "pretokenizers", steps)
        tokenizers.append(tokenizer)
    with library_errors("normalizer"):
        steps = [spec for spec, _, _ in members(document, "normalizer", "normalizers")]
        normalizer = _component("normalizer", "normalizers", steps)

    def normalize(text: str) -> str:
        if normalizer is None:
            return text
        with library_errors("normalizer"):
            return str(normalizer.normalize_str(text))

    first, later = tokenizers
    return normalize, first, later


def _component(name: str, key: str, steps: list[Mapping[str, Any]]) -> Any:
    """An object of the library, made of its description in JSON."""
    from tokenizers import Tokenizer

    if not steps:
        return None
    nothing = {"type": "BPE", "vocab": {}, "merges": []}
    sequence = {"type": "Sequence", key: steps}
    return getattr(Tokenizer.from_str(json.dumps({"model": nothing, name: sequence})), name)


def _check_normalizer(document: Mapping[str, Any]) -> bool:
    """Whether a normalized text begins where the text began; ValueError for what is not known."""
    begins_text, growth = True, 1.0
    for spec, kind, where in members(document, "normalizer", "normalizers"):
        one_of(kind, where, "Prepend", "Replace", "Strip", "Precompiled", *NORMAL_FORMS)
        if kind == "Replace":
            pattern, content = _replacement(spec, where)
            begins_text &= bool(content)
            growth *= max(1.0, len(content) / len(pattern or "."))
        elif kind == "Prepend":
            begins_text = False
            if len(field(spec, where, "prepend", str)) > MAX_ADDED:
                raise ValueError(f"{where}.prepend is longer than {MAX_ADDED} characters")
        elif kind in ("Strip", "Precompiled"):
            begins_text = False
            if kind == "Precompiled":
                _check_charsmap(field(spec, where, "precompiled_charsmap", str), where)
    if math.isinf(growth) or growth > MAX_GROWTH:
        raise ValueError(f"normalizer: a text gets {growth:.3g} times as long, not {MAX_GROWTH}")
    return begins_text


def _check_charsmap(charsmap: str, where: str) -> None:
    """A table of replacements: the size of a trie, the trie, then texts that end in a zero byte."""
    try:
        data = base64.b64decode(charsmap, validate=True)
    except ValueError:
        data = b""
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    if not texts or max(map(len, texts.split(b"\0"))) > MAX_ADDED:
        needed = f"a table of SentencePiece, of texts of at most {MAX_ADDED} bytes, is needed"
        raise ValueError(f"{where}.precompiled_charsmap is {show(charsmap)}; {needed}")


def _check_pre_tokenizer(
    document: Mapping[str, Any],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Its steps, and those among them that put a ▁ before the first part of a text only."""
    steps, first_only = [], []
    for spec, kind, where in members(document, "pre_tokenizer", "pretokenizers"):
        if one_of(kind, where, "Metaspace", "Split", "Digits") == "Metaspace":
            _one_character(spec, where, "replacement")
            if _scheme(spec, where) == "first":
                first_only.append(spec)
        steps.append(spec)
    return steps, first_only
