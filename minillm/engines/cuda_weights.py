"""A Transformer's weights as the CUDA engine reads them: layer by layer, products fused.

Projections of the same input become one product, because a matrix-vector product is limited by
launches and reads. Their weights are joined once, and each module's weight becomes a view of its
part: modules and engine read the same memory, and a 7B model is never held twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.config import LayerConfig, ModelConfig
from minillm.engines.base import Unsupported
from minillm.engines.cuda_kernels import Kernels
from minillm.kernels.triton import WIDEST_HEAD, WIDEST_ROW
from minillm.layers.norm import RMSNorm
from minillm.model import Block, Transformer
from minillm.quantization.linear import QuantizedLinear

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Dense:
    """y = x · weightᵀ + bias, by the matrix products of PyTorch."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor, kernels: Kernels) -> Tensor:
        """x: (B, C). Returns (B, N)."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Coded:
    """The same on codes of 4 or 8 bits, by the kernel that reads them."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    bias: Tensor | None
    bits: int
    order: Tensor | None = None

    def __call__(self, x: Tensor, kernels: Kernels) -> Tensor:
        """x: (B, C). Returns (B, N)."""
        x = x if self.order is None else x[:, self.order]
        parts = self.codes, self.scales, self.zeros, self.bias
        return kernels.quantized_linear(x, *parts, self.bits)


@dataclass(frozen=True, slots=True)
class Apart:
    """Products of one input that could not be joined, one after the other."""

    parts: tuple[Dense | Coded, ...]

    def __call__(self, x: Tensor, kernels: Kernels) -> Tensor:
        """x: (B, C). Returns (B, N), the results side by side."""
        return torch.cat([part(x, kernels) for part in self.parts], dim=1)


Product = Dense | Coded | Apart


