"""What the C++ engine's tests share: tiny models, and the engine without a way out.

The features that a dense model may have are those of the CUDA engine's tests.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.engines.base import Accelerated
from minillm.engines.cpu import CpuEngine
from minillm.kernels import cpu
from minillm.kernels.reference import dequantize_blocks, quantize_blocks, quantized_linear
from minillm.model import Transformer
from minillm.quantization.blocks import BlockEmbedding, BlockLinear, Blocks
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.weights.gguf_tensor import import_gguf
from tests.engines.cuda_models import MODELS

needs_library = pytest.mark.skipif(bool(cpu.why_not()), reason=str(cpu.why_not()))

# Float32 on both sides, in another order of additions.
TOLERANCE = 1e-5


class Alone(Accelerated):
    """A model that only its engine may run."""

    def forward(self, ids, cache, counts=None, lengths=None):
        hidden = self.engine.forward(ids, cache, counts, lengths)
        assert hidden is not None, "the engine left this step to the modules"
        return hidden

    def logits(self, hidden):
        scores = self.engine.logits(hidden)
        assert scores is not None, "the engine left these logits to the modules"
        return scores


def alone(model: Transformer) -> Any:
    return Alone(model, CpuEngine(model))


def transformer(config: ModelConfig, dtype=torch.float32, seed=0) -> Any:
    """Random weights, large enough for every key to matter."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(config)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        weight.data = noise * 0.3 if "norm" not in name else 1 - config.norm_offset + noise * 0.2
    return model.to(dtype).requires_grad_(False)


def wide(name: str) -> ModelConfig:
    """A model of the list with widths that blocks of 32 columns fit."""
    config = MODELS[name]
    heads = 32 // config.head_dim * 2
    shared = 2 if config.num_key_value_heads > 1 else 1
    return replace(
        config, hidden_size=64, intermediate_size=96, num_attention_heads=heads,
        num_key_value_heads=shared,
    )  # fmt: skip


def blocks(kind: str, weight: Tensor) -> Blocks:
    gguf = import_gguf()
    number = gguf.GGMLQuantizationType[kind]
    return Blocks(kind, torch.from_numpy(gguf.quants.quantize(weight.float().numpy(), number)))


def on_blocks(config: ModelConfig, kind: str) -> Any:
    """A model whose layers, table and head are ggml's blocks."""
    model = transformer(config)
    for name, linear in quantizable(model).items():
        put(model, name, BlockLinear(blocks(kind, linear.weight), linear.bias))
    table = blocks("Q8_0", model.embed_tokens.weight)
    if config.tie_word_embeddings:
        put(model, "lm_head", BlockLinear(table))
    else:
        put(model, "lm_head", BlockLinear(blocks(kind, model.lm_head.weight)))
    put(model, "embed_tokens", BlockEmbedding(table, torch.float32))
    return model


def on_codes(config: ModelConfig, bits: int, group_size: int) -> Any:
    """A model whose layers are our own codes."""
    model = transformer(config)
    for name, linear in quantizable(model).items():
        codes = quantize_groups(linear.weight, group_size, bits=bits, symmetric=group_size == -1)
        put(model, name, QuantizedLinear(codes, linear.bias))
    return model


def rounding_inputs(model: Transformer) -> Any:
    """The same model; what its coded layers are given is rounded to 8 bits, as C++ does."""

    def product(x, *weights):
        return quantized_linear(dequantize_blocks(*quantize_blocks(x)), *weights)

    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            module.kernel = product
    return model


def off_by(found: Tensor, expected: Tensor) -> Tensor:
    """The largest difference at each position, relative to the largest of all numbers."""
    assert found.shape == expected.shape
    return (found.float() - expected.float()).abs().amax(-1) / expected.float().abs().max()


def rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def assert_rounded_alike(found: Tensor, expected: Tensor, exact: Tensor) -> None:
    """Both sides round the same numbers in the same way; `exact` is without that rounding.

    A number close to the middle between two codes may go either way, since the sides add in
    another order, and every later token sees it. Such flips are rare: they move the result by far
    less than rounding itself does, and a wrong formula by more.
    """
    assert found.shape == expected.shape == exact.shape
    assert rms(found - expected) < 0.5 * rms(expected - exact)
