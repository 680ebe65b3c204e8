"""Damage to the tensors of GGUF files: their table, what it says of each, the bytes."""

import math
import random
from pathlib import Path

from tests.fuzz.damage.values import flip, read, show
from tests.fuzz.gguf_format import TENSORS, UINT32, Document, Record, Value, decode, encode
from tests.fuzz.tables import WrongError

LARGE = [2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1]


def gguf_table(folder: Path, rng: random.Random) -> str:
    """Drop, double, rename, reshape, retype or swap whole tensors; the file stays well formed."""
    path, document = opened(folder)
    if document is None or len(document.tensors) < 2:
        return "no tensors any more"
    tensors = document.tensors
    place, other = rng.sample(range(len(tensors)), 2)
    name, record = tensors[place]
    what = rng.choice(["drop", "double", "rename", "reshape", "retype", "swap", "order", "layer"])
    if what == "drop":
        del tensors[place]
    elif what == "double":
        more = [name + b"x", name.replace(b".0.", b".2."), b"output.weight", b"rope_freqs.weight"]
        new = rng.choice([*more, b"blk.0.attn_q.bias", b"rope_factors_long.weight", name])
        tensors.append((new, Record(list(record.sizes), record.kind, 0, record.data)))
    elif what == "rename":
        wrong = [name.upper(), name.replace(b".weight", b""), b"", b"x", name.replace(b"_q", b"_k")]
        tensors[place] = rng.choice([*wrong, b"\xff" + name, tensors[other][0]]), record
    elif what == "reshape":
        sizes = record.sizes
        flat = [len(record.data) // 4]
        halves = [sizes[0] * 2, *[size // 2 for size in sizes[1:]]]
        record.sizes = rng.choice([sizes[::-1], flat, [*sizes, 1], [1, *sizes], halves])
    elif what == "retype":
        _retype(record, rng)
    elif what == "swap":
        tensors[place], tensors[other] = (name, tensors[other][1]), (tensors[other][0], record)
    elif what == "order":
        rng.shuffle(tensors)
    else:
        document.tensors = [(key.replace(b"blk.1.", b"blk.2."), value) for key, value in tensors]
    document.place()
    path.write_bytes(encode(document))
    return f"{what} of {show(name)} ({show(tensors[other % len(tensors)][0])})"


def gguf_record(folder: Path, rng: random.Random) -> str:
    """What the table says of one tensor, and the numbers at the start of the file."""
    path, document = opened(folder)
    if document is None or not document.tensors:
        return "no tensors any more"
    name, record = rng.choice(document.tensors)
    what = rng.choice(["sizes", "kind", "offset", "dimensions", "counts", "magic", "alignment"])
    if what == "sizes":
        sizes = [*LARGE, 0, 1, 7, 33]
        record.sizes[rng.randrange(len(record.sizes))] = rng.choice(sizes)
        if rng.random() < 0.2:
            record.sizes = rng.choice([[], [2**32, 2**32], [0] * 4, [1] * 9, [2**63, 2]])
    elif what == "kind":
        record.kind = rng.choice([*range(45), 2**31, 2**32 - 1])
    elif what == "offset":
        size = len(record.data)
        moves = [0, 1, 4, 8, 32, record.offset + 32, record.offset - 32, record.offset + 1, size]
        record.offset = rng.choice([*moves, *LARGE, 2**64 - 32]) & (2**64 - 1)
    elif what == "dimensions":
        record.dimensions = rng.choice([0, 1, 2, 3, 4, 5, 9, 2**31, 2**32 - 1])
    elif what == "counts":
        which = rng.choice(["tensors", "metadata"])
        true = len(document.tensors if which == "tensors" else document.metadata)
        document.counts[which] = rng.choice([0, 1, true - 1, true + 1, *LARGE])
    elif what == "magic":
        document.magic = rng.choice([b"GGUF", b"FUGG", b"GGML", b"gguf", b"\0\0\0\0", b"PK\3\4"])
        document.version = rng.choice([0, 1, 2, 4, 3 << 24, 2**32 - 1])
    else:
        value = rng.choice([0, 1, 4, 8, 16, 33, 48, 64, 2**12, 2**16, 2**31])
        document.metadata.append((b"general.alignment", Value(UINT32, value)))
        if rng.random() < 0.5:
            document.place()
    path.write_bytes(encode(document))
    return f"{what} of {show(name)}: {record.sizes} {record.kind} {record.offset} {document.counts}"


def gguf_bytes(folder: Path, rng: random.Random) -> str:
    """Bits of the header or of the values, a cut, bytes to spare."""
    path = folder / "model.gguf"
    data = bytearray(read(path))
    if len(data) < 64:
        return "no GGUF file any more"
    header = data.find(b"blk.") if rng.random() < 0.5 else len(data)
    how = rng.choice(["bits", "bits", "bits", "cut", "spare", "block", "values"])
    if how == "bits":
        places = [rng.randrange(max(header, 24)) for _ in range(rng.choice([1, 1, 2, 8, 64]))]
        return flip(path, data, places, rng)
    if how == "values":
        places = [len(data) - 1 - rng.randrange(len(data) // 4) for _ in range(rng.choice([1, 99]))]
        return flip(path, data, places, rng)
    if how == "block":
        place, length = rng.randrange(len(data)), rng.choice([1, 4, 8, 64, 4_096])
        data[place : place + length] = rng.choice([b"", b"\0" * length, b"\xff" * length])
    elif how == "cut":
        del data[rng.choice([0, 3, 4, 8, 24, len(data) - 1, rng.randrange(len(data))]) :]
    else:
        data += bytes(rng.choice([1, 32, 4_096]))
    path.write_bytes(bytes(data))
    return f"{how}: {len(data)} bytes"


def opened(folder: Path) -> tuple[Path, Document | None]:
    """The GGUF file of a folder, and what is in it where it is sound."""
    path = folder / "model.gguf"
    try:
        return path, decode(read(path))
    except (WrongError, ValueError, OverflowError):
        return path, None


def _retype(record: Record, rng: random.Random) -> None:
    """Another tensor type, with as many bytes as it needs."""
    record.kind = rng.choice(list(TENSORS))
    _, values, size = TENSORS[record.kind]
    length = math.prod(record.sizes) // values * size
    record.data = (record.data * 9)[:length]
