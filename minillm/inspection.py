"""What a model is made of and what memory it takes, from its description alone."""

from collections import Counter
from pathlib import Path
from typing import Any

from minillm.config import LayerConfig, ModelConfig, RopeConfig
from minillm.hf_config import read_config
from minillm.hf_quantization import Packing, read_packing
from minillm.quantization.scheme import Scheme
from minillm.weights.pull import resolve
from minillm.weights.source import open_source

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# What a group of codes needs besides: its scale, and its zero point.
GROUP_BYTES = 3


def inspect_model(name: str) -> dict[str, Any]:
    """Architecture and arithmetic of a model, without its weights: a name for each value.

    name: as `LLM.from_pretrained` takes it. Sizes are in tokens, values or bytes. The cache at full
    context holds `max_position_embeddings` tokens, or of a layer with a window that many and the
    sinks.
    """
    source = open_source(resolve(name))
    config = read_config(source.settings)
    parameters, context = config.num_parameters(), config.max_position_embeddings
    layers, packing = Counter(config.layers), read_packing(source.settings)
    return {
        "model": str(source.path),
        "model_type": source.settings["model_type"],
        "layers (L)": config.num_hidden_layers,
        "width (C)": config.hidden_size,
        "query heads (H)": config.num_attention_heads,
        "key/value heads (K)": config.num_key_value_heads,
        "head dim (D)": config.head_dim,
        "feed-forward width (F)": config.intermediate_size,
        "vocabulary (V)": config.vocab_size,
        "context, tokens": context,
        "kinds of layers": [f"{n} × {_layer(layer)}" for layer, n in layers.items()],
        "feed-forward": config.activation,
        "norms around sublayers": config.norms,
        "q/k norm": config.qk_norm,
        "quantized": _packing(packing) if packing else "no",
        "tied output head": config.tie_word_embeddings,
        "parameters": parameters,
        "of these in the embedding": config.vocab_size * config.hidden_size,
        "of these at work for a token": parameters - idle_parameters(config),
        "bytes of the weight files": weight_file_bytes(source.path),
        "weight bytes": _weight_bytes(config, packing),
        "cache bytes per token": {
            kind: config.cache_bytes_per_token(size) for kind, size in BYTES.items()
        },
        "cache bytes, full context": {
            kind: cache_bytes(config, context, size) for kind, size in BYTES.items()
        }
        | {
            f"int{bits} + float32": quantized_cache_bytes(config, context, bits, BYTES["float32"])
            for bits in (8, 4)
        },
    }


def weight_file_bytes(path: Path) -> int:
    """Size of a GGUF file, or of all the safetensors files of a folder."""
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(file.stat().st_size for file in files)


def linear_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Rows and columns (N, C) of every linear layer that quantization takes."""
    C, F = config.hidden_size, config.intermediate_size
    q, kv = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    shapes: list[tuple[int, int]] = []
    for layer in config.layers:
        shapes += [(q, C), (kv, C), (kv, C), (C, q)]
        count, width = 1, F
        if layer.experts:
            count, width = layer.experts.num_experts, layer.experts.intermediate_size
        shapes += [(width, C), (width, C), (C, width)] * count
    return shapes


def quantized_bytes(
    config: ModelConfig, scheme: str | Scheme, bytes_per_value: int, group_size: int | None = None
) -> int:
    """Bytes of a model whose linear layers are quantized, in memory.

    Σ N·C·bits/8 + 3·N·C/group_size over the layers, and bytes_per_value for all other weights.
    scheme: "int8", "int4", or one of another kind.
    """
    shapes = linear_shapes(config)
    if isinstance(scheme, str):
        scheme = Scheme.of(scheme, {C for _, C in shapes}, group_size=group_size)
    rest = config.num_parameters() - sum(N * C for N, C in shapes)
    total = rest * bytes_per_value
    for N, C in shapes:
        groups = 1 if scheme.group_size == -1 else C // scheme.group_size
        code_bytes = C // 2 if scheme.bits <= 4 and C % 2 == 0 else C
        total += N * (code_bytes + groups * GROUP_BYTES)
    return total


def cache_bytes(config: ModelConfig, num_tokens: int, bytes_per_value: int) -> int:
    """Bytes of the KV cache of a text: 2 · K · D · bytes_per_value · tokens kept, over all layers.

    A layer keeps every token; one with a window as many as that, and its sinks.
    """
    values = 2 * config.num_key_value_heads * config.head_dim
    kept = [
        num_tokens
        if layer.sliding_window is None
        else min(layer.sliding_window + layer.sinks, num_tokens)
        for layer in config.layers
    ]
    return values * sum(kept) * bytes_per_value


def quantized_cache_bytes(
    config: ModelConfig, capacity: int, bits: int, bytes_per_value: int
) -> int:
    """Bytes that a row takes in a `QuantizedKVCache` with keys per channel.

    N = capacity // 32 blocks of 32 tokens as codes, with 4 bytes for scale and minimum of each
    group, and an open block in the model's dtype. Where D is a multiple of 32, all groups have 32
    values, and it is 2 · L · K · D · 32 · (N · (bits + 1) / 8 + bytes_per_value).
    """
    L, K, D = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    channels = next(size for size in range(32, 0, -1) if D % size == 0)
    groups = D + 32 * D // channels  # of keys and of values, in one block
    full = 2 * 32 * D * bits // 8 + 4 * groups
    return L * K * (capacity // 32 * full + 2 * 32 * D * bytes_per_value)


def idle_parameters(config: ModelConfig) -> int:
    """Weights of the experts that the router does not choose, for any one token."""
    unused = [
        (layer.experts.num_experts - layer.experts.num_experts_per_tok)
        * layer.experts.intermediate_size
        for layer in config.layers
        if layer.experts
    ]
    return 3 * config.hidden_size * sum(unused)


def _weight_bytes(config: ModelConfig, packing: Packing | None) -> dict[str, int]:
    """Bytes in memory by dtype, and with layers quantized, by their files or on loading."""
    if packing:
        given = Scheme("int4", packing.bits, packing.group_size, packing.symmetric)
        return {
            f"quantized + {kind}": quantized_bytes(config, given, BYTES[kind]) for kind in BYTES
        }
    found = {kind: config.num_parameters() * size for kind, size in BYTES.items()}
    for method in ("int8", "int4"):
        for kind in ("float32", "bfloat16"):
            found[f"{method} + {kind}"] = quantized_bytes(config, method, BYTES[kind])
    return found


def _packing(packing: Packing) -> str:
    groups = "rows" if packing.group_size == -1 else f"groups of {packing.group_size}"
    return f"{packing.bits} bits, {groups}, in the layout of {packing.layout.upper()}"


def _layer(layer: LayerConfig) -> str:
    """Such as "window of 512, RoPE default with base 10,000"."""
    parts = ["attention to all"]
    if layer.sliding_window is not None:
        parts = [f"window of {layer.sliding_window:,}"]
    parts.append(_rope(layer.rope) if layer.rope else "no RoPE")
    if experts := layer.experts:
        parts.append(
            f"{experts.num_experts_per_tok} of {experts.num_experts} experts of width "
            f"{experts.intermediate_size:,}"
        )
    return ", ".join(parts)


def _rope(rope: RopeConfig) -> str:
    text = f"RoPE {rope.rope_type} with base {rope.rope_theta:,.0f}"
    if rope.rope_type != "default":
        text += f", stretched {rope.factor:g} times"
    if rope.partial_rotary_factor != 1:
        text += f", on {rope.partial_rotary_factor:.0%} of a head"
    return text
