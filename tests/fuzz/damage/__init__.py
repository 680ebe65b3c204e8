"""Damage to a model folder, drawn from a random generator: the same seed does the same damage.

Every kind of damage is a function of the folder and the generator; it changes files in place and
says in a few words what it did.
"""

import random
import struct
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.damage.config import config_value, end_tokens, other_family, rope_value
from tests.fuzz.damage.files import json_bytes, json_node, whole_file
from tests.fuzz.damage.gguf_metadata import gguf_template, gguf_tokens, gguf_value
from tests.fuzz.damage.gguf_tensors import gguf_bytes, gguf_record, gguf_table
from tests.fuzz.damage.packed import packed_head, packed_layer, zero_points
from tests.fuzz.damage.packing import packing_value
from tests.fuzz.damage.safetensors import (
    cut_weights,
    header_bits,
    header_entry,
    length_prefix,
    weight_bytes,
    weight_map,
    weight_table,
)
from tests.fuzz.damage.templates import chat_template
from tests.fuzz.damage.tokenizer import tokenizer_part, tokenizer_settings
from tests.fuzz.damage.values import read_json

Kind = Callable[[Path, random.Random], str]

# Kinds of damage with their shares.
FOLDER: dict[Kind, int] = {
    header_bits: 4,
    header_entry: 6,
    weight_table: 8,
    cut_weights: 2,
    weight_bytes: 2,
    length_prefix: 1,
    weight_map: 3,
    config_value: 10,
    rope_value: 6,
    other_family: 4,
    end_tokens: 1,
    tokenizer_part: 9,
    tokenizer_settings: 2,
    chat_template: 10,
    json_node: 5,
    json_bytes: 3,
    whole_file: 4,
}

# Of folders with packed weights, half the damage is to these and to what is said of them.
PACKED = FOLDER | {packing_value: 35, packed_layer: 45, packed_head: 3, zero_points: 8}

GGUF: dict[Kind, int] = {
    gguf_value: 10,
    gguf_tokens: 6,
    gguf_template: 2,
    gguf_table: 7,
    gguf_record: 8,
    gguf_bytes: 5,
}


def mutate(folder: Path, rng: random.Random) -> tuple[list[str], str]:
    """Damage a model in one way, sometimes in two: the names of the kinds, and what they did."""
    kinds = FOLDER
    if (folder / "model.gguf").exists():
        kinds = GGUF
    elif "quantization_config" in read_json(folder / "config.json"):
        kinds = PACKED
    times = 2 if rng.random() < 0.15 else 1
    names, done = [], []
    for kind in rng.choices(list(kinds), list(kinds.values()), k=times):
        try:
            done.append(f"{kind.__name__}: {kind(folder, rng)}")
            names.append(kind.__name__)
        except (ArithmeticError, LookupError, TypeError, ValueError, struct.error, OSError):
            if not done:  # only what is damaged already may lack what a kind of damage needs
                raise
    return names, "; then ".join(done)
