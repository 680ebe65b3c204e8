"""Text to token ids and back: byte-level BPE, streaming decoding, chat templates."""

from minillm.tokenizer.bpe import Tokenizer
from minillm.tokenizer.chat import ChatTemplate
from minillm.tokenizer.detokenize import StreamingDetokenizer
from minillm.tokenizer.stop import StopStrings

__all__ = ["ChatTemplate", "StopStrings", "StreamingDetokenizer", "Tokenizer"]
