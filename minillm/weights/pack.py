"""Pack quantized layers as GPTQ checkpoints hold them; `minillm.weights.packed` is the way back."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm import __version__
from minillm.hf_quantization import BITS, GPTQ_FORMATS
from minillm.model import Transformer
from minillm.quantization.int4 import Quantized, pack_nibbles
from minillm.quantization.linear import CodedLinear, QuantizedLinear, quantizable

# What a layer X consists of: X.qweight and so on.
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def quantization_config(
    model: Transformer, layers: Mapping[str, CodedLinear]
) -> dict[str, Any] | None:
    """What config.json says of a model's quantized layers; None where there are none.

    layers: all of them, by name. Symmetric ones are written in the first version of the format,
    which every reader of GPTQ files knows. It stores zero points less 1, and readers disagree on
    what becomes of a 0; other layers are written in the second, which stores them as they are.
    Raises ValueError for layers that differ in bits or group size, or that have bits for which
    there is no layout, and for a model that is quantized in part.
    """
    if not layers:
        return None
    if plain := sorted(quantizable(model)):
        raise ValueError(f"{plain[0]} is not quantized, others are; a checkpoint holds all or none")
    quantized = [_quantized(name, layer) for name, layer in layers.items()]
    bits = {layer.code_bits for layer in quantized}
    if len(bits) > 1 or not bits <= set(BITS):
        raise ValueError(
            f"the layers have {', '.join(map(str, sorted(bits)))} bits; a checkpoint holds "
            f"{' or '.join(map(str, BITS))}, the same for all"
        )
    middle = 2 ** (max(bits) - 1)
    symmetric = all(bool((layer.zeros == middle).all()) for layer in quantized)
    return {
        "quant_method": "gptq",
        "bits": bits.pop(),
        "group_size": _group_size(quantized),
        "sym": symmetric,
        "desc_act": any(layer.order is not None for layer in quantized),
        "checkpoint_format": "gptq" if symmetric else "gptq_v2",
        "lm_head": "lm_head" in layers,
        "pack_dtype": "int32",
        "meta": {"quantizer": [f"minillm:{__version__}"]},
    }


def pack_part(
    name: str, layers: Sequence[Tensor | CodedLinear], config: Mapping[str, Any] | None
) -> Tensor:
    """One of the tensors that hold a weight: the part that its name ends with.

    layers: those whose weights it holds, stacked by rows. config: of `quantization_config`.
    Raises ValueError where words of 32 bits would not be full, and for layers that cannot be
    stacked.
    """
    if config is None:
        raise ValueError(f"{name} is no weight of a quantized layer")
    weight = _stacked(name, layers)
    bits, per_word = weight.bits, 32 // weight.bits
    if any(size % per_word for size in weight.codes.shape):
        N, C = weight.codes.shape
        raise ValueError(
            f"{name}: {C} inputs and {N} outputs; the format packs {per_word} of either into a word"
        )
    match name.rpartition(".")[2]:
        case "qweight":
            codes = weight.codes
            if weight.order is not None:
                codes = codes[:, weight.order.argsort()]
            return pack_words(codes, bits).t().contiguous()  # (C/f, N)
        case "qzeros":
            stored = weight.zeros - GPTQ_FORMATS[config["checkpoint_format"]]
            return pack_words(stored.t(), bits)  # (G, N/f)
        case "scales":
            return weight.scales.t().contiguous()  # (G, N)
    groups = torch.arange(weight.codes.shape[1], device=weight.codes.device) // weight.group_size
    if weight.order is not None:
        groups = groups[weight.order.argsort()]
    return groups.int()  # (C,)


def pack_words(codes: Tensor, bits: int) -> Tensor:
    """32/bits codes in each word of 32 bits, the first in the lowest.

    codes: (…, n), uint8, values from 0 to 2^bits - 1, n a multiple of 32/bits. bits: 4 or 8.
    Returns (…, n·bits/32), int32.

    >>> codes = torch.arange(8, dtype=torch.uint8)
    >>> hex(pack_words(codes, 4).item())
    '0x76543210'
    """
    octets = pack_nibbles(codes) if bits == 4 else codes
    words = octets.reshape(*octets.shape[:-1], -1, 4).int()
    shifts = torch.tensor([0, 8, 16, 24], dtype=torch.int32, device=codes.device)
    return (words << shifts).sum(dim=-1, dtype=torch.int32)


def _quantized(name: str, layer: Tensor | CodedLinear) -> QuantizedLinear:
    if not isinstance(layer, QuantizedLinear):
        raise ValueError(f"{name} is a {type(layer).__name__}, for which there is no file format")
    return layer


def _stacked(name: str, layers: Sequence[Tensor | CodedLinear]) -> Quantized:
    """The weights of several layers as one, by rows."""
    first, *others = weights = [_quantized(name, layer).quantized for layer in layers]
    for other in others:
        same = first.order is other.order or (
            first.order is not None
            and other.order is not None
            and torch.equal(first.order, other.order)
        )
        if not same or first.scales.shape[1] != other.scales.shape[1]:
            raise ValueError(
                f"{name} holds {len(layers)} layers, which must share their groups of inputs, and "
                "where columns are in another order, that order"
            )
    return first._replace(
        codes=torch.cat([weight.codes for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights]),
        zeros=torch.cat([weight.zeros for weight in weights]),
    )


def _group_size(layers: Sequence[QuantizedLinear]) -> int:
    """Inputs that share a scale in all layers; -1: each has one group.

    Beside larger groups, a layer with one group may have fewer inputs than those.
    """
    groups = [
        (layer.in_features // layer.scales.shape[1], layer.scales.shape[1]) for layer in layers
    ]
    sizes = {size for size, count in groups if count > 1}
    if not sizes:
        return -1
    if len(sizes) > 1 or max(groups)[0] > max(sizes):
        found = sorted({size for size, _ in groups})
        raise ValueError(
            f"the layers have groups of {', '.join(map(str, found))} inputs; a checkpoint holds "
            "groups of one size"
        )
    return sizes.pop()
