"""Damage to a model folder, drawn from a random generator: the same seed does the same damage.

Every function changes files in place and says in a few words what it did.
"""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Values that a JSON file can hold and no field expects.
HOSTILE: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    0.5,
    -0.0,
    2**31 - 1,
    2**31,
    2**63,
    10**30,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "8",
    "llama",
    "\x00",
    "\ud800",
    "🌶" * 100,
    [],
    [1],
    [None],
    [[[]]],
    ["a", "b"],
    {},
    {"a": 1},
    10**400,
    "x" * 100_000,
    list(range(5_000)),
    json.loads("[" * 400 + "1" + "]" * 400),
    {"rope_type": "yarn", "factor": 2},
]
CONFIG_KEYS = [
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "quantization_config",
    "partial_rotary_factor",
    "eos_token_id",
    "dtype",
]
ROPE_KEYS = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "truncate",
    "mscale",
    "partial_rotary_factor",
    "full_attention",
]
ROPE_TYPES = ["default", "linear", "dynamic", "yarn", "llama3", "longrope"]
TEMPLATES: list[Any] = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
    "{% set _ = messages.append(1) %}",
    "{% for i in range(999999999) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% set x = range(99999) | list %}{% for i in x %}{% for j in x if j < 0 %}{% endfor %}"
    "{% endfor %}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{% set x = 'x' * 99999 %}{{ x * 99999 }}",
    "{{ 1 / 0 }}",
    "{{ undefined.attribute }}",
    "{{ messages[7].content }}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now(7) }}",
    "{% include 'config.json' %}",
    "{% import '/etc/hostname' as x %}",
    "{% extends 'a' %}",
    "{% for %}",
    "{{",
    "{% if " + "(" * 5_000 + "1" + ")" * 5_000 + " %}{% endif %}",
    "{{ " + "-" * 20_000 + "1 }}",
    "{{ messages | tojson(indent=[]) }}",
    "<|im_start|>" * 50,
    "",
    "\ud800",
    b"\xff\xfe".decode("latin-1"),
    None,
    7,
    ["x"],
    [{"name": "default"}],
    [{"name": "default", "template": 3}],
    [{"name": ["default"], "template": "x"}],
    {"default": "x"},
]
PATTERNS = ["(", "[[:alpha:]", "(?P<x>a)(?P<x>b)", "\\p{Nope}", "", "(?R)", "(?1)(a)", "x*"]
PATTERNS += ["a{99999999999}", "a{99999999}", "((a{99}){99}){99}", "(?:a?){0,99999}", "$^", "(?=a)"]
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 538090408\n"


def mutate(folder: Path, rng: random.Random) -> str:
    """Damage a folder in one way, sometimes in two; say how."""
    kinds: list[tuple[Callable[[Path, random.Random], str], int]] = [
        (header_bits, 4),
        (header_entry, 6),
        (cut_weights, 3),
        (weight_bytes, 2),
        (length_prefix, 2),
        (config_value, 6),
        (rope_value, 4),
        (tokenizer_part, 5),
        (json_node, 5),
        (json_bytes, 3),
        (chat_template, 4),
        (weight_map, 3),
        (end_tokens, 1),
        (whole_file, 4),
    ]
    times = 2 if rng.random() < 0.15 else 1
    chosen = rng.choices([kind for kind, _ in kinds], [share for _, share in kinds], k=times)
    done = []
    for kind in chosen:
        try:
            done.append(f"{kind.__name__}: {kind(folder, rng)}")
        except (ArithmeticError, LookupError, TypeError, ValueError, struct.error):
            if not done:  # only what is damaged already may lack what a kind of damage needs
                raise
    return "; then ".join(done)


def header_bits(folder: Path, rng: random.Random) -> str:
    """Flip bits in the JSON header of a safetensors file."""
    path, data = _weights(folder, rng)
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8)
    places = [8 + rng.randrange(max(length, 1)) for _ in range(rng.choice([1, 1, 2, 8, 64]))]
    return _flip(path, data, places, rng)


def length_prefix(folder: Path, rng: random.Random) -> str:
    """Change the 8 bytes that give the length of the header."""
    path, data = _weights(folder, rng)
    length = rng.choice([0, 1, 2, 7, len(data), len(data) - 8, 25_000_001, 2**31, 2**63, 2**64 - 1])
    path.write_bytes(struct.pack("<Q", length) + bytes(data[8:]))
    return f"{path.name} says that its header has {length} bytes"


