"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json."""

from typing import Any

BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
# GGUF names a way to split text before BPE; llama.cpp keeps its meaning in code.
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": BYTE_LEVEL,
    # Every digit stands alone, then GPT-2's split. ByteLevel alone differs on " ½" and " ١٢".
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
    },
}
# Values of tokenizer.ggml.token_type.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


def tokenizer_files(metadata: dict[str, Any], vocab_size: int) -> dict[str, dict[str, Any]]:
    """Contents of tokenizer.json and tokenizer_config.json from the metadata of a GGUF file.

    Raises: ValueError for a kind of tokenizer or of token that is not known to convert exactly.
    """
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    if len(tokens) != vocab_size or len(set(tokens)) != vocab_size:
        raise ValueError(
            f"{len(tokens)} tokens, {len(set(tokens))} of them different; the vocabulary size is "
            f"{vocab_size}"
        )
    return {
        "tokenizer.json": _tokenizer_json(metadata, tokens),
        "tokenizer_config.json": _tokenizer_config(metadata, tokens),
    }


def _tokenizer_json(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise ValueError(f"tokenizer.ggml.model is {kind!r}; supported is 'gpt2' (byte-level BPE)")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ValueError(f"tokenizer.ggml.pre is {pre!r}; supported are {known}")
    for key in ("add_space_prefix", "add_bos_token", "add_eos_token"):
        if metadata.get(f"tokenizer.ggml.{key}", False):
            raise ValueError(f"tokenizer.ggml.{key} is true; supported is false")
    merges = [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges", [])]
    known_tokens = set(tokens)
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= known_tokens:
            raise ValueError(f"merge {' '.join(merge)!r} does not join two tokens to a third one")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, tokens),
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": {**BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges,
        },
    }


def _added_tokens(metadata: dict[str, Any], tokens: list[str]) -> list[dict[str, Any]]:
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ValueError(f"{len(types)} token types for {len(tokens)} tokens")
    if strange := set(types) - {NORMAL, CONTROL, USER_DEFINED, UNUSED}:
        raise ValueError(f"token types {sorted(strange)}; supported are 1, 3, 4 and 5")
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _tokenizer_config(metadata: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get("llama.context_length"),
    }
    for hf_name, name in (
        ("bos", "bos"),
        ("eos", "eos"),
        ("pad", "padding"),
        ("unk", "unknown"),
    ):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ValueError(f"tokenizer.ggml.{name}_token_id is {index}, beyond the vocabulary")
        config[f"{hf_name}_token"] = tokens[index]
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    return config
