"""SentencePiece-style tokenizers, with the interface of `minillm.tokenizer.bpe.Tokenizer`."""

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from minillm.config import read_json
from minillm.tokenizer import hf_json, sp_json
from minillm.tokenizer.added import AddedVocabulary
from minillm.tokenizer.bpe import Tokenizer
from minillm.tokenizer.checks import check_text
from minillm.tokenizer.detokenize import StreamingDetokenizer
from minillm.tokenizer.hf_parts import members
from minillm.tokenizer.sp_json import SentencePieceData
from minillm.tokenizer.sp_pipeline import library_errors
from minillm.tokenizer.vocabulary import TokenTable


class SentencePieceTokenizer(TokenTable):
    """Text to token ids and back. `open_tokenizer` makes it; `save` writes it.

    Ids equal those of the `tokenizers` library. Decoded text does, too, with two exceptions:

    - Byte tokens that are not UTF-8. The bytes of all tokens are joined, and each longest beginning
      of a character that stays unfinished becomes one U+FFFD, as in `bytes.decode` and in the
      byte-level `Tokenizer`. The library gives one for every byte of a run of byte tokens, those of
      whole characters included, which would hold a stream back until the run ends.
    - At the beginning of a text only the one space goes that encoding put there. The library's
      Metaspace decoder takes away all those in the first token.

    Two things are lost in the ids already: a typed ▁ is read back as a space; and a Metaspace that
    puts ▁ only where no space stands gives `x` and ` x` the same ids.
    """

    def __init__(self, data: SentencePieceData) -> None:
        super().__init__(data.vocab, data.added, data.bytes_of)
        self.data = data
        self.added = _Added(data)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        allowed_special: Literal["none", "all"] | Collection[str] = "none",
        strict: bool = False,
    ) -> list[int]:
        """Token ids of a text.

        add_special_tokens: add the tokens that tokenizer.json wants around a text, such as BOS.
        allowed_special: special tokens whose text becomes their id. "none": it is ordinary text,
            whoever wrote it; "all": as `tokenizers` does; or a collection of them.
        strict: ValueError where unk_token would stand for text that the vocabulary cannot spell,
            which is otherwise lost with a warning. With byte fallback nothing is lost.
        Raises: ValueError for a lone surrogate, which is no text, and for an unknown special token.
        """
        check_text(text)
        ids: list[int] = []
        lost = False
        for place, (part, token_id) in enumerate(self.added.split(text, allowed_special)):
            if token_id is not None:
                ids.append(token_id)
                continue
            part_ids = self.encode_part(part, first=place == 0)
            lost = lost or self.data.unknown in part_ids
            ids += part_ids
        if lost:
            message = "the vocabulary has no token for some characters of the text"
            if strict:
                raise ValueError(message)
            warnings.warn(f"{message}; they are lost", stacklevel=2)
        return [*self.data.prefix, *ids, *self.data.suffix] if add_special_tokens else ids

    def encode_part(self, text: str, *, first: bool) -> list[int]:
        """Token ids of one of the ordinary parts that `added.split` cuts a text into.

        It is normalized already, and no added token is looked for in it.
        first: nothing comes before it in the text, so that a ▁ may be put there.
        """
        tokenizer = self.data.first if first else self.data.later
        with library_errors(f"the text {text!r:.40}"):
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids; ValueError for an unknown one.

        skip_special_tokens: leave special tokens out.
        """
        detokenizer = self.stream(skip_special_tokens=skip_special_tokens)
        return "".join([*map(detokenizer.push, ids), detokenizer.flush()])

    def stream(self, *, skip_special_tokens: bool = False) -> StreamingDetokenizer:
        """A decoder that takes ids one by one and gives text as soon as it is final."""
        skip = self.special_tokens.values() if skip_special_tokens else ()
        make = _PrefixDetokenizer if self.data.strip else StreamingDetokenizer
        return make(self.token_bytes, skip)

    def save(self, path: str | Path) -> None:
        """Write a tokenizer.json, which the `tokenizers` library reads as well."""
        merges = json.loads(self.data.first.model.__getstate__())["merges"]
        model = {**self.data.rest["model"], "vocab": self.data.vocab, "merges": merges}
        hf_json.write({**self.data.rest, "model": model}, path)


class _Added(AddedVocabulary):
    """Added tokens, with the library's normalizer for the text between them."""

    def __init__(self, data: SentencePieceData) -> None:
        self._library_normalize = data.normalize
        super().__init__(data.added)

    def normalize(self, text: str) -> str:
        return self._library_normalize(text)


class _PrefixDetokenizer(StreamingDetokenizer):
    """Leaves out the space that encoding put before the text."""

    def __init__(self, token_bytes: Callable[[int], bytes], skip: Collection[int] = ()) -> None:
        super().__init__(token_bytes, skip)
        self._begun = False

    def push(self, token_id: int) -> str:
        text = super().push(token_id)
        if text and not self._begun:
            self._begun = True
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        self._begun = False
        return super().flush()


AnyTokenizer = Tokenizer | SentencePieceTokenizer


def open_tokenizer(path: str | Path) -> AnyTokenizer:
    """Read a tokenizer.json of either kind; ValueError names the file, the field and the fault."""
    document = read_json(Path(path))
    try:
        return make_tokenizer(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def make_tokenizer(document: Mapping[str, Any]) -> AnyTokenizer:
    """A tokenizer from the contents of a tokenizer.json; ValueError names the field and the fault.

    It is a byte-level one where the pre-tokenizer ends in ByteLevel, which spells text as bytes
    before the model sees it.
    """
    steps = members(document, "pre_tokenizer", "pretokenizers")
    if "ByteLevel" in [kind for _, kind, _ in steps]:
        return Tokenizer(hf_json.parse(document))
    return SentencePieceTokenizer(sp_json.parse(document))
