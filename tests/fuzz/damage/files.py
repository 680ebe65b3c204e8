"""Damage to any file of a folder: a node of a JSON document, its bytes, the whole file."""

import random
import shutil
from pathlib import Path
from typing import Any

from tests.fuzz.damage.values import HOSTILE, flip, near, read, read_json, show, write_json

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 538090408\n"


def json_node(folder: Path, rng: random.Random) -> str:
    """Replace or remove any node of any JSON file."""
    path = rng.choice(sorted(folder.glob("*.json")) or [folder / "config.json"])
    document = read_json(path)
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
        write_json(path, rng.choice(HOSTILE), rng)
        return f"{path.name} is another document"
    node, key = rng.choice(parents)
    if rng.random() < 0.25:
        del node[key]
        what = "gone"
    else:
        likely = near(node[key])
        node[key] = rng.choice(likely if likely and rng.random() < 0.5 else HOSTILE)
        what = show(node[key])
    write_json(path, document, rng)
    return f"{path.name}: {key!r} is {what}"


def json_bytes(folder: Path, rng: random.Random) -> str:
    """Damage a JSON file as bytes: cut, bits, encodings, nesting, numbers."""
    path = rng.choice(sorted(folder.glob("*.json")) or [folder / "config.json"])
    data = bytearray(read(path))
    how = rng.choice(["cut", "bits", "bom", "utf16", "bytes", "deep", "digits", "nul", "double"])
    if how == "bits" and data:
        return flip(path, data, [rng.randrange(len(data)) for _ in range(rng.choice([1, 3]))], rng)
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


def whole_file(folder: Path, rng: random.Random) -> str:
    """Take a file away, or put something else in its place."""
    path = rng.choice(sorted(folder.iterdir()) or [folder / "config.json"])
    how = rng.choice(
        ["gone", "empty", "folder", "pointer", "noise", "html", "loop", "link", "swap"]
    )
    other = rng.choice(sorted(folder.iterdir()) or [path])
    data = read(other)
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
