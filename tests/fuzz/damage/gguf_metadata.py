"""Damage to the metadata of GGUF files: values, types, lengths, token lists, the chat template."""

import random
import struct
from pathlib import Path
from typing import Any

from tests.fuzz.damage.gguf_tensors import LARGE, opened
from tests.fuzz.damage.templates import changed
from tests.fuzz.damage.values import near, show
from tests.fuzz.gguf_format import (
    ARRAY,
    BOOL,
    FLOAT32,
    STRING,
    UINT32,
    Document,
    Value,
    encode,
)

NUMBERS: list[Any] = [0, 1, 2, 3, -1, 255, *LARGE, 0.5, float("nan"), float("inf"), 1e-30, 1e30]
TEXTS = [
    b"",
    b"llama",
    b"gpt2",
    b"bert",
    b"\xff\xfe",
    b"\0",
    b"x" * 70_000,
    "▁".encode() * 9,
    b"none",
]
TEXTS += [b"default", b"qwen2", b"smollm", b"gpt-2", b"yarn", b"linear", b"gemma3", b"mistral"]
# Keys that change the result in llama.cpp, known to minillm or not.
ENDINGS = ["rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "expert_count"]
ENDINGS += ["attention.clamp_kqv", "logit_scale", "attention.causal", "final_logit_softcapping"]
ENDINGS += [
    "attention.sliding_window",
    "rope.scaling.original_context_length",
    "use_parallel_residual",
]
ENDINGS += ["attention.sliding_window_pattern", "rope.freq_base_swa", "leading_dense_block_count"]
ENDINGS += [
    "attention.layer_norm_epsilon",
    "expert_weights_scale",
    "tensor_data_layout",
    "vocab_size",
]
PLAIN = ["tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.pre"]
PLAIN += ["tokenizer.ggml.add_space_prefix", "tokenizer.ggml.unknown_token_id", "split.count"]
PLAIN += ["tokenizer.ggml.padding_token_id", "tokenizer.ggml.remove_extra_whitespaces", "split.no"]
PLAIN += ["general.alignment", "general.file_type", "general.quantization_version", "general.type"]
PLAIN += ["tokenizer.ggml.precompiled_charsmap", "tokenizer.huggingface.json", "", "\x00", "llama."]


def gguf_value(folder: Path, rng: random.Random) -> str:
    """Another value, type, length or name of a metadata entry; one too many, one too few."""
    path, document = opened(folder)
    if document is None or not document.metadata:
        return "no GGUF file any more"
    place = rng.randrange(len(document.metadata))
    key, value = document.metadata[place]
    what = rng.choice(
        [
            "value",
            "value",
            "value",
            "type",
            "element",
            "count",
            "drop",
            "twice",
            "rename",
            "add",
            "add",
        ]
    )
    if what == "value":
        value.value = _other(value, rng)
    elif what == "type":
        value.kind = rng.choice([*range(14), 255, 2**31, 2**32 - 1])
        if value.kind == ARRAY and not isinstance(value.value, list):
            value.element, value.value = STRING, [b"a", b"b"]
        elif value.kind == STRING and not isinstance(value.value, bytes):
            value.value = b"text"
    elif what == "element" and value.kind == ARRAY:
        value.element = rng.choice([*range(14), 255, 2**31])
        nested = struct.pack("<IQ", ARRAY, 1) * rng.choice([1, 2_000]) + struct.pack("<IQ", 0, 0)
        value.value = [nested] if value.element == ARRAY else [1] * rng.choice([0, 1, 300])
        if value.element == STRING:
            value.value = [b"a"] * 300
    elif what == "count":
        size = len(value.value) if isinstance(value.value, bytes | list) else 1
        value.count = rng.choice([0, 1, size - 1, size + 1, *LARGE]) & (2**64 - 1)
    elif what == "drop":
        del document.metadata[place]
    elif what == "twice":
        document.metadata.append((key, value))
    elif what == "rename":
        document.metadata[place] = (
            rng.choice([key.upper(), key + b"x", b"", b"\xff", b"k" * 70_000]),
            value,
        )
    else:
        key, value = _extra(document, rng)
        document.metadata = [pair for pair in document.metadata if pair[0] != key]
        document.metadata.append((key, value))
    path.write_bytes(encode(document))
    return f"{what} of {show(key)}: {show(value.value)}"


def gguf_tokens(folder: Path, rng: random.Random) -> str:
    """Token lists that are short, doubled, of another type, out of order or out of range."""
    path, document = opened(folder)
    lists = [
        (key, value)
        for key, value in (document.metadata if document else [])
        if value.kind == ARRAY and key.startswith(b"tokenizer.") and value.value
    ]
    if document is None or not lists:
        return "no token lists any more"
    key, value = rng.choice(lists)
    entries = value.value
    place, other = rng.randrange(len(entries)), rng.randrange(len(entries))
    what = rng.choice(
        ["drop", "double", "swap", "other", "other", "empty", "more", "shuffle", "id"]
    )
    if what == "drop":
        del entries[place]
    elif what == "double":
        entries[place] = entries[other]
    elif what == "swap":
        entries[place], entries[other] = entries[other], entries[place]
    elif what == "other":
        texts = [
            *TEXTS,
            b"a",
            b"a b c",
            b"ab",
            b"<0x41>",
            b"<0xZZ>",
            "Ġx Ġx".encode(),
            b" ",
            b"t  h",
        ]
        entries[place] = rng.choice(texts if value.element == STRING else NUMBERS[:14])
        if value.element == FLOAT32:
            entries[place] = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30, -1e30])
        elif value.element != STRING:
            entries[place] = rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 99, 2**31 - 1])
    elif what == "empty":
        entries.clear()
    elif what == "more":
        entries.append(entries[place])
    elif what == "shuffle":
        rng.shuffle(entries)
    else:
        ids = [pair for pair in document.metadata if pair[0].endswith(b"_token_id")]
        key, number = rng.choice(ids)
        number.value = rng.choice([0, 1, 2, len(entries) - 1, len(entries), 2**31, 2**32 - 1])
    path.write_bytes(encode(document))
    return f"{what} of {show(key)} at {place}"


