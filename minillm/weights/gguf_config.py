"""The metadata of a GGUF file as config.json, and its tensors under Hugging Face's names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minillm.config import MAX_LAYERS
from minillm.weights.gguf_families import ARCHITECTURES, Architecture
from minillm.weights.gguf_metadata import Metadata
from minillm.weights.gguf_names import HEAD, TOP, Block
from minillm.weights.gguf_rope import KEYS as ROPE_KEYS
from minillm.weights.gguf_rope import rope_parameters
from minillm.weights.gguf_tensor import Array, GGUFTensor

# Keys that every architecture may have, after its name.
KEYS = ROPE_KEYS | {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
}
# Tokens that end a turn of a chat, where a file names only the one that ends the text.
END_OF_TURN = {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"}
CONTROL = 3  # in tokenizer.ggml.token_type

Tensors = Mapping[str, GGUFTensor]


def hf_config(metadata: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """The config.json of a GGUF file, in the spelling of transformers 5.

    Args: `metadata`, the file's keys and values. `tensors`, the file's tensors: whether there is an
        output head, biases or RoPE factors is known from them alone.
    Raises: ValueError for another architecture, for a key that is missing or out of range, and for
        one that config.json could not express.
    """
    row, found = _row(metadata)
    found.refuse_unknown(KEYS | row.keys)
    heads, hidden = found.size("attention.head_count"), found.size("embedding_length")
    head_dim = found.size("attention.key_length", hidden // heads)
    if (layers := found.size("block_count")) > MAX_LAYERS:
        raise ValueError(f"{found.architecture}.block_count is {layers}; {MAX_LAYERS} at most")
    settings = {
        "architectures": [row.model_class],
        "model_type": row.model_type,
        "vocab_size": found.size("vocab_size", len(_list(metadata, "tokens"))),
        "hidden_size": hidden,
        "intermediate_size": found.size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": found.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": found.size("context_length"),
        **row.activation,
        "rms_norm_eps": found.decimal("attention.layer_norm_rms_epsilon"),
        **_rope(row, found, head_dim, tensors),
        **row.settings,
        **{key: _has(tensors, block) for key, block in row.optional.items()},
        "tie_word_embeddings": not _has(tensors, HEAD, prefix=""),
        "dtype": "float32",
    }
    return settings | row.more(found, settings) | token_ids(metadata)


def _row(metadata: dict[str, Any]) -> tuple[Architecture, Metadata]:
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ValueError(f"general.architecture is {name!r:.80}; a name is needed")
    if (kind := metadata.get("general.type", "model")) != "model":
        raise ValueError(f"general.type is {kind!r:.80}; supported is 'model'")
    found = Metadata(metadata, name)
    row = ARCHITECTURES.get((name, found.size("expert_count", 0, least=0) > 0))
    if row is None:
        known = ", ".join(sorted({name for name, _ in ARCHITECTURES}))
        raise ValueError(f"general.architecture is {name!r:.80}; supported are {known}")
    return row, found


def _has(tensors: Tensors, block: Block, prefix: str = "blk.0.") -> bool:
    """Whether the file has these tensors, by their first one; all are then expected."""
    return prefix + next(iter(block)) in tensors


def _rope(row: Architecture, found: Metadata, head_dim: int, tensors: Tensors) -> dict[str, Any]:
    """`rope_parameters`, and where they are just a base, `rope_theta` for transformers 4."""
    rotary = found.size("rope.dimension_count", head_dim)
    partial = row.partial_rotary and rotary < head_dim
    for key, size in (
        ("attention.value_length", found.size("attention.value_length", head_dim)),
        ("rope.dimension_count", head_dim if partial else rotary),
    ):
        if size != head_dim or head_dim % 2 or rotary % 2:
            raise ValueError(
                f"{found.architecture}.{key} is {size} and the head width is {head_dim}; "
                "they must be equal and even"
            )
    present = {name: tensors[name] for name in row.rope_tensors if name in tensors}
    parameters = rope_parameters(found, present, rotary)
    if partial:
        return {"rope_parameters": parameters | {"partial_rotary_factor": rotary / head_dim}}
    if parameters["rope_type"] != "default":
        return {"rope_parameters": parameters}
    return {"rope_parameters": parameters, "rope_theta": parameters["rope_theta"]}


def token_ids(metadata: dict[str, Any]) -> dict[str, Any]:
    """bos, eos and pad as in generation_config.json; several eos where several tokens end a turn.

    Those are the ones that the file names (eos, eot, eom) and control tokens that look like them,
    which is how llama.cpp stops.
    """
    tokens = _list(metadata, "tokens")
    # What llama.cpp takes where a SentencePiece vocabulary does not say.
    named = {"bos": 1, "eos": 2} if metadata.get("tokenizer.ggml.model") == "llama" else {}
    for name in ("bos", "eos", "padding", "eot", "eom"):
        key = f"tokenizer.ggml.{name}_token_id"
        if (index := metadata.get(key)) is not None:
            if type(index) is not int or not 0 <= index < len(tokens):
                raise ValueError(f"{key} is {index!r:.80}, beyond the vocabulary of {len(tokens)}")
            named[name] = index
    ends = [named[name] for name in ("eos", "eot", "eom") if name in named]
    kinds = _list(metadata, "token_type")
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
        if kind == CONTROL and token in END_OF_TURN:
            ends.append(index)
    ends = list(dict.fromkeys(ends))
    ids = {
        "bos_token_id": named.get("bos"),
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": named.get("padding"),
    }
    return {name: index for name, index in ids.items() if index is not None}


def _list(metadata: dict[str, Any], name: str) -> list[Any]:
    found = metadata.get(f"tokenizer.ggml.{name}")
    return found if isinstance(found, list) else []


def hf_tensors(
    metadata: dict[str, Any], settings: dict[str, Any], tensors: Tensors
) -> dict[str, GGUFTensor]:
    """The tensors that the model of these `settings` has, by Hugging Face's names.

    Raises: ValueError that names the tensors which are missing, unexpected or of another shape.
    """
    row, _ = _row(metadata)
    expected = dict(TOP)
    if not settings["tie_word_embeddings"]:
        expected |= HEAD
    block = dict(row.block)
    for key, rows in row.optional.items():
        block |= rows if settings[key] else {}
    for layer in range(settings["num_hidden_layers"]):
        for name, (hf_name, shape) in block.items():
            expected[f"blk.{layer}.{name}"] = (f"model.layers.{layer}.{hf_name}", shape)
    _refuse_misfits(expected, _sizes(settings), tensors, ignored=row.rope_tensors)
    found: dict[str, GGUFTensor] = {}
    for name, (hf_name, _) in expected.items():
        tensor = tensors[name]
        if row.permuted and (heads := _heads(settings, name)):
            tensor = tensor.reordered(unpermuted_rows(heads, settings["head_dim"]))
        if row.norm_offset and name.endswith("norm.weight"):
            tensor = replace(tensor, added=row.norm_offset)
        if "{e}" in hf_name:
            for index in range(tensor.shape[0]):
                found[hf_name.format(e=index)] = tensor.entry(index)
        else:
            found[hf_name] = tensor
    return found


def _sizes(settings: dict[str, Any]) -> dict[str, int]:
    """The letters of the shapes in `ARCHITECTURES`."""
    head_dim, inner = settings["head_dim"], settings["intermediate_size"]
    queries, keys = (
        settings[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value")
    )
    return {
        "V": settings["vocab_size"],
        "C": settings["hidden_size"],
        "F": inner,
        "2F": 2 * inner,
        "D": head_dim,
        "Q": queries,
        "K": keys,
        "Q+2K": queries + 2 * keys,
        "E": settings.get("num_local_experts", 0),
        "X": settings.get("moe_intermediate_size", 0),
    }


def _refuse_misfits(
    expected: Block, sizes: dict[str, int], tensors: Tensors, ignored: frozenset[str]
) -> None:
    problems = [f"missing: {name}" for name in expected.keys() - tensors.keys()]
    problems += [f"unexpected: {name}" for name in tensors.keys() - expected.keys() - ignored]
    for name in expected.keys() & tensors.keys():
        shape = [sizes[letter] for letter in expected[name][1].split()]
        if list(tensors[name].shape) != shape:
            problems.append(f"{name} is {list(tensors[name].shape)}, the metadata says {shape}")
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError("its tensors do not fit: " + "; ".join(sorted(problems)[:5]) + more)


def _heads(settings: dict[str, Any], name: str) -> int:
    """Number of heads whose rows are permuted in this tensor; 0 where none are."""
    part = name.split(".")[-2]
    key = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(part)
    return int(settings[key]) if key else 0


def unpermuted_rows(num_heads: int, head_dim: int) -> Array:
    """For each row of a Hugging Face q or k projection: the row of the GGUF tensor that holds it.

    GGUF's Llama rotates neighbours (rows 2i and 2i + 1 of a head), Hugging Face's rotates halves
    (rows i and i + D/2). So the stored rows of each head are taken apart: for D = 8 they are
    0 2 4 6 1 3 5 7.

    Args: `num_heads`, H for q and K for k. `head_dim`, D.
    Returns: row numbers, int64 (num_heads · D,).
    """
    rows = np.arange(num_heads * head_dim)
    return rows.reshape(num_heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