def header_entry(folder: Path, rng: random.Random) -> str:
    """Change what the header says of one tensor."""
    path, data = _weights(folder, rng)
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
        name = rng.choice([name for name in header if name != "__metadata__"])
        entry = header[name]
        begin, end = entry["data_offsets"]
        shape = entry["shape"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"{path.name} has no header left"
    what = rng.choice(
        ["dtype", "shape", "offsets", "key", "lose", "add", "rename", "meta", "twice"]
    )
    if what == "dtype":
        entry["dtype"] = rng.choice(["F16", "BF16", "F64", "I32", "BOOL", "F4", "F8_E4M3", 7, None])
    elif what == "shape":
        wrong = [shape[::-1], [*shape, 1], shape[:-1], [-n for n in shape], [2**62, 4], [0], []]
        wrong += [[n * 2 for n in shape], [float(n) for n in shape], ["8"], None, [2**64], [10**30]]
        entry["shape"] = rng.choice(wrong)
    elif what == "offsets":
        wrong = [[end, begin], [begin, end - 4], [begin + 4, end], [0, end - begin], [-8, end]]
        wrong += [[begin, 2**63], [begin], [], [begin, end, end], None, [0.0, 4.0], [2**64, 2**65]]
        entry["data_offsets"] = rng.choice(wrong)
    elif what == "key":
        key = rng.choice(list(entry))
        if rng.random() < 0.5:
            del entry[key]
        else:
            entry[key] = rng.choice(HOSTILE)
    elif what == "lose":
        del header[name]
    elif what == "add":
        header[rng.choice(["extra", "", "model.layers.9.mlp.up_proj.weight", "🌶"])] = entry
    elif what == "rename":
        header[rng.choice(["x", name.upper(), f"model.{name}", ""])] = header.pop(name)
    elif what == "meta":
        header["__metadata__"] = rng.choice([*HOSTILE, {"a": "b" * 1_000_000}])
    text = json.dumps(header)
    if what == "twice":
        text = text[:-1] + ", " + json.dumps({name: entry})[1:]
    encoded = text.encode("utf-8", "replace")
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(data[8 + length :]))
    return f"{what} of {name!r} in {path.name}: {_show(header.get(name))}"


