"""What `Tokenizer` refuses or warns of."""

import warnings
from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")


def check_text(text: object) -> None:
    """TypeError for what is not a str, ValueError for one that is no text."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.80} is not a text; a str is needed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        raise ValueError(
            f"the text has {half}, half of a surrogate pair, at position {error.start}"
        ) from None


def check_bytes(text: str, lost_bytes: bytes, strict: bool) -> None:
    """ValueError if strict, else a warning, where one of these bytes occurs in the text."""
    data = text.encode()
    if len(data.translate(None, lost_bytes)) < len(data):
        names = ", ".join(f"0x{byte:02x}" for byte in lost_bytes if byte in data)
        message = f"the vocabulary has no token for these bytes of the text: {names}"
        if strict:
            raise ValueError(message)
        warnings.warn(f"{message}; they are lost", stacklevel=3)


def check_vocab_size(vocab_size: int, num_special: int) -> int:
    """How many merges a vocabulary of this size has room for; ValueError below none."""
    if vocab_size < 256 + num_special:
        needed = f"256 bytes and {num_special} special tokens need {256 + num_special}"
        raise ValueError(f"vocab_size is {vocab_size}; {needed}")
    return vocab_size - 256 - num_special


def look_up(table: Mapping[int, Value], token_id: int) -> Value:
    """The entry of a token; ValueError where there is none."""
    try:
        return table[token_id]
    except (KeyError, TypeError):
        raise ValueError(f"{token_id!r} is not the id of one of {len(table)} tokens") from None
