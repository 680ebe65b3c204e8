"""The steps before BPE: cut text into pieces, and spell bytes as printable characters.

BPE never merges across two pieces, so the cut decides what a token can be. The cut is data: one or
more regular expressions, which differ from family to family.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["GPT2_SPLIT", "bytes_to_unicode", "pretokenize"]

Step = Callable[[str], list[str]]

# Contractions, words, numbers, the rest; each takes one space before it. Of a run of white space
# the last character is left to what follows it, hence `\s+(?!\S)` before `\s+`.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Llama 3: contractions in upper case too, at most three digits, line breaks together.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen 2: the same with single digits.
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def bytes_to_unicode() -> dict[int, str]:
    """A printable character for each of the 256 bytes, as GPT-2 spells them in its vocabulary.

    Printable characters of Latin-1 stand for their own byte; the other 68 bytes take the characters
    from U+0100 on, in order. The space (0x20) becomes Ġ and the line break (0x0A) Ċ.

    >>> table = bytes_to_unicode()
    >>> "".join(table[byte] for byte in " é".encode())
    'ĠÃ©'
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return {byte: chr(byte if byte in own else next(spare)) for byte in range(256)}


def split(text: str, pattern: Any, behavior: str = "Isolated", invert: bool = False) -> list[str]:
    """Cut a text at the matches of a pattern.

    pattern: compiled by the `regex` package, which knows Unicode classes such as `\\p{L}`.
    behavior: what becomes of a match. "Isolated": a piece of its own. "Removed": dropped.
        "Contiguous": matches side by side make one piece. "MergedWithPrevious",
        "MergedWithNext": joined to the text before or after it.
    invert: take what lies between the matches for the matches.
    Returns: the pieces, none of them empty.

    >>> [split("a-b--c", regex.compile("-"), how) for how in ("Isolated", "MergedWithNext")]
    [['a', '-', 'b', '-', '-', 'c'], ['a', '-b', '-', '-c']]
    """
    if behavior == "Isolated" and not pattern.groups:
        pieces: list[str] = pattern.findall(text)
        if sum(map(len, pieces)) == len(text):  # no gaps, the usual case: several times faster
            return [piece for piece in pieces if piece]
    spans, end = [], 0
    for match in pattern.finditer(text):
        if end < match.start():
            spans.append((end, match.start(), invert))
        spans.append((match.start(), match.end(), not invert))
        end = match.end()
    if end < len(text):
        spans.append((end, len(text), invert))

    joined: list[tuple[int, int]] = []
    before = False  # is the span before a match?
    for start, end, here in spans:
        join = (
            (behavior == "Contiguous" and before == here)
            or (behavior == "MergedWithPrevious" and here and not before)
            or (behavior == "MergedWithNext" and before and not here)
        )
        if join and joined:
            joined[-1] = (joined[-1][0], end)
        elif not (behavior == "Removed" and here):
            joined.append((start, end))
        before = here
    return [text[start:end] for start, end in joined if start < end]


def prefix_space(text: str) -> list[str]:
    """The text as one piece that begins with a space."""
    return [text if text.startswith(" ") else " " + text]


def pretokenize(text: str, steps: Iterable[Step]) -> list[str]:
    """Cut a text by several steps in turn, each applied to every piece of the one before.

    steps: functions from a text to its pieces.

    >>> digits = partial(split, pattern=regex.compile(r"\\p{N}"))
    >>> words = partial(split, pattern=regex.compile(GPT2_SPLIT))
    >>> pretokenize("in 1984, we", [digits, words])
    ['in', ' ', '1', '9', '8', '4', ',', ' we']
    """
    pieces = [text] if text else []
    for step in steps:
        pieces = [part for piece in pieces for part in step(piece)]
    return pieces
