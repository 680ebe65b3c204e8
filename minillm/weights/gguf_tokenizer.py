"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

There are two kinds, by `tokenizer.ggml.model`. "gpt2" is byte-level BPE; the file holds its merges
and names a way to cut text, of which llama.cpp keeps the meaning in code. "llama" is SentencePiece;
the file holds a score for every token instead of merges.
"""

import math
import re
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from minillm.tokenizer.hf_parts import show
from minillm.weights.gguf_pre import BYTE_LEVEL, PRE_TOKENIZERS

Json = dict[str, Any]
KEY = "tokenizer.ggml."

# Values of tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# llama.cpp's defaults for a file of the kind "llama" that does not say.
_LLAMA_IDS = {"unknown": 0, "bos": 1, "eos": 2}
MAX_TOKEN = 256  # characters; SentencePiece makes tokens of 16, where nothing else is asked
# Tokens of Phi-3 that do not take the white space after them; no GGUF file says which do.
_PHI3_KEEPS_SPACE = {"<unk>", "<s>", "<|endoftext|>"}


def tokenizer_files(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, Json]:
    """Contents of tokenizer.json and tokenizer_config.json from the metadata of a GGUF file.

    Raises: ValueError for a kind of tokenizer or of token that is not known to convert exactly.
    """
    tokens = _list(metadata, "tokens", str)
    if len(tokens) != vocab_size or len(set(tokens)) != vocab_size:
        raise ValueError(
            f"{len(tokens)} tokens, {len(set(tokens))} of them different; the vocabulary size is "
            f"{vocab_size}"
        )
    kind = metadata.get(f"{KEY}model")
    if kind not in ("gpt2", "llama"):
        raise ValueError(
            f"tokenizer.ggml.model is {show(kind)}; supported are 'gpt2' (byte-level BPE) and "
            "'llama' (SentencePiece)"
        )
    types = _list(metadata, "token_type", int)
    if len(types) != len(tokens):
        raise ValueError(f"{len(types)} token types for {len(tokens)} tokens")
    allowed = {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED} | (
        {BYTE} if kind == "llama" else set()
    )
    if strange := set(types) - allowed:
        raise ValueError(f"token types {sorted(strange)}; supported are {sorted(allowed)}")
    ids = _special_ids(metadata, tokens)
    parts = (_byte_level if kind == "gpt2" else _sentencepiece)(metadata, tokens, types)
    around = {name: bool(parts.pop(f"add_{name}")) for name in ("bos", "eos")}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, tokens, types),
        "normalizer": None,
        **parts,
        "post_processor": _template(around, ids, tokens),
    }
    return {
        "tokenizer.json": document,
        "tokenizer_config.json": _tokenizer_config(metadata, tokens, ids),
    }


def _special_ids(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, int]:
    llama = metadata.get(f"{KEY}model") == "llama"
    defaults = {name: i for name, i in _LLAMA_IDS.items() if llama and i < len(tokens)}
    names = ("bos", "eos", "unknown", "padding")
    found = {name: metadata.get(f"{KEY}{name}_token_id", defaults.get(name)) for name in names}
    ids = {name: index for name, index in found.items() if index is not None}
    for name, index in ids.items():
        if not isinstance(index, int) or not 0 <= index < len(tokens):
            raise ValueError(
                f"tokenizer.ggml.{name}_token_id is {show(index)}, beyond the vocabulary"
            )
    return ids


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = metadata.get(f"{KEY}{name}")
    if not isinstance(values, list) or set(map(type, values)) - {kind}:
        raise ValueError(f"{KEY}{name} is {show(values)}; a list of {kind.__name__} is needed")
    return values


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"{KEY}{name}", default)
    if not isinstance(value, bool):
        raise ValueError(f"{KEY}{name} is {show(value)}; true or false is needed")
    return value


def _refuse(metadata: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if _flag(metadata, name, False):
            raise ValueError(f"{KEY}{name} is true; supported is false")


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Json:
    pre = metadata.get(f"{KEY}pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise ValueError(f"tokenizer.ggml.pre is {show(pre)}; supported are {known}")
    _refuse(metadata, "add_space_prefix", "add_sep_token")
    parts = dict(PRE_TOKENIZERS[pre])
    merges = [merge.split(" ") for merge in _list(metadata, "merges", str)]
    known_tokens = set(tokens)
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= known_tokens:
            raise ValueError(
                f"merge {show(' '.join(merge))} does not join two tokens to a third one"
            )
    ignore_merges = parts.pop("ignore_merges", False)
    return parts | {
        "decoder": {**BYTE_LEVEL, "add_prefix_space": True},
        "model": _model(tokens, merges) | {"ignore_merges": ignore_merges},
        "add_bos": _flag(metadata, "add_bos_token", parts.pop("add_bos", False)),
        "add_eos": _flag(metadata, "add_eos_token", False),
    }


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> Json:
    """The layout of Llama 2's tokenizer.json.

    As in llama.cpp, the ▁ is put before every part of the text that begins it or follows a special
    token, also where a space stands already.
    """
    _refuse(metadata, "remove_extra_whitespaces", "add_sep_token")
    known = set(tokens)
    bytes_ = {f"<0x{byte:02X}>" for byte in range(256)}
    if lacking := bytes_ - known:
        raise ValueError(f"no token for the byte {min(lacking)}")
    for token, kind in zip(tokens, types, strict=True):
        if (kind == BYTE) != (token in bytes_):
            raise ValueError(f"token {show(token)} has the type {kind}; {BYTE} is for <0x..>")
        # Symbols begin as single characters: over one that is no token, nothing could be joined.
        if kind == NORMAL and (strange := set(token) - known):
            raise ValueError(f"token {show(token)} has {show(min(strange))}, which is no token")
    add_space = _flag(metadata, "add_space_prefix", True)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    normalizers = [{"type": "Prepend", "prepend": "▁"}, spaces] if add_space else [spaces]
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if add_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    merges = _merges(tokens, types, _list(metadata, "scores", float))
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _model(tokens, merges) | {"byte_fallback": True, "fuse_unk": True},
        "add_bos": _flag(metadata, "add_bos_token", True),
        "add_eos": _flag(metadata, "add_eos_token", False),
    }


def _merges(tokens: list[str], types: list[int], scores: list[float]) -> list[list[str]]:
    """Every way to make a token of two others, the best score first.

    SentencePiece joins those two neighbours that make the token of the best score. Tokens that
    stand for no text of their own (control, unknown, byte) are neither made nor used, so that
    typed text cannot become one. Of two ways to make one token, that with the longer left part
    goes first, as in transformers; llama.cpp takes what stands further left.
    """
    if len(scores) != len(tokens) or not all(map(math.isfinite, scores)):
        raise ValueError(f"{len(scores)} scores for {len(tokens)} tokens, or not all are numbers")
    if (longest := max(tokens, key=len)) and len(longest) > MAX_TOKEN:
        raise ValueError(f"the token {show(longest)} has more than {MAX_TOKEN} characters")
    kinds = (NORMAL, USER_DEFINED, UNUSED)
    ids = {token: i for i, token in enumerate(tokens) if types[i] in kinds}
    long = [i for token, i in ids.items() if len(token) > 1 and types[i] == NORMAL]
    if len(long) > 1 and len({scores[i] for i in long}) == 1:
        raise ValueError(f"all tokens have the score {scores[long[0]]}, which gives no order")
    made = []
    for token, i in ids.items():
        made += [
            (-scores[i], -cut, cut - len(token), [left, right])
            for cut in range(1, len(token))
            if (left := token[:cut]) in ids and (right := token[cut:]) in ids
        ]
    made.sort(key=itemgetter(0, 1, 2))
    return [pair for *_, pair in made]


def _model(tokens: list[str], merges: list[list[str]]) -> Json:
    return {
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
    }


def _added_tokens(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> list[Json]:
    phi3 = re.search("phi-?3", str(metadata.get("general.name", "")).lower())
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": bool(phi3) and token not in _PHI3_KEEPS_SPACE,
            "normalized": False,
            "special": kind != USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _template(around: Mapping[str, bool], ids: Mapping[str, int], tokens: list[str]) -> Json | None:
    """The post-processor that adds BOS and EOS."""
    if not any(around.values()):
        return None
    for name, wanted in around.items():
        if wanted and name not in ids:
            raise ValueError(f"add_{name}_token is true, but there is no {name}_token_id")
    special = {name: tokens[ids[name]] for name, wanted in around.items() if wanted}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    marks = {name: {"SpecialToken": {"id": t, "type_id": 0}} for name, t in special.items()}
    single = [mark for mark in (marks.get("bos"), text, marks.get("eos")) if mark]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *({**mark} for mark in single)],
        "special_tokens": {
            t: {"id": t, "ids": [ids[name]], "tokens": [t]} for name, t in special.items()
        },
    }


def _tokenizer_config(
    metadata: Mapping[str, Any], tokens: list[str], ids: Mapping[str, int]
) -> Json:
    architecture = metadata.get("general.architecture")
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{architecture}.context_length"),
    }
    for hf_name, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        if name in ids:
            config[f"{hf_name}_token"] = tokens[ids[name]]
    if template := metadata.get("tokenizer.chat_template"):
        if not isinstance(template, str):
            raise ValueError(f"tokenizer.chat_template is {show(template)}; a text is needed")
        config["chat_template"] = template
    return config
