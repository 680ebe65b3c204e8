"""A model's weights as the C++ engine reads them: packed once, or where they are."""

import math
from collections.abc import Iterator, Mapping
from operator import getitem, is_
from typing import Any

import torch
from torch import Tensor, nn

from minillm.config import RopeConfig
from minillm.engines import cpu_structs as c
from minillm.engines.base import Unsupported
from minillm.kernels import reference
from minillm.kernels.cpu import products
from minillm.kernels.cpu.checks import BLOCK, FLOATS
from minillm.kernels.cpu.products import BLOCK_KINDS
from minillm.layers.mlp import MLP
from minillm.layers.norm import RMSNorm, Unchanged
from minillm.model import Block, Transformer
from minillm.quantization.blocks import BlockEmbedding, BlockLinear
from minillm.quantization.linear import QuantizedLinear

MAX_HEAD = 512  # D at most, as attention.h has it


class CpuModel:
    """The weights of a `Transformer`, in step.h's structs.

    Codes are copied into an order that is fast to read. Weights in floating point, norms and biases
    stay where they are, so that a change in place is seen. `is_current` tells whether a module, a
    tensor or its memory was replaced since.
    Raises `Unsupported` for what the engine cannot run.
    """

    def __init__(self, model: Transformer) -> None:
        config, D = model.config, model.config.head_dim
        if D > MAX_HEAD:
            raise Unsupported(f"head_dim is {D}; at most {MAX_HEAD} is possible")
        self.config, self._keep = config, list[object]()  # what C++ points at must stay
        self.ropes: list[RopeConfig] = list(dict.fromkeys(x.rope for x in config.layers if x.rope))
        self.all_coded = True
        self.has_sinks = any(layer.sinks for layer in config.layers)
        layers = (c.Layer * config.num_hidden_layers)()
        for index, (layer, block) in enumerate(zip(layers, model.layers, strict=True)):
            assert isinstance(block, Block)
            self._fill(layer, block, index)
        self.struct = c.Model(
            layers=layers,
            num_layers=config.num_hidden_layers,
            H=config.num_attention_heads,
            K=config.num_key_value_heads,
            D=D,
            C=config.hidden_size,
            F=config.intermediate_size,
            norm=self._norm(model.norm),
            gelu=config.activation == "geglu",
            whole_norm=config.qk_norm == "whole",
            eps=config.rms_norm_eps,
            norm_offset=config.norm_offset,
            query_scale=1 / math.sqrt(config.query_pre_attn_scalar or D),
        )
        self.dtype = self._embed(model)
        self.head = self._head(model)
        self._watched = list(zip(*_parts(model), strict=True))
        self._tensors = [x for x in self._watched[2] if isinstance(x, Tensor)]
        self._places = [x.data_ptr() for x in self._tensors]
        hooks = ((m._forward_hooks, m._forward_pre_hooks) for m in model.modules())
        self._hooks = [hook for pair in hooks for hook in pair]

    def is_current(self) -> bool:
        """Whether all modules and tensors are those that were read."""
        owners, names, values = self._watched
        same = all(map(is_, map(getitem, owners, names), values))
        return same and list(map(Tensor.data_ptr, self._tensors)) == self._places

    def is_hooked(self) -> bool:
        """Whether somebody listens to what a module is given or gives."""
        return any(self._hooks)

    def _fill(self, layer: c.Layer, block: Block, index: int) -> None:
        config, attention, mlp = self.config, block.self_attn, block.mlp
        if not isinstance(mlp, MLP):
            raise Unsupported(f"layer {index} has several experts")
        for name in c.Layer.LINEARS:
            owner = mlp if name in ("gate", "up", "down") else attention
            setattr(layer, name, self._linear(f"layers.{index}", getattr(owner, f"{name}_proj")))
        layer.attention_in = self._norm(block.input_layernorm)
        layer.q_norm, layer.k_norm = self._norm(attention.q_norm), self._norm(attention.k_norm)
        layer.attention_out = self._norm(block.post_self_attn_layernorm)
        layer.mlp_in = self._norm(block.post_attention_layernorm)
        layer.mlp_out = self._norm(block.post_mlp_layernorm)
        features = config.layers[index]
        layer.sight = c.Sight(features.sliding_window or 0, features.sinks)
        layer.rope = -1 if features.rope is None else self.ropes.index(features.rope)

    def _linear(self, name: str, module: nn.Module) -> c.Linear:
        weight = pack(name, module)
        self._keep.append(weight)
        self.all_coded &= weight.coded
        return c.Linear(weight.handle, self._vector(module.bias))  # type: ignore[arg-type]

    def _norm(self, module: nn.Module) -> c.Vector:
        if isinstance(module, Unchanged):
            return c.Vector()
        ours = self.config.rms_norm_eps, self.config.norm_offset
        if not isinstance(module, RMSNorm) or (module.eps, module.offset) != ours:
            raise Unsupported(f"a norm is {module!r}, unlike the model's others")
        return self._vector(module.weight)

    def _vector(self, x: Tensor | None) -> c.Vector:
        if x is None:
            return c.Vector()
        if x.dtype not in FLOATS or not x.is_contiguous() or x.device.type != "cpu":
            raise Unsupported(f"a bias or norm is {x.dtype} on {x.device}")
        self._keep.append(x.detach())  # whatever becomes of the parameter, its memory stays
        return c.Vector(x.data_ptr(), FLOATS[x.dtype])

    def _embed(self, model: Transformer) -> torch.dtype:
        """Describe the embedding; returns its dtype, which is that of the results."""
        table: nn.Module = model.embed_tokens
        if isinstance(table, BlockEmbedding):
            number, _ = BLOCK_KINDS[table.kind]
            data = table.data.contiguous()
            self._keep.append(data)
            self.struct.embedding_blocks, self.struct.embedding_kind = data.data_ptr(), number
            self.struct.embedding_row_bytes, dtype = data.shape[1], table.dtype
        elif isinstance(table, nn.Embedding):
            weight = pack("embed_tokens", table)
            self._keep.append(weight)
            self.struct.embedding, dtype = weight.handle, table.weight.dtype
        else:
            raise Unsupported(f"embed_tokens is a {type(table).__name__}")
        # Rounded to the dtype, as the modules do.
        self.struct.embedding_scale = torch.tensor(self.config.embedding_scale, dtype=dtype).item()
        return dtype

    def _head(self, model: Transformer) -> products.Weight | None:
        """The packed head; None where the modules have to run it."""
        head: nn.Module = getattr(model, "lm_head", model.embed_tokens)
        biased = getattr(head, "bias", None) is not None
        return None if biased or isinstance(head, BlockEmbedding) else pack("lm_head", head)


def pack(name: str, module: nn.Module) -> products.Weight:
    """The weights of a layer for C++; `Unsupported` for a layer of another kind."""
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
    if isinstance(module, nn.Linear | nn.Embedding):
        weight = module.weight.detach()
        if weight.dtype not in FLOATS or not weight.is_contiguous():
            raise Unsupported(f"the weights of {name} are {weight.dtype}")
        return products.point_to_floats([weight])
    raise Unsupported(f"{name} has a {type(module).__name__}")


def _parts(model: nn.Module) -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """All that a model is made of: the dictionary that holds it, its name there, and itself."""
    for module in model.modules():
        for owner in (module._modules, module._parameters, module._buffers):
            for name, part in owner.items():
                yield owner, name, part
        if isinstance(module, QuantizedLinear):
            yield module.__dict__, "kernel", module.kernel
