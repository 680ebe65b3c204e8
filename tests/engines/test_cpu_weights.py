"""The C++ engine on every kind of weights, against modules whose inputs are rounded alike."""

import copy

import pytest
import torch

from minillm.kv_cache.dense import DenseKVCache
from minillm.quantization.blocks import BLOCK_BYTES
from minillm.quantization.linear import put, quantizable
from tests.engines.cpu_models import (
    TOLERANCE,
    alone,
    assert_rounded_alike,
    needs_library,
    off_by,
    on_blocks,
    on_codes,
    rounding_inputs,
    transformer,
    wide,
)
from tests.engines.cuda_models import MODELS

pytestmark = needs_library

FEATURES = ["llama", "tied head", "biases", "norm of all heads", "gemma", "norms after"]
CODES = {"int4 in 32s": (4, 32), "int8 a row": (8, -1), "int8 in 32s": (8, 32)}


def logits(model, ids):
    """Of a prompt and of four tokens after it."""
    cache = DenseKVCache(model.config, len(ids), ids.shape[1])
    prompt, steps = ids[:, :-4], ids[:, -4:].split(1, dim=1)
    return torch.cat([model.logits(model(step, cache)) for step in (prompt, *steps)], dim=1)


def texts(seed, rows=2, length=14):
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def check(coded, plain, exact, seed):
    """coded by the engine and plain by its modules; exact: the same without rounded inputs."""
    ids = texts(seed)
    found, expected = logits(alone(coded), ids), logits(plain, ids)
    assert_rounded_alike(found, expected, logits(exact, ids))
    # Most rows pass without a single number rounded the other way, and then agree as floats do.
    assert (off_by(found, expected) < TOLERANCE).float().mean() > 0.1


@pytest.mark.parametrize("kind", BLOCK_BYTES)
@pytest.mark.parametrize("name", FEATURES)
@torch.inference_mode()
def test_blocks(name, kind, variant):
    model = on_blocks(wide(name), kind)
    exact = transformer(wide(name))
    for layer, linear in quantizable(exact).items():
        linear.weight.copy_(model.get_submodule(layer).blocks.dequantize())
    exact.embed_tokens.weight.copy_(model.embed_tokens.weight)
    if not model.config.tie_word_embeddings:
        exact.lm_head.weight.copy_(model.lm_head.blocks.dequantize())
    check(model, model, exact, len(name))


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("name", FEATURES)
@torch.inference_mode()
def test_our_codes(name, codes, variant, many_tokens):
    model = on_codes(wide(name), *CODES[codes])
    check(model, rounding_inputs(copy.deepcopy(model)), model, len(name))


@torch.inference_mode()
def test_layers_of_several_kinds_in_one_model(many_tokens):
    """Floats beside codes, and a bias in another dtype."""
    model, floats = on_codes(wide("biases"), 4, 32), transformer(wide("biases"))
    for name in ("layers.0.self_attn.k_proj", "layers.1.mlp.up_proj", "layers.2.mlp.down_proj"):
        put(model, name, floats.get_submodule(name))
    put(
        model,
        "layers.1.self_attn.q_proj",
        on_blocks(wide("biases"), "Q4_1").layers[1].self_attn.q_proj,
    )
    for layer in model.layers:
        layer.self_attn.o_proj.bias = layer.self_attn.o_proj.bias.bfloat16()
    check(model, rounding_inputs(copy.deepcopy(model)), model, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_floats(dtype, variant):
    """A few tokens only: more are left to PyTorch."""
    model = transformer(MODELS["biases"], dtype)
    exact = transformer(MODELS["biases"], dtype).float()
    ids = texts(1, 2, 8)
    assert off_by(logits(alone(model), ids), logits(exact, ids)).max() < max(
        TOLERANCE, 2 * torch.finfo(dtype).eps
    )
    engine = alone(model).engine
    assert engine.forward(texts(1, 2, 5), DenseKVCache(model.config, 2, 9)) is None
    assert engine.logits(torch.zeros(9, 32, dtype=dtype)) is None
    assert engine.logits(torch.zeros(0, 32, dtype=dtype)).shape == (0, 61)


@torch.inference_mode()
def test_logits_of_many_tokens_and_any_shape(variant):
    model = on_blocks(wide("tied head"), "Q8_0")
    hidden = torch.randn(3, 11, 64, generator=torch.Generator().manual_seed(0))
    for x in (hidden, hidden[0, 0], hidden[:, -1], hidden[:, ::2], hidden.bfloat16()):
        found = alone(model).logits(x)
        assert found.dtype == x.dtype
        eps = TOLERANCE if x.dtype == torch.float32 else 2**-7
        assert off_by(found, model.logits(x)).max() < eps
