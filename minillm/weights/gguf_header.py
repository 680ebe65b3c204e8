"""The header of a GGUF file, read value by value.

Nothing in it is believed: each count and length is compared with what is left of the file before
anything is read, allocated or repeated for it.
"""

import mmap
import struct
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

# The largest real headers (262,144 tokens, 514,906 merges) take 16 MB. Of anything there is at most
# so much that reading it all takes a second or two.
MAX_HEADER_BYTES = 2**25
MAX_ELEMENTS = 2**20  # of an array
MAX_RECORDS = 2**16  # metadata entries, and tensors
MAX_DIMENSIONS = 4
MAX_NAME = 200

# Type numbers of metadata values: those of one fixed size, and the three others.
SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(slots=True)
class Header:
    """A mapped file, and how far its header has been read.

    vocabulary: whether arrays of strings are wanted; else they are passed over, and empty.
    """

    content: mmap.mmap
    vocabulary: bool = True
    at: int = 0

    def take(self, size: int, what: str) -> int:
        """Move past `size` bytes and return where they begin; they are sure to be there."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.content):
            raise ValueError(
                f"cut short or broken: {what} at byte {begin:,} needs {size:,} bytes, the file has "
                f"{len(self.content) - begin:,} more"
            )
        if self.at > MAX_HEADER_BYTES:
            raise ValueError(
                f"broken: {what} ends at byte {self.at:,}; a header has at most "
                f"{MAX_HEADER_BYTES:,} bytes"
            )
        return begin

    def number(self, size: int, what: str) -> int:
        """A whole number of `size` bytes."""
        begin = self.take(size, what)
        return int.from_bytes(self.content[begin : begin + size], "little")

    def text(self, what: str) -> str:
        """A string."""
        length = self.number(8, f"the length of {what}")
        begin = self.take(length, what)
        try:
            return self.content[begin : begin + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} at byte {begin:,} is not UTF-8 ({error.reason})") from None

    def name(self, what: str) -> str:
        """A string that names a key or a tensor."""
        name = self.text(what)
        if not (name.isascii() and name.isprintable() and 0 < len(name) <= MAX_NAME):
            raise ValueError(
                f"{what} is {name!a:.80}; 1 to {MAX_NAME} printable ASCII characters are needed"
            )
        return name

    def count(self, number: int, most: int, size: int, what: str) -> int:
        """`number`, if it is at most `most` and the file has room for so many things of `size`."""
        if number > most:
            raise ValueError(f"{number:,} {what}; at most {most:,} are read")
        if number > (room := (len(self.content) - self.at) // size):
            raise ValueError(f"cut short or broken: {number:,} {what}, and room for {room:,}")
        return number

    def metadata(self, number: int) -> dict[str, Any]:
        """So many metadata entries."""
        found: dict[str, Any] = {}
        # An entry is a length, a type and a value at least.
        for _ in range(self.count(number, MAX_RECORDS, 8 + 4 + 1, "metadata entries")):
            key = self.name("a metadata key")
            if key in found:
                raise ValueError(f"metadata key {key!r} stands there twice")
            found[key] = self.value(key, self.number(4, f"the type of {key}"))
        return found

    def value(self, key: str, kind: int) -> Any:
        """A value of the type with this number."""
        if kind == ARRAY:
            return self.array(key)
        if kind == STRING:
            return self.text(key)
        return self.numbers(key, kind, 1)[0]

    def array(self, key: str) -> list[Any]:
        """An array of numbers, truth values or strings."""
        kind = self.number(4, f"the element type of {key}")
        length = self.number(8, f"the length of {key}")
        if kind == ARRAY:
            raise ValueError(f"{key} is an array of arrays; arrays of numbers or strings are known")
        size = 8 if kind == STRING else 1
        self.count(length, MAX_ELEMENTS, size, f"elements in {key}")
        if kind == STRING:
            return self.strings(key, length)
        return self.numbers(key, kind, length)

    def numbers(self, key: str, kind: int, length: int) -> list[Any]:
        """So many numbers or truth values of one type."""
        if kind == BOOL:
            flags = self.numbers(key, 0, length)
            if not {0, 1}.issuperset(flags):
                raise ValueError(f"{key} is a truth value of {max(flags)}; 0 and 1 are known")
            return [flag == 1 for flag in flags]
        if kind not in SCALARS:
            raise ValueError(f"{key} has the value type {kind}; 0 to 12 are known")
        dtype = SCALARS[kind]
        begin = self.take(length * dtype.itemsize, key)
        values: list[Any] = np.frombuffer(self.content, dtype, length, begin).tolist()
        return values

    def strings(self, key: str, length: int) -> list[str]:
        """`text`, `length` times over, written out: a vocabulary has 262,144 of them."""
        content, at, found = self.content, self.at, []
        length_at = struct.Struct("<Q").unpack_from
        try:
            for _ in range(length):
                begin = at + 8
                at = begin + length_at(content, at)[0]
                if self.vocabulary:
                    found.append(content[begin:at].decode("utf-8"))
        except (struct.error, OverflowError, UnicodeDecodeError):
            at = sys.maxsize
        if at <= min(len(content), MAX_HEADER_BYTES):
            self.at = at
            return found
        # Something is wrong: `text` says what, and where.
        return [self.text(f"a string of {key}") for _ in range(length)]

    def records(self, number: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """Shape (rows first), type number and offset of each tensor."""
        found = {}
        # A record is a length, a number of dimensions, one of them, a type and an offset at least.
        for _ in range(self.count(number, MAX_RECORDS, 8 + 4 + 8 + 4 + 8, "tensors")):
            name = self.name("a tensor name")
            if name in found:
                raise ValueError(f"tensor {name!r} stands there twice")
            dimensions = self.number(4, f"the number of dimensions of {name}")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise ValueError(
                    f"{name} has {dimensions:,} dimensions; 1 to {MAX_DIMENSIONS} are possible"
                )
            # GGUF names the axis first along which values are neighbours.
            sizes = [self.number(8, f"the shape of {name}") for _ in range(dimensions)]
            kind = self.number(4, f"the type of {name}")
            found[name] = (tuple(sizes[::-1]), kind, self.number(8, f"the offset of {name}"))
        return found
