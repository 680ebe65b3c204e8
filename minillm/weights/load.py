"""From a checkpoint's tensors to a `Transformer` that runs: checked by name and shape, placed."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minillm.config import ModelConfig
from minillm.families import checkpoint_names
from minillm.model import Transformer
from minillm.quantization.blocks import BLOCK_BYTES, BlockEmbedding, BlockLinear, Blocks
from minillm.quantization.int4 import Quantized
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.quantization.memory import trim
from minillm.quantization.scheme import Scheme

# What may stay blocks besides the linear layers.
TABLES = ("embed_tokens.weight", "lm_head.weight")


class StoredTensor(Protocol):
    """A tensor of a checkpoint, which may still be on the disk. A `torch.Tensor` is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    def is_floating_point(self) -> bool:
        """Whether it holds numbers that can be weights."""

    def to(self, *, device: torch.device | str, dtype: torch.dtype, copy: bool = False) -> Tensor:
        """Its values; the stored ones themselves where nothing changes, unless copied."""


class PackedTensor(StoredTensor, Protocol):
    """A weight matrix that a checkpoint holds as whole numbers with scales."""

    def quantized(self, device: torch.device | str) -> Quantized:
        """The numbers themselves."""


class BlockTensor(StoredTensor, Protocol):
    """A tensor of a GGUF file, which may be blocks that a layer can run on."""

    def blocks(self, device: torch.device | str) -> Blocks | None:
        """The blocks; None for any other type of tensor."""


# By the method alone: `isinstance` of a protocol takes 20 µs, and a model has hundreds of tensors.
def is_packed(stored: StoredTensor | Tensor) -> TypeGuard[PackedTensor]:
    """Whether it is a `PackedTensor`."""
    return hasattr(stored, "quantized")


def has_blocks(stored: StoredTensor | Tensor) -> TypeGuard[BlockTensor]:
    """Whether it is a `BlockTensor`."""
    return hasattr(stored, "blocks")


def load_transformer(
    config: ModelConfig,
    weights: Mapping[str, StoredTensor | Tensor],
    *,
    model_type: str = "llama",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    quantize: str | Scheme | None = None,
    group_size: int | None = None,
    placed: Callable[[int], object] = lambda _: None,
) -> Transformer:
    """Build the model of `config` around these tensors.

    weights: `StoredTensor`s, named as in a Hugging Face checkpoint of this model_type. One that has
    the right dtype and device is used as it is: nothing is copied, a memory-mapped file stays on
    the disk until a page of it is read. Any other is converted on its own, so that the most memory
    taken is little above the model's. `placed` is called with each one's number of values.
    quantize: "int8", "int4" or a scheme: the layers' weights are rounded as they are read, and stay
    whole numbers, with a scale per group_size columns. "gguf": layers, embedding and head stay the
    blocks that `BlockTensor`s hold. What a checkpoint holds as codes stays so by itself.
    Raises ValueError that names every missing, unexpected or wrongly shaped tensor, before
    memory for any weight is allocated.
    """
    experts = sum(layer.experts.num_experts for layer in config.layers if layer.experts)
    if experts > len(weights):  # to build so many modules would take minutes
        raise ValueError(f"weights do not fit: {len(weights)} tensors for {experts} experts")
    with torch.device("meta"), _Uninitialized():  # shapes only, no storage
        model = Transformer(config)
    wanted = model.state_dict()
    stored = checkpoint_names(model_type, wanted)
    found = _checkpoint(config, weights)
    problems = [f"missing: {name}" for name in stored.keys() - found.keys()]
    problems += [f"unexpected: {name}" for name in found.keys() - stored.keys()]
    for name in stored.keys() & found.keys():
        rows = sum(len(wanted[part]) for part in stored[name])
        shape = (rows, *wanted[stored[name][0]].shape[1:])
        if tuple(found[name].shape) != shape:
            problems.append(f"{name} is {tuple(found[name].shape)}, the configuration says {shape}")
        elif not found[name].is_floating_point():
            problems.append(f"{name} is not of a floating-point type")
    if problems:
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise ValueError("weights do not fit: " + "; ".join(sorted(problems)[:8]) + more)
    linears = {f"{name}.weight": linear for name, linear in quantizable(model).items()}
    scheme, packed = None, any(map(is_packed, found.values()))
    keeps_blocks = quantize == "gguf"
    if keeps_blocks and not any(_blocks(tensor, "cpu") for tensor in found.values()):
        raise ValueError(f"quantize is 'gguf', but no weights are {', '.join(BLOCK_BYTES)} blocks")
    if quantize is not None and not keeps_blocks:
        if packed:
            raise ValueError(f"quantize is {quantize!r}, but the model's files are quantized")
        widths = {linear.in_features for linear in linears.values()}
        scheme = Scheme.on_load(quantize, widths, group_size)
    elif group_size is not None:
        raise ValueError(f"group_size is {group_size}, but nothing is quantized")
    tensors: dict[str, Tensor] = {}
    for name, parts in stored.items():
        sizes = [len(wanted[part]) for part in parts]
        may_be_blocks = keeps_blocks and parts[0] in {*linears, *TABLES}
        if may_be_blocks and (blocks := _blocks(found[name], device)):
            for part, its_rows in zip(parts, blocks.split(sizes), strict=True):
                _put_blocks(model, part.removesuffix(".weight"), its_rows, dtype)
        elif numbers := _whole_numbers(
            found[name], scheme if parts[0] in linears else None, device
        ):
            for part, piece in zip(parts, _split(numbers, sizes), strict=True):
                _replace(model, part.removesuffix(".weight"), piece, tensors)
            trim()
        else:
            # Views would keep the whole file mapped, and the pages of it that were read.
            copy = packed or scheme is not None
            values = found[name].to(device=device, dtype=dtype, copy=copy)
            pieces = torch.split(values, sizes)  # views
            tensors.update(zip(parts, pieces, strict=True))
        placed(math.prod(found[name].shape))
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()


