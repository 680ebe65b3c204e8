"""The tokens that a tokenizer knows: id, spelling and bytes of each one."""

from collections.abc import Iterable
from pathlib import Path

from minillm.tokenizer import hf_json
from minillm.tokenizer.checks import look_up
from minillm.tokenizer.hf_json import TokenizerData


class Vocabulary:
    """Looks tokens up, and writes them to a file. `Tokenizer` adds text to ids and back."""

    def __init__(self, data: TokenizerData) -> None:
        self.data = data
        self.special_tokens = {token.content: token.id for token in data.added if token.special}
        self._ids = data.vocab | {token.content: token.id for token in data.added}
        self._tokens = {index: token for token, index in self._ids.items()}
        self.vocab_size = len(self._tokens)

    def ids_without_token(self, size: int) -> list[int]:
        """The ids below `size` that no token has: many models round their vocabulary up."""
        return [index for index in range(size) if index not in self._tokens]

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, which the `tokenizers` library reads as well."""
        hf_json.write(self.data, path)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token by itself, for display: part of a character shows as U+FFFD."""
        return [self.token_bytes(i).decode(errors="replace") for i in ids]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; ValueError for an unknown id."""
        return look_up(self.data.token_bytes, token_id)

    def id_to_token(self, token_id: int) -> str:
        """A token as the vocabulary spells it (`Ġthe` for " the"); ValueError for an unknown id."""
        return look_up(self._tokens, token_id)

    def token_to_id(self, token: str) -> int | None:
        """Id of a token as the vocabulary spells it, or None."""
        return self._ids.get(token)
