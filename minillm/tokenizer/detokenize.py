"""Streaming decoding: text as soon as it is final, though a character may span several tokens."""

from collections.abc import Callable, Collection

__all__ = ["StreamingDetokenizer", "unfinished"]


def unfinished(data: bytes) -> int:
    """How many bytes at the end of the data may still become a character: 0 to 3.

    A UTF-8 character is a first byte that tells its length, then one to three bytes 80..BF. After
    E0, ED, F0 and F4 the second byte has a narrower range; outside it the bytes can never become a
    character, so there is nothing to wait for. (RFC 3629, section 4)

    >>> data = "a🌶".encode()  # 61 F0 9F 8C B6
    >>> [unfinished(data[:count]) for count in range(6)]
    [0, 0, 1, 2, 3, 0]
    """
    second_byte = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
    for count in range(1, min(3, len(data)) + 1):
        first = data[-count]
        if 0x80 <= first <= 0xBF:
            continue  # not the first byte of a character: look further back
        length = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4
        if not 0xC2 <= first <= 0xF4 or count >= length:
            return 0
        low, high = second_byte.get(first, (0x80, 0xBF))
        return count if count == 1 or low <= data[-count + 1] <= high else 0
    return 0


class StreamingDetokenizer:
    """Turns token ids into text one by one.

    The pieces joined equal `Tokenizer.decode` of all ids, however they are spread: what is held
    back is only the beginning of a character that a later token may complete.

    token_bytes: the bytes of a token id.
    skip: ids that give no text.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skip: Collection[int] = ()) -> None:
        self._token_bytes, self._skip = token_bytes, frozenset(skip)
        self._held = b""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is now final, often all of it, maybe none."""
        data = self._held + (b"" if token_id in self._skip else self._token_bytes(token_id))
        final = len(data) - unfinished(data)
        self._held = data[final:]
        return data[:final].decode(errors="replace")

    def flush(self) -> str:
        """The end: what was held back, now that no token will complete it."""
        text = self._held.decode(errors="replace")
        self._held = b""
        return text