def _whole_numbers(
    stored: StoredTensor | Tensor, scheme: Scheme | None, device: torch.device | str
) -> Quantized | None:
    """A weight as it is packed in its file, or as the scheme rounds it; else None."""
    if is_packed(stored):
        return stored.quantized(device)
    if scheme is None:
        return None
    return scheme.round(stored.to(device=device, dtype=torch.float32, copy=True))


def _split(numbers: Quantized, sizes: list[int]) -> list[Quantized]:
    """One for each of several matrices that are stacked by rows."""
    parts = (torch.split(x, sizes) for x in (numbers.codes, numbers.scales, numbers.zeros))
    return [numbers._replace(codes=c, scales=s, zeros=z) for c, s, z in zip(*parts, strict=True)]


def _replace(model: Transformer, name: str, numbers: Quantized, tensors: dict[str, Tensor]) -> None:
    """Put a quantized layer in place of the empty one; its bias comes as any other tensor."""
    old = model.get_submodule(name)
    if not isinstance(old, nn.Linear):
        raise ValueError(f"weights do not fit: {name} is quantized; only linear layers may be")
    layer = QuantizedLinear(numbers, old.bias)
    put(model, name, layer)
    tensors |= {f"{name}.{key}": x for key, x in layer.state_dict().items() if key != "bias"}


def _blocks(stored: StoredTensor | Tensor, device: torch.device | str) -> Blocks | None:
    return stored.blocks(device) if has_blocks(stored) else None


def _put_blocks(model: Transformer, name: str, blocks: Blocks, dtype: torch.dtype) -> None:
    """Put a layer on blocks in place of the empty one; a tied head is one on the embedding's."""
    if name == "embed_tokens":
        put(model, name, BlockEmbedding(blocks, dtype))
        if model.config.tie_word_embeddings:
            put(model, "lm_head", BlockLinear(blocks))
    elif isinstance(old := model.get_submodule(name), nn.Linear):
        put(model, name, BlockLinear(blocks, old.bias))
    else:
        raise ValueError(f"weights do not fit: {name} is blocks of codes; only matrices may be")


class _Uninitialized(TorchFunctionMode):
    """Modules begin without random numbers, which the file's values would replace anyway.

    On the device "meta" torch would import its compiler to draw none: 1 s, most of a load.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return function(*args, **kwargs)


def _checkpoint(
    config: ModelConfig, weights: Mapping[str, StoredTensor | Tensor]
) -> dict[str, StoredTensor | Tensor]:
    """The tensors under their full names, without those that are derived from others."""
    found: dict[str, StoredTensor | Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith("rotary_emb.inv_freq"):  # old checkpoints store the RoPE table
            continue
        full = name if name.startswith(("model.", "lm_head.")) else f"model.{name}"
        if full in found:
            raise ValueError(f"weights do not fit: {full} stands there with and without `model.`")
        found[full] = tensor
    if config.tie_word_embeddings and "lm_head.weight" in found:
        # A tied head may be stored a second time, but not with other values.
        head, table = found.pop("lm_head.weight"), found.get("model.embed_tokens.weight")
        if table is None or head.shape != table.shape or not _equal(head, table):
            raise ValueError(
                "weights do not fit: lm_head.weight differs from the embedding, but "
                "tie_word_embeddings is true"
            )
    return found


def _equal(a: StoredTensor | Tensor, b: StoredTensor | Tensor) -> bool:
    both = (x.to(device="cpu", dtype=torch.float32) for x in (a, b))
    return torch.equal(*both)
