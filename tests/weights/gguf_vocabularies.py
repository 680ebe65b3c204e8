"""Small vocabularies as the metadata of GGUF files, and how llama.cpp is asked for their ids.

`gguf_ids.json` holds the ids that llama.cpp (llama-cpp-python 0.3.36) gives to TEXTS: each
vocabulary was written by `write`, loaded with `Llama(path, vocab_only=True)`, and every text was
passed to `_model.tokenize(text.encode(), True, special)` with special False, then True.
"""

from pathlib import Path
from typing import Any

from minillm.tokenizer.pretokenize import bytes_to_unicode
from minillm.weights.gguf_pre import PRE_TOKENIZERS

Metadata = dict[str, Any]

WORDS = [
    "▁the",
    "▁there",
    "▁hello",
    "▁world",
    "hello",
    "aaaa",
    "▁▁▁▁",
    "12",
    "déjà",
    "▁мир",
    "\n\n",
]
BYTE_WORDS = [
    " the",
    " there",
    " hello",
    "Hello",
    "aaaa",
    "    ",
    "2024",
    "\n\n",
    " École",
    "DON'T",
]
TEXTS = [
    *("", " ", "  ", "    four", "the", " the", "hello", "Hello  world", "there's the\n\nhello"),
    *("aaa", "aaaaaaa", "a" * 33, " " * 33, "12345678", " 2024", "in 1984, 2024", "x1y22z333"),
    *("<s>", "a<s>b", "<s> a", "</s></s>", "<unk>", "<0x40>", "<0xEA><0xB9><0xB0>", "▁", "▁▁the"),
    *("déjà vu", "мир", " мир", "한국어", "🌶", "École ÉCOLE", "I'M DON'T don't", "½ ١٢ Ⅷ"),
    *("<|user|>hello<|end|>\n", "<|end|>  the", "a<b>the</b>", "<b> <b>", "\n", "\n\n\n", "\t\r\n"),
    *("CamelCase camelCase HTTPServer", "path/to//the.file", "!?...", "<|user|", "the<|end|>the"),
]


def sentencepiece(*more: tuple[str, int], **keys: Any) -> Metadata:
    """Every part of the words is a token, a longer one of a better score.

    more: further tokens with their types.
    """
    parts = {
        word[i:j] for word in WORDS for i in range(len(word)) for j in range(i + 1, len(word) + 1)
    }
    pieces = sorted(parts, key=lambda part: (-len(part), part))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    scores = [*[0.0] * 259, *(-float(i) for i in range(len(pieces)))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*tokens, *(token for token, _ in more)],
        "tokenizer.ggml.token_type": [*types, *(kind for _, kind in more)],
        "tokenizer.ggml.scores": [*scores, *[-1000.0] * len(more)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **keys,
    }


def byte_level(pre: str, **keys: Any) -> Metadata:
    """Bytes, and merges that build the words from the left; one token that no merge reaches."""
    spell = bytes_to_unicode()
    tokens, merges = list(spell.values()), []
    for word in BYTE_WORDS:
        left, *rest = (spell[byte] for byte in word.encode())
        for right in rest:
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
            left += right
    special = ["<s>", "</s>", "<|user|>", "<|end|>", "<b>", "</b>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "Ġworld", *special],
        "tokenizer.ggml.token_type": [*[1] * (len(tokens) + 1), 3, 3, 3, 3, 4, 4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) + 1,
        "tokenizer.ggml.eos_token_id": len(tokens) + 2,
        **keys,
    }


CHAT = (("<|endoftext|>", 3), ("<|user|>", 3), ("<|end|>", 3), ("<b>", 4), ("</b>", 4))
GEMMA = (*CHAT, ("  ", 4), ("   ", 4), ("\n\n\n", 4), ("[PAD]", 5))
PHI3 = {"general.name": "Phi-3 mini", "tokenizer.ggml.add_bos_token": False}
VOCABULARIES: dict[str, Metadata] = {
    "llama": sentencepiece(),
    "mistral": sentencepiece(*CHAT),
    "gemma3": sentencepiece(*GEMMA, **{"tokenizer.ggml.add_space_prefix": False}),
    "phi3": sentencepiece(
        *CHAT, **{"general.name": "Phi-3 mini", "tokenizer.ggml.add_bos_token": False}
    ),
    "with eos": sentencepiece(**{"tokenizer.ggml.add_eos_token": True}),
    **{pre: byte_level(pre) for pre in PRE_TOKENIZERS},
    "gpt-2 with bos": byte_level("gpt-2", **{"tokenizer.ggml.add_bos_token": True}),
    "llama-bpe without": byte_level("llama-bpe", **{"tokenizer.ggml.add_bos_token": False}),
}


def write(metadata: Metadata, path: Path) -> None:
    """A GGUF file without tensors."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"context_length": 64, "embedding_length": 32, "feed_forward_length": 64}
    sizes |= {"block_count": 1, "attention.head_count": 4}
    for key, size in sizes.items():
        writer.add_uint32(f"llama.{key}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
    for key, value in metadata.items():
        add.get(type(value), writer.add_array)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
