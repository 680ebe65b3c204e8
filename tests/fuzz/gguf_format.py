"""GGUF files by the letter of the format: taken apart strictly, written with any fault.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.tables import Stored, WrongError

# Value types: the format of struct, by number.
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
# Tensor types: name, values per block, bytes per block. Those that the bases use, and integers.
TENSORS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20)}
TENSORS |= {6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 28: ("F64", 1, 8)}
TENSORS |= {
    30: ("BF16", 1, 2),
    10: ("Q2_K", 256, 84),
    20: ("IQ4_NL", 32, 18),
    39: ("MXFP4", 32, 17),
}


@dataclass(slots=True)
class Value:
    """A metadata value: its type, that of its elements where it is an array, and what it is.

    Strings are bytes. count: what an array or string says of its length, where that is a lie.
    """

    kind: int
    value: Any
    element: int = UINT32
    count: int | None = None


@dataclass(slots=True)
class Record:
    """A tensor: sizes (the contiguous axis first), type and offset as written, its bytes."""

    sizes: list[int]
    kind: int
    offset: int
    data: bytes
    dimensions: int | None = None


@dataclass(slots=True)
class Document:
    """A GGUF file. metadata and tensors are lists, so that a name may stand there twice.

    counts: what the header says of their numbers, where that is a lie.
    """

    metadata: list[tuple[bytes, Value]]
    tensors: list[tuple[bytes, Record]]
    magic: bytes = b"GGUF"
    version: int = 3
    counts: dict[str, int] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Metadata as Python's values."""
        return {key.decode(): _python(value) for key, value in self.metadata}

    @property
    def alignment(self) -> int:
        """Of the tensors, in bytes."""
        found = dict(self.metadata).get(b"general.alignment", Value(UINT32, 32)).value
        return found if isinstance(found, int) and 0 < found <= 2**20 else 32

    def place(self) -> None:
        """Give the tensors the offsets that follow from their bytes."""
        end = 0
        for _, record in self.tensors:
            record.offset = end
            end += -(-len(record.data) // self.alignment) * self.alignment


def _python(value: Value) -> Any:
    if value.kind == ARRAY and value.element == STRING:
        return [text.decode() for text in value.value]
    return value.value.decode() if value.kind == STRING else value.value


def encode(document: Document) -> bytes:
    """The file, with each tensor where its offset says."""
    counts = {"tensors": len(document.tensors), "metadata": len(document.metadata)}
    counts |= document.counts
    out = bytearray(document.magic + struct.pack("<I", document.version & 0xFFFFFFFF))
    out += _u64(counts["tensors"]) + _u64(counts["metadata"])
    for key, value in document.metadata:
        out += _text(key) + struct.pack("<I", value.kind & 0xFFFFFFFF) + _payload(value)
    for name, record in document.tensors:
        number = len(record.sizes) if record.dimensions is None else record.dimensions
        out += _text(name) + struct.pack("<I", number)
        for size in record.sizes:
            out += _u64(size)
        out += struct.pack("<I", record.kind) + _u64(record.offset)
    alignment = document.alignment
    out += bytes(-len(out) % alignment)
    start = len(out)
    for _, record in document.tensors:
        if record.offset < 2**24:
            out += bytes(max(start + record.offset - len(out), 0))
            out[start + record.offset : start + record.offset + len(record.data)] = record.data
    return bytes(out + bytes(-len(out) % alignment))


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number & (2**64 - 1))


def _text(text: bytes, length: int | None = None) -> bytes:
    return _u64(len(text) if length is None else length) + text


def _payload(value: Value) -> bytes:
    if value.kind == STRING:
        return _text(value.value, value.count)
    if value.kind != ARRAY:
        return _number(value.kind, value.value)
    count = len(value.value) if value.count is None else value.count
    out = struct.pack("<I", value.element & 0xFFFFFFFF) + _u64(count)
    if value.element == STRING:
        return out + b"".join(_text(text) for text in value.value)
    if value.element == ARRAY:
        return out + b"".join(value.value)
    return out + b"".join(_number(value.element, number) for number in value.value)


def _number(kind: int, value: Any) -> bytes:
    try:
        return struct.pack(f"<{NUMBERS.get(kind, 'I')}", value)
    except (struct.error, OverflowError, TypeError):
        wide = value if isinstance(value, int) else 0
        return struct.pack("<q", wide % 2**63)[: struct.calcsize(f"<{NUMBERS.get(kind, 'I')}")]


def decode(content: bytes) -> Document:
    """Take a file apart; `WrongError` where it breaks the format."""
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if size > len(content) - at:
            raise WrongError(f"{size} bytes at {at} are beyond the end of the file")
        at += size
        return content[at - size : at]

    def number(code: str) -> Any:
        if code == "?" and content[at : at + 1] not in (b"\0", b"\1"):
            raise WrongError("a truth value that is neither 0 nor 1")
        return struct.unpack(f"<{code}", take(struct.calcsize(f"<{code}")))[0]

    def text() -> bytes:
        found = take(number("Q"))
        try:
            found.decode()
        except UnicodeDecodeError as error:
            raise WrongError(f"{found[:40]!r} is not UTF-8") from error
        return found

    def scalar(kind: int) -> Any:
        if kind == STRING:
            return text()
        if kind not in NUMBERS:
            raise WrongError(f"value type {kind}")
        return number(NUMBERS[kind])

    def value() -> Value:
        kind = number("I")
        if kind != ARRAY:
            return Value(kind, scalar(kind))
        element = number("I")
        return Value(ARRAY, [scalar(element) for _ in range(number("Q"))], element)

    magic, version = take(4), number("I")
    if magic != b"GGUF" or version not in (2, 3):
        raise WrongError(f"{magic!r} {version} is no version of GGUF")
    num_tensors, num_values = number("Q"), number("Q")
    metadata = [(text(), value()) for _ in range(num_values)]
    tensors = []
    for _ in range(num_tensors):
        name = text()
        sizes = [number("Q") for _ in range(number("I"))]
        tensors.append((name, Record(sizes, number("I"), number("Q"), b"")))
    for pairs in (metadata, tensors):
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise WrongError("a name stands there twice")
    document = Document(metadata, tensors, version=version)
    start = at + -at % document.alignment
    expected = 0
    for name, record in tensors:
        if record.kind not in TENSORS:
            raise WrongError(f"{name!r} has the type {record.kind}")
        _, values, size = TENSORS[record.kind]
        if not record.sizes or min(record.sizes) < 1 or record.sizes[0] % values:
            raise WrongError(f"{name!r} has the sizes {record.sizes}")
        length = math.prod(record.sizes) // values * size
        if record.offset != expected or start + record.offset + length > len(content):
            raise WrongError(f"{name!r} is at {record.offset}, {expected} is next")
        record.data = content[start + record.offset : start + record.offset + length]
        expected += length + -length % document.alignment
    return document


def stored(document: Document) -> dict[str, Stored]:
    """The tensors by name, with shapes that name rows first."""
    return {
        name.decode(): Stored(TENSORS[record.kind][0], tuple(record.sizes[::-1]), record.data)
        for name, record in document.tensors
    }