def cut_weights(folder: Path, rng: random.Random) -> str:
    """Cut a safetensors file short, or add to its end."""
    path, data = _weights(folder, rng)
    length = min(int.from_bytes(data[:8], "little"), len(data))
    size = rng.choice(
        [0, 7, 8, length // 2, 8 + length, len(data) - 1, rng.randrange(len(data) + 1)]
    )
    if rng.random() < 0.2:
        path.write_bytes(bytes(data) + bytes(rng.choice([1, 8, 4_096])))
        return f"{path.name} has bytes to spare"
    path.write_bytes(bytes(data[: max(size, 0)]))
    return f"{path.name} has {size} of {len(data)} bytes"


def weight_bytes(folder: Path, rng: random.Random) -> str:
    """Change values: flipped bits, or NaN and infinity in one place."""
    path, data = _weights(folder, rng)
    start = 8 + min(int.from_bytes(data[:8], "little"), max(len(data) - 16, 0))
    if start + 8 > len(data):
        return f"{path.name} has no values left"
    if rng.random() < 0.5:
        places = [rng.randrange(start, len(data)) for _ in range(rng.choice([1, 8, 512]))]
        return _flip(path, data, places, rng)
    value = rng.choice([float("nan"), float("inf"), -float("inf"), 3e38])
    place = start + (rng.randrange(len(data) - start - 4) // 4) * 4
    data[place : place + 4] = struct.pack("<f", value)
    path.write_bytes(bytes(data))
    return f"{value} at byte {place} of {path.name}"


def config_value(folder: Path, rng: random.Random) -> str:
    """Give keys of config.json values that they must not have, or take them away."""
    path = folder / "config.json"
    config = _json(path)
    if not isinstance(config, dict):
        return "config.json is no object any more"
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        key = rng.choice([*CONFIG_KEYS, *config])
        if rng.random() < 0.15:
            config.pop(key, None)
            done.append(f"no {key}")
            continue
        old = config.get(key)
        near = (
            [old + 1, old - 1, old * 2, -old, float(min(old, 10**9)), [old]]
            if isinstance(old, int | float) and not isinstance(old, bool)
            else []
        )
        config[key] = rng.choice([*HOSTILE, *near])
        done.append(f"{key} = {_show(config[key])}")
    _write(path, config, rng)
    return ", ".join(done)


def rope_value(folder: Path, rng: random.Random) -> str:
    """A hostile entry in rope_scaling or rope_parameters, old or new spelling."""
    path = folder / "config.json"
    config = _json(path)
    if not isinstance(config, dict):
        return "config.json is no object any more"
    where = rng.choice(["rope_scaling", "rope_parameters"])
    base = {"rope_type": rng.choice(ROPE_TYPES), "factor": 2.0, "rope_theta": 1e4}
    base["original_max_position_embeddings"] = 32
    rope = config.get(where) if rng.random() < 0.4 else base
    rope = dict(rope) if isinstance(rope, dict) else base
    for _ in range(rng.choice([1, 1, 2])):
        key = rng.choice(ROPE_KEYS)
        rope[key] = rng.choice([*HOSTILE, 1.0000001, 1e-9, 1e300, 10**18, *ROPE_TYPES])
    config[where] = {"full_attention": rope} if rng.random() < 0.1 else rope
    _write(path, config, rng)
    return f"{where} = {_show(config[where])}"


def tokenizer_part(folder: Path, rng: random.Random) -> str:
    """Break merges, vocabulary, added tokens, or the cut into pieces."""
    path = folder / "tokenizer.json"
    document = _json(path)
    try:
        model = document["model"]
        merges, vocab, added = model["merges"], model["vocab"], document["added_tokens"]
        token = rng.choice(list(vocab))
        place = rng.randrange(len(merges))
        what = rng.choice(["merge", "order", "id", "lose", "added", "pattern", "part", "model"])
        if what == "merge":
            merges[place] = rng.choice([*HOSTILE, ["a"], "a", "a b c", ["nope", "nope"], [1, 2]])
        elif what == "order":
            rng.shuffle(merges) if rng.random() < 0.5 else merges.reverse()
        elif what == "id":
            vocab[token] = rng.choice([*HOSTILE, 5, 299, 300, 10**6])
        elif what == "lose":
            del vocab[token]
        elif what == "added":
            entry = rng.choice(added)
            key = rng.choice([*entry, "content", "id"])
            entry[key] = rng.choice([*HOSTILE, token, 299, 300, 10**9])
        elif what == "pattern":
            split = document["pre_tokenizer"]["pretokenizers"][0]
            split["pattern"] = {rng.choice(["Regex", "String"]): rng.choice([*PATTERNS, *HOSTILE])}
        elif what == "part":
            part = rng.choice(["normalizer", "pre_tokenizer", "post_processor", "decoder", "model"])
            kind = rng.choice(["NFC", "Metaspace", "BPE", "ByteLevel", "Sequence", "Unigram", 7])
            document[part] = rng.choice([*HOSTILE, {"type": kind}, {"type": kind, "vocab": {}}])
        else:
            keys = ["unk_token", "dropout", "byte_fallback", "ignore_merges", "fuse_unk", "type"]
            model[rng.choice(keys)] = rng.choice([*HOSTILE, token])
    except (LookupError, TypeError, AttributeError, ValueError):
        return "tokenizer.json has lost its parts"
    _write(path, document, rng)
    return f"{what} at {token!r} / merge {place}"


def json_node(folder: Path, rng: random.Random) -> str:
    """Replace or remove any node of any JSON file."""
    path = rng.choice(sorted(folder.glob("*.json")) or [folder / "config.json"])
    document = _json(path)
    parents: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict | list):
            continue
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        # Of a long list or object a few entries, or the vocabulary would always be hit.
        for key in keys if len(keys) <= 30 else rng.sample(keys, 5):
            parents.append((node, key))
            waiting.append(node[key])
    if not parents:
        _write(path, rng.choice(HOSTILE), rng)
        return f"{path.name} is another document"
    node, key = rng.choice(parents)
    if rng.random() < 0.25:
        del node[key]
        what = "gone"
    else:
        node[key] = rng.choice(HOSTILE)
        what = _show(node[key])
    _write(path, document, rng)
    return f"{path.name}: {key!r} is {what}"


def json_bytes(folder: Path, rng: random.Random) -> str:
    """Damage a JSON file as bytes: cut, bits, encodings, nesting, numbers."""
    path = rng.choice(sorted(folder.glob("*.json")) or [folder / "config.json"])
    data = bytearray(_read(path))
    how = rng.choice(["cut", "bits", "bom", "utf16", "bytes", "deep", "digits", "nul", "double"])
    if how == "bits" and data:
        return _flip(path, data, [rng.randrange(len(data)) for _ in range(rng.choice([1, 3]))], rng)
    changed: dict[str, bytes | bytearray] = {
        "cut": data[: rng.randrange(len(data) + 1)],
        "bom": b"\xef\xbb\xbf" + data,
        "utf16": data.decode("utf-8", "replace").encode("utf-16"),
        "bytes": data.replace(b'"', b'"\xff\xc0', 1),
        "deep": b"[" * 100_000 if rng.random() < 0.5 else b'{"a":' * 100_000,
        "digits": data.replace(b": ", b": " + b"9" * 5_000, 1),
        "nul": data + b"\x00",
        "double": data + data,
    }
    path.write_bytes(changed.get(how, data))
    return f"{path.name}: {how}"


def chat_template(folder: Path, rng: random.Random) -> str:
    """A template that loops, reaches for attributes, or is none."""
    template = rng.choice([*TEMPLATES, *TEMPLATES, *HOSTILE])
    jinja = folder / "chat_template.jinja"
    if jinja.is_file() and rng.random() < 0.7:
        jinja.write_text(str(template), encoding="utf-8", errors="replace")
        return f"{jinja.name} = {_show(template)}"
    jinja.unlink(missing_ok=True) if not jinja.is_dir() else None
    path = folder / "tokenizer_config.json"
    config = _json(path)
    config = config if isinstance(config, dict) else {}
    config["chat_template"] = template
    if rng.random() < 0.2:
        key = rng.choice(["bos_token", "eos_token", "pad_token"])
        config[key] = rng.choice([*HOSTILE, {"content": 7}])
    _write(path, config, rng)
    return f"chat_template = {_show(template)}"


def weight_map(folder: Path, rng: random.Random) -> str:
    """Send a tensor of the index to a place where it is not."""
    path = folder / "model.safetensors.index.json"
    index = _json(path)
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or len(found) < 2:
        one = "model.safetensors"
        index = {
            "weight_map": {"model.norm.weight": rng.choice([one, "no.safetensors", f"../{one}"])}
        }
        _write(path, index, rng)
        return f"an index appears: {_show(index)}"
    name, other = rng.sample(sorted(found), 2)
    places = ["../secret.safetensors", "/etc/passwd", "model-00003-of-00002.safetensors", "..", "."]
    places += ["x/y.safetensors", "a" * 300 + ".safetensors", "C:\\x.safetensors", "config.json"]
    places += ["\x00.safetensors", ".safetensors", found[other]]
    found[name] = rng.choice([*places, *places, *HOSTILE])
    if rng.random() < 0.2:
        del found[other]
    _write(path, index, rng)
    return f"{name} in {_show(found.get(name))}"


def end_tokens(folder: Path, rng: random.Random) -> str:
    """A hostile eos_token_id in generation_config.json."""
    path = folder / "generation_config.json"
    value = rng.choice([*HOSTILE, [True], [0, "1"], [-1], 299, 300, [10**12]])
    _write(path, {"eos_token_id": value}, rng)
    return f"eos_token_id = {_show(value)}"


def whole_file(folder: Path, rng: random.Random) -> str:
    """Take a file away, or put something else in its place."""
    path = rng.choice(sorted(folder.iterdir()) or [folder / "config.json"])
    how = rng.choice(
        ["gone", "empty", "folder", "pointer", "noise", "html", "loop", "link", "swap"]
    )
    other = rng.choice(sorted(folder.iterdir()) or [path])
    data = _read(other)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "link":
        path.symlink_to("nowhere")
    elif how != "gone":
        html = b"<!DOCTYPE html><html>404</html>"
        contents = {"empty": b"", "pointer": LFS_POINTER, "html": html, "swap": data}
        path.write_bytes(contents.get(how, rng.randbytes(200)))
    return f"{path.name}: {how}" + (f" with {other.name}" if how == "swap" else "")


def _weights(folder: Path, rng: random.Random) -> tuple[Path, bytearray]:
    path = rng.choice(sorted(folder.glob("*.safetensors")) or [folder / "model.safetensors"])
    return path, bytearray(_read(path))


def _flip(path: Path, data: bytearray, places: list[int], rng: random.Random) -> str:
    for place in places:
        if place < len(data):
            data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))
    return f"{len(places)} bits of {path.name} flipped"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        if path.is_symlink():
            path.unlink()
        elif path.is_dir():
            os.rmdir(path)
        return b""


def _json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError):
        return None


def _write(path: Path, document: Any, rng: random.Random) -> None:
    _read(path)  # makes room where a folder or a broken link stands
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def _show(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 90 else f"{text[:90]}… ({len(text)} characters)"
