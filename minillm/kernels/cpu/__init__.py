"""C++ kernels for the CPU: products with quantized weights, as fast as memory delivers them.

The library is compiled when minillm is installed, where there is a compiler, and opened here with
ctypes at first use. The folder's headers say how it works: products.h is the place to begin.
Without it (`why_not` says why) everything runs on PyTorch.

`MINILLM_CPU` names the variant to use (portable, avx2, avx512, neon) or switches all off (off).
"""

import ctypes
import hashlib
import os
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch  # first of all: the library then shares PyTorch's OpenMP runtime

VARIANTS = ("portable", "avx2", "avx512", "neon")
FOLDER = Path(__file__).parent

# Functions of the library: what they return, what they take.
SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "mm_sources": (c_char_p, []),
    "mm_variant": (c_char_p, [c_int32]),
    "mm_current": (c_char_p, []),
    "mm_use": (c_int32, [c_char_p]),
    "mm_pack_blocks": (c_void_p, [c_int32, c_int64, *[c_void_p] * 3, c_int64]),
    "mm_pack_groups": (c_void_p, [c_int32, c_int32, c_int64, *[c_void_p] * 5, c_int64, c_int64]),
    "mm_pack_floats": (c_void_p, [c_int32, c_int64, *[c_void_p] * 3, c_int64]),
    "mm_weight_bytes": (c_int64, [c_void_p]),
    "mm_free": (None, [c_void_p]),
    "mm_expect": (None, [c_int64]),
    "mm_ready": (None, []),
    "mm_in_large_pages": (None, [c_void_p, c_int64]),
    "mm_dequantize_row": (None, [c_void_p, c_int64, c_void_p]),
    "mm_dequantize_blocks": (None, [c_int32, c_void_p, c_int64, c_void_p]),
    "mm_quantize": (None, [*[c_void_p] * 4, c_int64, c_int64]),
    "mm_product": (None, [*[c_void_p] * 5, *[c_int64] * 3, c_void_p, c_int64, c_void_p]),
    "mm_linear": (None, [*[c_void_p] * 5, c_int64, c_void_p, c_void_p]),
}


def load_library() -> ctypes.CDLL:
    """The library, with its functions' types declared. RuntimeError, saying why, without one."""
    opened = _open(os.environ.get("MINILLM_CPU") or "")
    if isinstance(opened, str):
        raise RuntimeError(f"the C++ kernels are not available: {opened}")
    return opened


def why_not() -> str | None:
    """Why there is no library, or None where there is. ValueError for an unknown MINILLM_CPU."""
    opened = _open(os.environ.get("MINILLM_CPU") or "")
    return opened if isinstance(opened, str) else None


def variant() -> str | None:
    """The name of the variant in use, such as "avx2"; None without a library."""
    return None if why_not() else str(load_library().mm_current().decode())


def variants() -> list[str]:
    """The variants that run on this machine, the fastest first; none without a library."""
    if why_not():
        return []
    names = (load_library().mm_variant(i) for i in range(len(VARIANTS)))
    return [name.decode() for name in names if name is not None]


def use(name: str) -> None:
    """Switch to another variant, for all that follows. ValueError if it does not run here."""
    if name not in variants():
        runnable = ", ".join(variants()) or "none"
        raise ValueError(f"the variant {name!r} does not run here; these do: {runnable}")
    load_library().mm_use(name.encode())


@cache
def _open(asked: str) -> ctypes.CDLL | str:
    """The library, set to the variant asked for ("": the best), or why there is none."""
    if asked not in ("", "off", *VARIANTS):
        known = ", ".join(VARIANTS)
        raise ValueError(f"MINILLM_CPU is {asked!r}; known are {known} and off")
    if asked == "off":
        return "MINILLM_CPU=off switches them off"
    found = [path for end in EXTENSION_SUFFIXES if (path := FOLDER / f"_library{end}").exists()]
    if not found:
        return "minillm was installed without a C++ compiler"
    opened = open_library(found[0])
    if asked and not isinstance(opened, str) and not opened.mm_use(asked.encode()):
        raise ValueError(f"MINILLM_CPU is {asked!r}, which does not run on this machine")
    return opened


def open_library(path: Path) -> ctypes.CDLL | str:
    """The library in a file, or why it cannot be used."""
    assert torch.__version__  # imported, and its OpenMP runtime with it
    try:
        opened = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(opened, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return f"{path.name} cannot be loaded: {error}"
    if opened.mm_sources().decode() not in ("", sources_hash(FOLDER)):
        return f"{path.name} was built from other sources; install minillm again (`make setup`)"
    return opened


def sources_hash(folder: Path) -> str:
    """Of all C++ files, as setup.py has it."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".cpp", ".h", ".inl"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
