"""Damage to tokenizer.json and tokenizer_config.json, byte-level and SentencePiece-style."""

import random
from pathlib import Path
from typing import Any

from tests.fuzz.damage.values import HOSTILE, near, read_json, show, write_json

PATTERNS = ["(", "[[:alpha:]", "(?P<x>a)(?P<x>b)", "\\p{Nope}", "", "(?R)", "(?1)(a)", "x*"]
PATTERNS += ["a{99999999999}", "a{99999999}", "((a{99}){99}){99}", "(?:a?){0,99999}", "$^", "(?=a)"]
PATTERNS += ["(a|a)*b", "(a+)+$", "(\\w+\\s?)*!", "[^\\S\\n]", "(?i:HELLO)", "\\d{1,3}", "(?<=h)e"]
COMPONENTS = ["normalizer", "pre_tokenizer", "post_processor", "decoder"]
# Whole components, right ones and wrong ones.
PARTS: list[Any] = [
    {"type": "NFC"},
    {"type": "NFKC"},
    {"type": "Lowercase"},
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Prepend", "prepend": ""},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "x" * 1_000},
    {"type": "Replace", "pattern": {"String": ""}, "content": "▁"},
    {"type": "Sequence", "normalizers": []},
    {"type": "Sequence", "pretokenizers": []},
    {"type": "Sequence", "decoders": []},
    {"type": "Sequence", "processors": []},
    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
    {"type": "Metaspace", "replacement": "▁▁", "prepend_scheme": "always", "split": True},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "ByteLevel"},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Digits", "individual_digits": True},
    {"type": "Whitespace"},
    {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]},
    {"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2]},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    {"type": "Unknown"},
    {"type": 7},
    {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A"}}],
        "pair": [],
        "special_tokens": {"x": {"id": "x", "ids": [10**6], "tokens": ["x"]}},
    },
]


def tokenizer_part(folder: Path, rng: random.Random) -> str:
    """Break merges, vocabulary, added tokens, components, or the flags of the model."""
    path = folder / "tokenizer.json"
    document = read_json(path)
    try:
        model = document["model"]
        merges, vocab, added = model["merges"], model["vocab"], document["added_tokens"]
        token, place = rng.choice(list(vocab)), rng.randrange(len(merges))
        what = rng.choice(
            ["merge", "order", "id", "lose", "added", "pattern", "part", "inner", "model"]
        )
        if what == "merge":
            wrong = [["a"], "a", "a b c", ["nope", "nope"], [1, 2], merges[0], merges[-1]]
            merges[place] = rng.choice([*HOSTILE, *wrong, *wrong])
        elif what == "order":
            rng.shuffle(merges) if rng.random() < 0.5 else merges.reverse()
        elif what == "id":
            other = rng.choice(list(vocab))
            wrong = [vocab[other], 5, 299, 300, 10**6]
            if rng.random() < 0.3:
                vocab[other] = vocab[token]
            vocab[token] = rng.choice([*HOSTILE, *wrong, *wrong])
        elif what == "lose":
            del vocab[token]
        elif what == "added":
            _added(added, token, rng)
        elif what == "pattern":
            split = _steps(document)[0]
            pattern = rng.choice([*PATTERNS, *PATTERNS, *HOSTILE])
            split["pattern"] = {rng.choice(["Regex", "String"]): pattern}
        elif what == "part":
            part = rng.choice(COMPONENTS)
            document[part] = rng.choice([*HOSTILE, *PARTS, *PARTS])
        elif what == "inner":
            step = rng.choice(_steps(document))
            key = rng.choice([*step, "behavior", "invert", "add_prefix_space", "use_regex"])
            step[key] = rng.choice([*HOSTILE, *near(step.get(key)), True, False, "Removed"])
        else:
            keys = ["unk_token", "dropout", "byte_fallback", "ignore_merges", "fuse_unk", "type"]
            keys += ["continuing_subword_prefix", "end_of_word_suffix"]
            key = rng.choice(keys)
            model[key] = rng.choice([*HOSTILE, token, *near(model.get(key)), 0.5, "##"])
    except (LookupError, TypeError, AttributeError, ValueError):
        return "tokenizer.json has lost its parts"
    write_json(path, document, rng)
    return f"{what} at {token!r} / merge {place}"


def tokenizer_settings(folder: Path, rng: random.Random) -> str:
    """Other values for the keys of tokenizer_config.json that change ids or prompts."""
    path = folder / "tokenizer_config.json"
    config = read_json(path)
    config = config if isinstance(config, dict) else {}
    keys = ["bos_token", "eos_token", "pad_token", "unk_token", "add_bos_token", "add_eos_token"]
    keys += ["added_tokens_decoder", "tokenizer_class", "add_prefix_space", "legacy"]
    key = rng.choice([*keys, *config])
    likely = ["<|im_start|>", {"content": "<|im_end|>"}, {"content": 7}, True, False]
    config[key] = rng.choice([*HOSTILE, *likely, *likely])
    write_json(path, config, rng)
    return f"{key} = {show(config[key])}"


def _added(added: list[Any], token: str, rng: random.Random) -> None:
    """Another entry of added_tokens, or another value in one."""
    if rng.random() < 0.3:
        flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
        entry = {"id": rng.choice([5, 298, 299, 300, 10**9]), "content": token}
        added.append(entry | {flag: rng.random() < 0.5 for flag in flags})
        return
    entry = rng.choice(added)
    key = rng.choice([*entry, "content", "id"])
    likely = [*near(entry.get(key)), token, 299, 300, 10**9, " x ", "e"]
    entry[key] = rng.choice([*HOSTILE, *likely, *likely])


def _steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The members of all components."""
    found = []
    for part in COMPONENTS:
        spec = document.get(part)
        if isinstance(spec, dict):
            lists = [value for value in spec.values() if isinstance(value, list)]
            found += [*(lists[0] if spec.get("type") == "Sequence" and lists else [spec])]
    return sorted(found, key=lambda step: "pattern" not in step)
