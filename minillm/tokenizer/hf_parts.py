"""The components of a tokenizer.json: normalizer, pre-tokenizer, post-processor.

Each is a JSON object with a `type`, or a Sequence of such objects. What is not known is refused.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import regex

from minillm.tokenizer.pretokenize import GPT2_SPLIT, Step, prefix_space, split

BEHAVIORS = ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")
MAX_COPIES = 10_000
MAX_STEPS = 32  # of a Sequence; each may make a text longer
MAX_AROUND = 1_000  # ids put around a text
NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")

_NEEDED: Any = object()


def show(value: object) -> str:
    """The value as an error message quotes it, 80 characters at most."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def field(spec: Any, where: str, key: str, kind: type, default: Any = _NEEDED) -> Any:
    """A field of an object, checked for its type; null counts as missing."""
    if not isinstance(spec, Mapping):
        raise ValueError(f"{where} is {show(spec)}; an object is needed")
    value = spec.get(key)
    if value is None and default is not _NEEDED:
        return default
    if not isinstance(value, kind):
        name = f"{where}.{key}".lstrip(".")
        raise ValueError(f"{name} is {show(value)}; {kind.__name__} is needed")
    return value


def one_of(value: Any, where: str, *allowed: str) -> str:
    """The value, if it is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{where} is {show(value)}, not supported; allowed: {', '.join(allowed)}")
    return str(value)


def members(
    document: Mapping[str, Any], component: str, key: str
) -> list[tuple[Mapping[str, Any], str, str]]:
    """A component, or the members of a Sequence: each with its type and where it stands."""
    spec = document.get(component)
    if spec is None:
        return []
    kind = field(spec, component, "type", str)
    if kind != "Sequence":
        return [(spec, kind, component)]
    found = []
    steps = field(spec, component, key, list)
    if len(steps) > MAX_STEPS:
        raise ValueError(f"{component}.{key} has {len(steps)} steps; {MAX_STEPS} at most")
    for i, member in enumerate(steps):
        where = f"{component}.{key}[{i}]"
        found.append((member, field(member, where, "type", str), where))
    return found


def normal_forms(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The normalizer: names of Unicode normal forms, applied in turn."""
    found = members(document, "normalizer", "normalizers")
    return tuple(one_of(kind, where, *NORMAL_FORMS) for _, kind, where in found)


def pretokenizer(document: Mapping[str, Any]) -> tuple[Step, ...]:
    """The pre-tokenizer: steps for `pretokenize`, without the spelling of bytes that ends it."""
    *others, (last, kind, where) = members(document, "pre_tokenizer", "pretokenizers") or [
        ({}, "null", "pre_tokenizer")
    ]
    one_of(kind, where, "ByteLevel")  # any other end makes it another kind of tokenizer
    steps: list[Step] = []
    for member, member_kind, member_where in others:
        if one_of(member_kind, member_where, "Split", "Digits") == "Split":
            steps.append(_split_step(member, member_where))
        else:
            single = field(member, member_where, "individual_digits", bool)
            steps.append(partial(split, pattern=regex.compile(r"\p{N}" if single else r"\p{N}+")))
    if field(last, where, "add_prefix_space", bool):
        steps.append(prefix_space)
    if field(last, where, "use_regex", bool, True):
        steps.append(partial(split, pattern=regex.compile(GPT2_SPLIT)))
    return tuple(steps)


def _split_step(spec: Mapping[str, Any], where: str) -> Step:
    behavior = one_of(spec.get("behavior"), f"{where}.behavior", *BEHAVIORS)
    invert = field(spec, where, "invert", bool, False)
    source, where = field(spec, where, "pattern", dict), f"{where}.pattern"
    if "String" in source:
        pattern = regex.escape(field(source, where, "String", str))
    else:
        pattern = field(source, where, "Regex", str)
        # Oniguruma, the engine of `tokenizers`, reads these differently from `regex`.
        unlike = r"\\[wWbBhHRXGkK]|\{[\d,]+\}\+|\|\||--|~~|\(\?(?:R|&|P>|[+-]?\d)"
        if other := regex.search(unlike, pattern):
            raise ValueError(f"{where} is {show(pattern)}; {other[0]!r} in it is not supported")
        # `regex` makes so many copies of what is repeated.
        counts = regex.findall(r"(?<=\{)\d+", pattern)
        if math.prod(max(int(count[:9]), 1) for count in counts) > MAX_COPIES:
            needed = f"at most {MAX_COPIES:,} repeats are allowed"
            raise ValueError(f"{where} is {show(pattern)}; {needed}")
    try:
        # As in Oniguruma: sets may be nested, and ^ and $ are the ends of every line.
        compiled = regex.compile(pattern, regex.VERSION1 | regex.MULTILINE)
    except (regex.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{where} is {show(pattern)}, not supported: {error}") from None
    return partial(split, pattern=compiled, behavior=behavior, invert=invert)


def template(
    document: Mapping[str, Any], known: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The post-processor: ids put before and after a text, all of them among those known."""
    ids: list[Any] = [None]  # None is the text itself
    for member, kind, where in members(document, "post_processor", "processors"):
        if one_of(kind, where, "ByteLevel", "TemplateProcessing") == "ByteLevel":
            for key in ("add_prefix_space", "trim_offsets"):
                field(member, where, key, bool)
            continue  # it shifts offsets only
        single = field(member, where, "single", list)
        special = field(member, where, "special_tokens", dict, {})
        try:
            parts = [
                ids if item.get("Sequence") else special[item["SpecialToken"]["id"]]["ids"]
                for item in single
            ]
            if sum(map(len, parts)) > MAX_AROUND:
                raise ValueError
            ids = [index for part in parts for index in part]
            if ids.count(None) != 1 or not known.issuperset({*ids} - {None}):
                raise ValueError
        except (AttributeError, KeyError, TypeError, ValueError):
            needed = "the text once, and special tokens whose ids are in the vocabulary"
            raise ValueError(f"{where}.single is {show(single)}; allowed: {needed}") from None
    place = ids.index(None)
    return tuple(ids[:place]), tuple(ids[place + 1 :])
