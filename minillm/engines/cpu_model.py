"""A model's weights as the C++ engine reads them: packed once, or where they are."""

import math
from operator import is_
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

from minillm.config import RopeConfig
from minillm.engines import cpu_structs as c
from minillm.engines.base import Accelerated, Unsupported
from minillm.kernels import reference
from minillm.kernels.cpu import products
from minillm.kernels.cpu.checks import BLOCK, FLOATS, describe
from minillm.kernels.cpu.products import BLOCK_KINDS
from minillm.layers.attention import Attention
from minillm.layers.mlp import MLP
from minillm.layers.norm import RMSNorm, Unchanged
from minillm.model import Block, Transformer
from minillm.ops import Ops
from minillm.quantization.blocks import BlockEmbedding, BlockLinear
from minillm.quantization.linear import QuantizedLinear

MAX_HEAD = 512  # D at most, as attention.h has it


class CpuModel:
    """The weights of a `Transformer`, in step.h's structs.

    Codes are copied into an order that is fast to read. Weights in floating point, norms and biases
    stay where they are, so that a change in place is seen. `is_current` tells whether a module, a
    tensor, its memory or another attribute was replaced since, or a tensor changed in place.
    Raises `Unsupported` for what the engine cannot run: modules of other classes than the model was
    made of, or with a `forward` of their own, and tensors of other shapes.
    """

    def __init__(self, model: Transformer) -> None:
        config, D = model.config, model.config.head_dim
        if D > MAX_HEAD:
            raise Unsupported(f"head_dim is {D}; at most {MAX_HEAD} is possible")
        check_own("the model", model, Transformer, Accelerated)
        if model.ops != Ops():
            raise Unsupported("one of its ops was replaced")
        devices = {x.device.type for x in (*model.parameters(), *model.buffers())}
        if devices != {"cpu"}:
            raise Unsupported(f"its weights are on {', '.join(sorted(devices))}")
        if len(model.layers) != config.num_hidden_layers:
            raise Unsupported(f"it has {len(model.layers)} layers, not {config.num_hidden_layers}")
        self.config, self._keep = config, list[object]()  # what C++ points at must stay
        self.ropes: list[RopeConfig] = list(dict.fromkeys(x.rope for x in config.layers if x.rope))
        self.all_coded = True
        self.has_sinks = any(layer.sinks for layer in config.layers)
        layers = (c.Layer * config.num_hidden_layers)()
        for index, (layer, block) in enumerate(zip(layers, model.layers, strict=True)):
            self._fill(layer, block, index)
        self.struct = c.Model(
            layers=layers,
            num_layers=config.num_hidden_layers,
            H=config.num_attention_heads,
            K=config.num_key_value_heads,
            D=D,
            C=config.hidden_size,
            F=config.intermediate_size,
            norm=self._norm(model.norm, config.hidden_size),
            gelu=config.activation == "geglu",
            whole_norm=config.qk_norm == "whole",
            eps=config.rms_norm_eps,
            norm_offset=config.norm_offset,
            query_scale=1 / math.sqrt(config.query_pre_attn_scalar or D),
        )
        self.dtype = self._embed(model)
        self.head = self._head(model)
        self._owners = _owners(model)
        self._sizes = list(map(len, self._owners))
        parts = ((x, *part) for x in self._owners for part in x.items() if part[0] not in COMMON)
        self._watched = list(zip(*parts, strict=True))
        self._tensors = [x for x in self._watched[2] if isinstance(x, Tensor)]
        self._places = [x.data_ptr() for x in self._tensors]
        # What inference mode has made counts no changes.
        self._counting = [x for x in self._tensors if not x.is_inference()]
        self._versions = [x._version for x in self._counting]
        hooks = [(m._forward_hooks, m._forward_pre_hooks) for m in model.modules()]
        of_all = modules._global_forward_hooks, modules._global_forward_pre_hooks
        self._hooks = [hook for pair in (*hooks, of_all) for hook in pair]

    def is_current(self) -> bool:
        """Whether all modules, tensors and attributes are those that were read."""
        owners, names, values = self._watched
        same = list(map(len, self._owners)) == self._sizes
        same = same and all(map(is_, map(dict.get, owners, names), values))
        same = same and list(map(Tensor.data_ptr, self._tensors)) == self._places
        return same and [x._version for x in self._counting] == self._versions

    def needs_modules(self) -> bool:
        """Whether somebody listens to what a module is given or gives, or wants gradients of it."""
        if any(self._hooks):
            return True
        return torch.is_grad_enabled() and any(x.requires_grad for x in self._tensors)

    def _fill(self, layer: c.Layer, module: nn.Module, index: int) -> None:
        config, features, name = self.config, self.config.layers[index], f"layers.{index}"
        if features.experts is not None:
            raise Unsupported(f"layer {index} has several experts")
        H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        C, F = config.hidden_size, config.intermediate_size
        block = check_own(name, module, Block)
        attention = check_own(f"{name}.self_attn", block.self_attn, Attention)
        mlp = check_own(f"{name}.mlp", block.mlp, MLP)
        told = attention.layer, attention.head_dim, attention.query_scale, mlp.gating
        scale = math.sqrt(D / (config.query_pre_attn_scalar or D))
        if told != (features, D, scale, config.activation):
            raise Unsupported(f"{name} is not as the configuration says")
        shapes = (H * D, C), (K * D, C), (K * D, C), (C, H * D), (F, C), (F, C), (C, F)
        for linear, shape in zip(c.Layer.LINEARS, shapes, strict=True):
            owner = mlp if linear in ("gate", "up", "down") else attention
            part = getattr(owner, f"{linear}_proj")
            setattr(layer, linear, self._linear(f"{name}.{linear}_proj", part, shape))
        heads = (H, K) if config.qk_norm == "whole" else (1, 1)
        layer.attention_in = self._norm(block.input_layernorm, C)
        layer.q_norm = self._norm(attention.q_norm, heads[0] * D)
        layer.k_norm = self._norm(attention.k_norm, heads[1] * D)
        layer.attention_out = self._norm(block.post_self_attn_layernorm, C)
        layer.mlp_in = self._norm(block.post_attention_layernorm, C)
        layer.mlp_out = self._norm(block.post_mlp_layernorm, C)
        layer.sight = c.Sight(features.sliding_window or 0, features.sinks)
        layer.rope = -1 if features.rope is None else self.ropes.index(features.rope)

    def _linear(self, name: str, module: nn.Module, shape: tuple[int, int]) -> c.Linear:
        weight = pack(name, module)
        if weight.shape != shape:
            raise Unsupported(f"the weights of {name} are {weight.shape}, not {shape}")
        self._keep.append(weight)
        self.all_coded &= weight.coded
        return c.Linear(weight.handle, self._vector(module.bias, shape[0]))  # type: ignore[arg-type]

    def _norm(self, module: nn.Module, size: int) -> c.Vector:
        if type(module) is Unchanged:
            return c.Vector()
        norm = check_own("a norm", module, RMSNorm)
        if (norm.eps, norm.offset) != (self.config.rms_norm_eps, self.config.norm_offset):
            raise Unsupported("a norm is unlike the model's others")
        return self._vector(norm.weight, size)

    def _vector(self, x: Tensor | None, size: int) -> c.Vector:
        if x is None:
            return c.Vector()
        if x.dtype not in FLOATS or not x.is_contiguous() or x.shape != (size,):
            raise Unsupported(f"a bias or norm is {describe(x)}")
        self._keep.append(x.detach())  # whatever becomes of the parameter, its memory stays
        return c.Vector(x.data_ptr(), FLOATS[x.dtype])

    def _embed(self, model: Transformer) -> torch.dtype:
        """Describe the embedding; returns its dtype, which is that of the results."""
        table: nn.Module = model.embed_tokens
        if type(table) is BlockEmbedding:
            number, _ = BLOCK_KINDS[table.kind]
            shape, data, dtype = table.blocks.shape, table.data.contiguous(), table.dtype
            self._keep.append(data)
            self.struct.embedding_blocks, self.struct.embedding_kind = data.data_ptr(), number
            self.struct.embedding_row_bytes = data.shape[1]
        else:
            exact = check_own("embed_tokens", table, nn.Embedding)
            weight, dtype = pack("embed_tokens", exact), exact.weight.dtype
            self._keep.append(weight)
            self.struct.embedding, shape = weight.handle, weight.shape
        if shape[0] < self.config.vocab_size or shape[1] != self.config.hidden_size:
            raise Unsupported(f"the embedding table is {shape}")
        # Rounded to the dtype, as the modules do.
        self.struct.embedding_scale = torch.tensor(self.config.embedding_scale, dtype=dtype).item()
        return dtype

    def _head(self, model: Transformer) -> products.Weight | None:
        """The packed head; None where the modules have to run it."""
        head: nn.Module = getattr(model, "lm_head", model.embed_tokens)
        biased = getattr(head, "bias", None) is not None
        return None if biased or isinstance(head, BlockEmbedding) else pack("lm_head", head)


