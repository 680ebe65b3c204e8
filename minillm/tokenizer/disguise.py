"""Special tokens that a message spells are kept apart from those that a chat template writes."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from minillm.tokenizer.hf_parts import show

# Rare ideographs: printable, without case, never space, so that templates treat them as letters.
STAND_INS = range(0x20000, 0x2A6E0)


def map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """A copy of the value, made of plain JSON types, with every text in it changed.

    Raises: ValueError for anything else in it.
    """
    if isinstance(value, str):
        return change(str.__str__(value))
    if isinstance(value, Mapping):
        return {map_texts(k, change): map_texts(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value[:0])(map_texts(item, change) for item in value)
    if value is None or type(value) in (bool, int, float):
        return value
    raise ValueError(f"{show(value)} is no text, number, list or dict")


def disguise(
    special_tokens: Iterable[str], other_texts: Iterable[str], values: Any
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """A function that makes special tokens in a text unrecognizable, and one that undoes it.

    It swaps their first character for a rare one that occurs neither in the values nor in the other
    texts. The text keeps its length, so what a template does with it (`trim`, a slice) comes to the
    same.
    """
    tokens = frozenset(special_tokens) - {""}
    lengths = sorted({len(token) for token in tokens})
    first = sorted({token[0] for token in tokens})
    taken = set("".join((*tokens, *other_texts)))
    map_texts(values, taken.update)
    free = list(islice((char for char in map(chr, STAND_INS) if char not in taken), len(first)))
    if len(free) < len(first):
        raise ValueError(f"the texts use all {len(STAND_INS):,} characters of which one is needed")
    swap = dict(zip(first, free, strict=True))
    swap_back = {ord(char): original for original, char in swap.items()}
    may_begin = re.compile("|".join(map(re.escape, first)) or "(?!)")  # (?!) never matches

    def hide(text: str) -> str:
        chars, end = list(text), len(text.rstrip())
        for match in may_begin.finditer(text):
            i = match.start()
            # A token, or the beginning of one that goes on in what the template writes next.
            begun = 0 < end - i < lengths[-1] and any(
                token.startswith(text[i:end]) for token in tokens
            )
            if begun or any(text[i : i + length] in tokens for length in lengths):
                chars[i] = swap[match[0]]
        return "".join(chars)

    return hide, lambda text: text.translate(swap_back)
