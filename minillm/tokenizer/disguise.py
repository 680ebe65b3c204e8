"""Special tokens that a message spells are kept apart from those that a chat template writes."""

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
    tokens = tuple(special_tokens)
    longest = max(map(len, tokens), default=0)
    taken = set("".join((*tokens, *other_texts)))
    map_texts(values, taken.update)
    free = (char for char in map(chr, STAND_INS) if char not in taken)
    first = sorted({token[0] for token in tokens})
    stand_ins = list(islice(free, len(first)))
    if len(stand_ins) < len(first):
        raise ValueError(f"the texts use all {len(STAND_INS):,} characters of which one is needed")
    swap = dict(zip(first, stand_ins, strict=True))
    swap_back = {ord(char): original for original, char in swap.items()}

    def hide(text: str) -> str:
        chars = list(text)
        for i, char in enumerate(text):
            if char in swap:
                # A token, or the beginning of one that goes on in what the template writes next.
                rest = text[i : i + longest].rstrip()
                begun = len(rest) < longest and any(token.startswith(rest) for token in tokens)
                if begun or rest.startswith(tokens):
                    chars[i] = swap[char]
        return "".join(chars)

    return hide, lambda text: text.translate(swap_back)