def gguf_template(folder: Path, rng: random.Random) -> str:
    """Another chat template."""
    path, document = opened(folder)
    if document is None:
        return "no GGUF file any more"
    for key, value in document.metadata:
        if key == b"tokenizer.chat_template" and value.kind == STRING:
            new = str(changed(value.value.decode("utf-8", "replace"), rng))
            value.value = new.encode("utf-8", "surrogatepass")
            path.write_bytes(encode(document))
            return f"template = {show(new)}"
    return "no template any more"


def _other(value: Value, rng: random.Random) -> Any:
    """Another value of the same type."""
    if value.kind == STRING:
        return rng.choice([*TEXTS, value.value + b"x", value.value.upper()])
    if value.kind == ARRAY:
        return rng.choice([[], value.value[:-1], value.value * 2, value.value[::-1]])
    if value.kind == BOOL:
        return rng.choice([not value.value, not value.value, 7])
    likely = [other for other in near(value.value) if isinstance(other, int | float)]
    found = rng.choice([*NUMBERS, *likely, *likely, *likely])
    return float(found) if value.kind == FLOAT32 else found


def _extra(document: Document, rng: random.Random) -> tuple[bytes, Value]:
    """An entry that was not there: of the architecture, or of all files."""
    architecture = (
        dict(document.metadata).get(b"general.architecture", Value(STRING, b"llama")).value
    )
    key = rng.choice(PLAIN).encode()
    if rng.random() < 0.5:
        key = architecture[:20] + b"." + rng.choice(ENDINGS).encode()
    return key, rng.choice(
        [
            Value(UINT32, rng.choice([0, 1, 2, 5, 9, 64, 2**31])),
            Value(FLOAT32, rng.choice([0.0, 1.0, 2.0, 0.5, float("nan")])),
            Value(BOOL, rng.random() < 0.5),
            Value(STRING, rng.choice(TEXTS)),
            Value(ARRAY, [1, 2], UINT32),
            Value(ARRAY, [b"a", b"b"], STRING),
            Value(ARRAY, [True, False], BOOL),
        ]
    )
