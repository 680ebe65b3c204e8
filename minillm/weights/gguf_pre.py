"""What the names of `tokenizer.ggml.pre` in a GGUF file mean.

GGUF names a way to cut text before byte-level BPE; llama.cpp keeps its meaning in code. The
patterns here are those of the models' own tokenizer.json. llama.cpp's give other pieces in two
places: for tekken and gpt-4o letters beyond ASCII have no case there, and Qwen's text is not
normalized.
"""

from typing import Any

from minillm.tokenizer.pretokenize import LLAMA3_SPLIT, QWEN2_SPLIT

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def _cut(pattern: str) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [cut, BYTE_LEVEL | {"use_regex": False}]}


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(contractions: str, digits: str) -> str:
    """A word is upper case letters, then lower case ones, one of either at least."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{before}{_UPPER}*{_LOWER}+{contractions}|{before}{_UPPER}+{_LOWER}*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_DIGITS = {"type": "Digits", "individual_digits": True}
_O200K = _cased(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}")
_LLAMA3 = {"pre_tokenizer": _cut(LLAMA3_SPLIT), "ignore_merges": True, "add_bos": True}

# Parts of tokenizer.json. ignore_merges: a piece that is a token is not merged. add_bos: BOS is
# added where the file does not say.
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": {"pre_tokenizer": BYTE_LEVEL},
    # Every digit stands alone, then GPT-2's split. ByteLevel alone differs on " ½" and " ١٢".
    "smollm": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_DIGITS, BYTE_LEVEL]}},
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": {"pre_tokenizer": _cut(LLAMA3_SPLIT)},
    "smaug-bpe": {"pre_tokenizer": _cut(LLAMA3_SPLIT)},
    "qwen2": {"pre_tokenizer": _cut(QWEN2_SPLIT), "normalizer": {"type": "NFC"}},
    "deepseek-r1-qwen": {"pre_tokenizer": _cut(QWEN2_SPLIT)},
    "tekken": {
        "pre_tokenizer": _cut(_cased("", r"\p{N}")),
        "ignore_merges": True,
        "add_bos": True,
    },
    "gpt-4o": {"pre_tokenizer": _cut(_O200K)},
}