Module = TypeVar("Module", bound=nn.Module)


def check_own(name: str, module: nn.Module, *kinds: type[Module]) -> Module:
    """The module, of one of these classes itself; a subclass may compute something else."""
    if type(module) not in kinds or "forward" in vars(module):
        raise Unsupported(f"{name} is a {type(module).__name__} with a forward of its own")
    return cast(Module, module)


def pack(name: str, module: nn.Module) -> products.Weight:
    """The weights of a layer for C++; `Unsupported` for a layer of another kind."""
    check_own(name, module, BlockLinear, QuantizedLinear, nn.Linear, nn.Embedding)
    if isinstance(module, BlockLinear):
        return products.pack_blocks(module.kind, [module.data.contiguous()])
    if isinstance(module, QuantizedLinear):
        C, G = module.in_features, module.scales.shape[1]
        if module.order is not None or C // G % BLOCK:
            raise Unsupported(f"{name} has groups of {C // G} columns or an order of its own")
        if module.kernel is not reference.quantized_linear:
            raise Unsupported(f"the kernel of {name} was replaced")
        groups = products.Groups(module.codes, module.scales, module.zeros)
        return products.pack_groups(module.bits, [groups])
    weight = cast(Tensor, module.weight).detach()
    if weight.dtype not in FLOATS or not weight.is_contiguous():
        raise Unsupported(f"the weights of {name} are {weight.dtype}")
    return products.point_to_floats([weight])


# What every module has.
COMMON = set(vars(nn.Module()))


def _owners(model: nn.Module) -> list[dict[str, Any]]:
    """The dictionaries that hold all that a model is made of, beside what every module has."""
    parts = ((m._modules, m._parameters, m._buffers, vars(m)) for m in model.modules())
    return [owner for four in parts for owner in four]
