"""The steps of a SentencePiece-style tokenizer that the `tokenizers` library runs.

It normalizes a text, cuts it and merges. What the file asks of it is checked here first: kinds that
are known, and nothing that would make a short text huge.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from minillm.tokenizer.hf_parts import NORMAL_FORMS, field, members, one_of, show

# A text of 1 MB must not become one of many, nor a few bytes of the file a few GB.
MAX_GROWTH = 16
MAX_ADDED = 64


def pipeline(
    document: Mapping[str, Any], vocab: dict[str, int], merges: list[tuple[str, str]]
) -> tuple[Callable[[str], str], Any, Any]:
    """The normalizer, and the library's tokenizers for the first part of a text and the others.

    ValueError for a normalizer or pre-tokenizer that is not known, or that the library refuses.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    begins_text = _check_normalizer(document)
    steps, first_only = _check_pre_tokenizer(document)
    if first_only and not begins_text:
        needed = "prepend_scheme 'first' with a normalizer that keeps the beginning of the text"
        raise ValueError(f"normalizer is {show(document['normalizer'])}; known is {needed}")
    model = document["model"]
    with library_errors("model"):
        bpe = BPE(
            vocab=vocab,
            merges=merges,
            unk_token=model.get("unk_token"),
            fuse_unk=field(model, "model", "fuse_unk", bool, False),
            byte_fallback=bool(model.get("byte_fallback")),
        )
    first, later = Tokenizer(bpe), Tokenizer(bpe)  # the two share the model
    with library_errors("pre_tokenizer"):
        for tokenizer, scheme in ((first, "first"), (later, "never")):
            prefix = {"prepend_scheme": scheme, "add_prefix_space": scheme == "first"}
            changed = [{**step, **prefix} if step in first_only else step for step in steps]
            tokenizer.pre_tokenizer = _component("pre_tokenizer", "pretokenizers", changed)
    with library_errors("normalizer"):
        specs = [spec for spec, _, _ in members(document, "normalizer", "normalizers")]
        normalizer = _component("normalizer", "normalizers", specs)

    def normalize(text: str) -> str:
        if normalizer is None:
            return text
        with library_errors("normalizer"):
            return str(normalizer.normalize_str(text))

    return normalize, first, later


@contextmanager
def library_errors(where: str) -> Iterator[None]:
    """ValueError for whatever the library raises; a panic of its Rust code is no Exception."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime":
            raise ValueError(f"{where}: the tokenizers library says: {error!s:.200}") from None
        raise


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
            pattern, content = replacement(spec, where)
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
    if growth > MAX_GROWTH:
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
    found = members(document, "pre_tokenizer", "pretokenizers")
    for spec, kind, where in found:
        if one_of(kind, where, "Metaspace", "Split", "Digits") == "Metaspace":
            one_character(spec, where, "replacement")
            if prepend_scheme(spec, where) == "first":
                first_only.append(spec)
        steps.append(spec)
    if (count := [kind for _, kind, _ in found].count("Metaspace")) > 1:
        # Each puts a character before every piece, and cuts there.
        raise ValueError(f"pre_tokenizer has {count} Metaspace steps; one is allowed")
    return steps, first_only


def one_character(spec: Mapping[str, Any], where: str, key: str) -> str:
    """A field that is one character."""
    text: str = field(spec, where, key, str)
    if len(text) != 1:
        raise ValueError(f"{where}.{key} is {show(text)}; one character is needed")
    return text


def prepend_scheme(spec: Mapping[str, Any], where: str) -> str:
    """prepend_scheme of a Metaspace, which older files write as add_prefix_space."""
    if spec.get("prepend_scheme") is None:
        return "always" if field(spec, where, "add_prefix_space", bool, True) else "never"
    return one_of(spec["prepend_scheme"], f"{where}.prepend_scheme", "always", "first", "never")


def replacement(spec: Mapping[str, Any], where: str) -> tuple[str | None, str]:
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