@dataclass(frozen=True, slots=True)
class Norm:
    """Weight (size,), the offset added, and eps of a norm."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor, kernels: Kernels) -> Tensor:
        """x: (B, n·size). Returns the same shape, each group of `size` values normalised."""
        groups = x.reshape(-1, len(self.weight))
        return kernels.rms_norm(groups, self.weight, self.eps).view(x.shape)


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. A norm is None where the model has none; scale is that of attention's scores."""

    config: LayerConfig
    scale: float
    qkv: Product
    out: Product
    gate_up: Product
    down: Product
    gating: str
    q_norm: Norm | None
    k_norm: Norm | None
    before_attention: Norm | None
    after_attention: Norm | None
    before_mlp: Norm | None
    after_mlp: Norm | None


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model. embedding_scale is rounded to the dtype, as the modules do."""

    config: ModelConfig
    embedding: Tensor
    embedding_scale: float
    layers: tuple[Layer, ...]
    norm: Norm
    head: Product

    @classmethod
    def of(cls, model: Transformer) -> "Weights":
        """Read, and join, the weights of a model. `Unsupported` for what no kernel reads."""
        config, table = model.config, model.embed_tokens
        if not isinstance(table, nn.Embedding) or table.weight.dtype not in DTYPES:
            raise Unsupported(f"the embedding is {_kind(table)}; a table of floats is needed")
        if any(layer.experts is not None for layer in config.layers):
            raise Unsupported("the model has a mixture of experts, and a step would depend on it")
        sizes = config.hidden_size, config.num_attention_heads * config.head_dim
        if config.head_dim > WIDEST_HEAD or max(sizes) > WIDEST_ROW:
            raise Unsupported(
                f"its heads have {config.head_dim} numbers and its rows {max(sizes)}; the kernels "
                f"take up to {WIDEST_HEAD} and {WIDEST_ROW}"
            )
        weight = table.weight.detach()
        scale = float(torch.tensor(config.embedding_scale, dtype=weight.dtype))
        head = product(model.lm_head) if hasattr(model, "lm_head") else Dense(weight, None)
        blocks = zip(model.layers, config.layers, strict=True)
        layers = tuple(_layer(block, config, layer) for block, layer in blocks)  # type: ignore[arg-type]
        last = _norm(model.norm)
        assert last is not None  # the model's last norm has no place where it may be missing
        return cls(config, weight, scale, layers, last, head)


def _layer(block: Block, config: ModelConfig, layer: LayerConfig) -> Layer:
    attention, mlp = block.self_attn, block.mlp
    return Layer(
        layer,
        attention.query_scale / math.sqrt(config.head_dim),
        joined([attention.q_proj, attention.k_proj, attention.v_proj]),
        product(attention.o_proj),
        joined([mlp.gate_proj, mlp.up_proj]),  # type: ignore[list-item]
        product(mlp.down_proj),  # type: ignore[arg-type]
        config.activation,
        _norm(attention.q_norm),
        _norm(attention.k_norm),
        _norm(block.input_layernorm),
        _norm(block.post_self_attn_layernorm),
        _norm(block.post_attention_layernorm),
        _norm(block.post_mlp_layernorm),
    )


def _norm(module: nn.Module) -> Norm | None:
    if not isinstance(module, RMSNorm):
        return None
    weight = module.weight.detach()
    return Norm(weight.float() + module.offset if module.offset else weight, module.eps)


def product(module: nn.Module) -> Dense | Coded:
    """What a linear layer computes. `Unsupported` for a kind that no kernel reads."""
    if type(module) is nn.Linear and module.weight.dtype in DTYPES:
        return Dense(module.weight.detach(), _detached(module.bias))
    if type(module) is QuantizedLinear:
        parts = module.codes, module.scales, module.zeros, module.bias
        return Coded(*parts, module.bits, module.order)
    raise Unsupported(f"a layer is {_kind(module)}, which no CUDA kernel reads")


def joined(modules: Sequence[nn.Module]) -> Product:
    """One product in place of several of the same input; the modules' weights become its parts.

    Layers that cannot be joined (codes of different widths, columns in different orders) stay
    apart.
    """
    parts = [product(module) for module in modules]
    names = ["weight", "bias"] if isinstance(parts[0], Dense) else ["codes", "scales", "zeros"]
    if isinstance(parts[0], Coded):
        names.append("bias")
    if len({_likeness(part) for part in parts}) > 1 or any(
        isinstance(part, Coded) and part.order is not None for part in parts
    ):
        return Apart(tuple(parts))
    whole = {name: _join([getattr(module, name) for module in modules]) for name in names}
    for name, tensor in whole.items():
        if tensor is not None:
            _share(modules, name, tensor)
    if isinstance(parts[0], Dense):
        assert whole["weight"] is not None
        return Dense(whole["weight"], whole["bias"])
    codes, scales, zeros = (whole[name] for name in ("codes", "scales", "zeros"))
    assert codes is not None
    assert scales is not None
    assert zeros is not None
    return Coded(codes, scales, zeros, whole["bias"], parts[0].bits)


def _likeness(part: Dense | Coded) -> tuple[object, ...]:
    """What has to agree before two products can be one."""
    has_bias = part.bias is not None
    if isinstance(part, Dense):
        return part.weight.dtype, part.weight.shape[1], has_bias
    return part.bits, part.codes.shape[1], part.scales.shape[1], part.scales.dtype, has_bias


def _join(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The parts below each other; where they already lie so, in place."""
    found = [part.detach() for part in parts if part is not None]
    if not found:
        return None
    first = found[0]
    ends = [x.storage_offset() + x.numel() for x in found]
    starts = [x.storage_offset() for x in found]
    same = len({x.untyped_storage().data_ptr() for x in found}) == 1
    rows = sum(len(x) for x in found)
    if same and starts[1:] == ends[:-1] and all(x.is_contiguous() for x in found):
        return first.as_strided((rows, *first.shape[1:]), first.stride())
    with torch.inference_mode(False), torch.no_grad():  # so that gradients stay possible
        return torch.cat(found)


def _share(modules: Sequence[nn.Module], name: str, whole: Tensor) -> None:
    """Let each module's tensor of this name be its rows of `whole`; frees what it was."""
    start = 0
    for module in modules:
        held = getattr(module, name)
        part = whole[start : start + len(held)]
        start += len(held)
        if isinstance(held, nn.Parameter):
            held.data = part
        else:
            setattr(module, name, part)


def _detached(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach()


def _kind(module: nn.Module) -> str:
    dtype = getattr(getattr(module, "weight", None), "dtype", "codes")
    return f"a {type(module).__name__} of {dtype}"
