"""The tokens that a tokenizer knows: id, spelling and bytes of each one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import filterfalse
from pathlib import Path

from minillm.tokenizer import hf_json
from minillm.tokenizer.added import AddedToken
from minillm.tokenizer.checks import look_up
from minillm.tokenizer.hf_json import TokenizerData


class TokenTable(ABC):
    """Looks tokens up. Both kinds of tokenizer add text to ids and back.

    vocab: token, as the vocabulary spells it, to id. added: the added tokens.
    bytes_of: the bytes that a token stands for, by its spelling.
    """

    def __init__(
        self,
        vocab: Mapping[str, int],
        added: Sequence[AddedToken],
        bytes_of: Callable[[str], bytes],
    ) -> None:
        self.special_tokens = {token.content: token.id for token in added if token.special}
        self._ids = {**vocab, **{token.content: token.id for token in added}}
        self._tokens = {index: token for token, index in self._ids.items()}
        self._bytes_of = bytes_of
        self.vocab_size = len(self._tokens)

    def ids_without_token(self, size: int) -> list[int]:
        """The ids below `size` that no token has: many models round their vocabulary up."""
        return [*filterfalse(self._tokens.__contains__, range(size))]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token by itself, for display: part of a character shows as U+FFFD."""
        return [self.token_bytes(i).decode(errors="replace") for i in ids]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; ValueError for an unknown id."""
        return self._bytes_of(self.id_to_token(token_id))

    def id_to_token(self, token_id: int) -> str:
        """A token as the vocabulary spells it (`Ġthe` for " the"); ValueError for an unknown id."""
        return look_up(self._tokens, token_id)

    def token_to_id(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it, or None."""
        return self._ids.get(token)

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""

    def encode_part(self, text: str, *, first: bool) -> list[int]:
        """Token ids of one of the ordinary parts that `added.split` cuts a text into.

        No special token is looked for in it. first: nothing comes before it in the text.
        """
        return self.encode(text, add_special_tokens=False)


class Vocabulary(TokenTable):
    """The table of byte-level tokens, and how they are written to a file."""

    def __init__(self, data: TokenizerData) -> None:
        super().__init__(data.vocab, data.added, data.bytes_of)
        self.data = data

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, which the `tokenizers` library reads as well."""
        hf_json.write(hf_json.as_document(self.data), path)
