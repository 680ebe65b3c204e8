"""Added tokens: strings such as `<|im_end|>` that are cut out of a text before BPE sees it."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import regex

# What `tokenizers` means by a space and by a word in lstrip, rstrip and single_word.
_SPACE, _WORD = regex.compile(r"\s"), regex.compile(r"\w")
_MANY_MARKS = regex.compile(r"[^\p{CCC=0}]{32,}")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One entry of `added_tokens` in tokenizer.json.

    special: a control token, which text typed by a user must not yield, and which `decode` may
        leave out; otherwise a word that was added to the vocabulary.
    lstrip, rstrip: the white space on that side belongs to the token.
    single_word: only where no letter or digit stands beside it.
    normalized: looked for after the normalizer has changed the text.
    """

    id: int
    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class AddedVocabulary:
    """Finds added tokens in a text, and normalizes the text between them.

    forms: the normalizer, as names of Unicode normal forms ("NFC").
    """

    def __init__(self, tokens: Sequence[AddedToken], forms: Sequence[str] = ()) -> None:
        self._forms = forms
        self._special = {token.content for token in tokens if token.special}
        self._raw = {token.content: token for token in tokens if not token.normalized}
        self._normalized = {self.normalize(t.content): t for t in tokens if t.normalized}
        self._find_raw, self._find_normalized = _Finder(self._raw), _Finder(self._normalized)

    def split(
        self, text: str, allowed_special: Literal["none", "all"] | Collection[str]
    ) -> Iterator[tuple[str, int | None]]:
        """Cut a text into ordinary parts (with None) and added tokens (with their id).

        allowed_special: the special tokens to find; the others are ordinary text. Added tokens
            that are not special are always found. ValueError for one that is unknown.
        """
        named: dict[object, Collection[str]] = {"none": (), "all": self._special}
        allowed = (
            named.get(allowed_special) if isinstance(allowed_special, str) else allowed_special
        )
        if allowed is None or not self._special.issuperset(allowed):
            known = f"'none', 'all' or some of {sorted(self._special)}"
            raise ValueError(f"allowed_special is {allowed_special!r}; it may be {known}")
        for part, token_id in _cut(text, self._raw, self._find_raw, allowed):
            if token_id is not None:
                yield part, token_id
            else:
                part = self.normalize(part)
                yield from _cut(part, self._normalized, self._find_normalized, allowed)

    def normalize(self, text: str) -> str:
        """The text as the normalizer leaves it."""
        for form in self._forms:
            text = _MANY_MARKS.sub(_in_order, text)
            text = unicodedata.normalize(form, text)  # type: ignore[arg-type]
        return text


def _in_order(marks: regex.Match[str]) -> str:
    # The order that normalization gives them. Python's takes quadratic time to find it.
    classes = [unicodedata.combining(mark) for mark in marks[0]]
    return marks[0] if 0 in classes else "".join(sorted(marks[0], key=unicodedata.combining))


class _Finder:
    """Finds tokens in a text, where two begin at the same place the longer one.

    A vocabulary may have thousands of them (Gemma 3 has 6,242 that begin with `<unused`), which an
    alternation would try one after the other. So only their first characters and lengths are.
    """

    def __init__(self, tokens: Collection[str]) -> None:
        self._tokens = frozenset(tokens) - {""}
        self._lengths: dict[str, list[int]] = {}
        for first, length in sorted({(token[0], len(token)) for token in self._tokens}):
            self._lengths.setdefault(first, []).insert(0, length)
        firsts = "|".join(map(re.escape, self._lengths))
        self._first = re.compile(firsts or "(?!)")  # (?!) never matches

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where they stand, in order and apart from each other."""
        place = 0
        while found := self._first.search(text, place):
            start = found.start()
            lengths = self._lengths[found[0]]
            length = next((n for n in lengths if text[start : start + n] in self._tokens), 0)
            if length:
                yield start, start + length
            place = start + max(length, 1)


def _cut(
    text: str, tokens: dict[str, AddedToken], finder: _Finder, allowed: Collection[str]
) -> Iterator[tuple[str, int | None]]:
    end = 0
    for start, stop in finder.spans(text):
        token = tokens[text[start:stop]]
        if token.special and token.content not in allowed:
            continue
        if token.single_word and (_WORD.match(text[start - 1 : start]) or _WORD.match(text, stop)):
            continue
        while token.lstrip and start > end and _SPACE.match(text, start - 1):
            start -= 1
        while token.rstrip and _SPACE.match(text, stop):
            stop += 1
        if end < start:
            yield text[end:start], None
        yield token.content, token.id
        end = stop
    if end < len(text):
        yield text[end:], None
