"""Text to token ids and back: byte-level BPE, SentencePiece, streaming decoding, chat templates."""

from minillm.tokenizer.bpe import Tokenizer
from minillm.tokenizer.chat import ChatTemplate
from minillm.tokenizer.detokenize import StreamingDetokenizer
from minillm.tokenizer.sentencepiece import (
    AnyTokenizer,
    SentencePieceTokenizer,
    make_tokenizer,
    open_tokenizer,
)
from minillm.tokenizer.stop import StopStrings

__all__ = [
    "AnyTokenizer",
    "ChatTemplate",
    "SentencePieceTokenizer",
    "StopStrings",
    "StreamingDetokenizer",
    "Tokenizer",
    "make_tokenizer",
    "open_tokenizer",
]
