"""Layers on ggml's blocks, against the `gguf` package and against float64 arithmetic."""

import numpy as np
import pytest
import torch

from minillm.kernels.reference import dequantize_blocks, quantize_blocks
from minillm.quantization import blocks as module
from minillm.quantization.blocks import BLOCK_BYTES, BlockEmbedding, BlockLinear, Blocks
from minillm.weights.gguf_tensor import import_gguf

KINDS = list(BLOCK_BYTES)


def blocks(kind, N, C, seed=0):
    """Blocks that the `gguf` package has quantized, and the values that it says they hold."""
    gguf = import_gguf()
    number = gguf.GGMLQuantizationType[kind]
    x = np.random.default_rng(seed).standard_normal((N, C)).astype(np.float32)
    data = gguf.quants.quantize(x, number)
    return Blocks(kind, torch.from_numpy(data)), torch.from_numpy(
        gguf.quants.dequantize(data, number)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("N", "C"), [(1, 32), (7, 96), (48, 576)])
def test_values_are_those_of_the_gguf_package(kind, N, C):
    found, values = blocks(kind, N, C)
    assert found.shape == (N, C)
    assert torch.equal(found.dequantize(), values)
    codes, scales, minima = found.parts()
    assert codes.shape == (N, C)
    assert scales.shape == minima.shape == (N, C // 32)
    for part, rows in zip(found.split([N - 1, 1]) if N > 1 else [found], (0, N - 1), strict=False):
        assert torch.equal(part.dequantize(), values[rows : rows + part.shape[0]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 6, 12])
def test_a_tall_matrix_is_worked_out_in_parts(kind, rows, monkeypatch):
    monkeypatch.setattr(module, "ROWS", rows)
    found, values = blocks(kind, 12, 64)
    assert torch.equal(found.dequantize(), values)
    x = torch.randn(2, 3, 64)
    expected = torch.nn.functional.linear(dequantize_blocks(*quantize_blocks(x)), values)
    torch.testing.assert_close(BlockLinear(found)(x), expected)


def test_one_block_by_hand():
    scale, low = np.array([0.5, -1.0], np.float16).view(np.uint8).reshape(2, 2)
    # Value i in the low half of byte i, value i + 16 in the high half: here i, and 15 - i.
    packed = np.array([i + 16 * (15 - i) for i in range(16)], np.uint8)
    found = Blocks("Q4_1", torch.from_numpy(np.concatenate([scale, low, packed])[None]))
    expected = [0.5 * i - 1 for i in range(16)] + [0.5 * (15 - i) - 1 for i in range(16)]
    assert found.dequantize().tolist() == [expected]
    found = Blocks("Q4_0", torch.from_numpy(np.concatenate([scale, packed])[None]))
    assert found.dequantize()[0, :3].tolist() == [-4.0, -3.5, -3.0]


def test_activations_are_rounded_32_at_a_time():
    x = torch.zeros(2, 64)
    x[0, :3] = torch.tensor([127.0, 0.5, 1.5])  # halves to even: 0 and 2
    x[0, 32:] = -1e-3
    x[1, 40] = 5.0
    codes, scales = quantize_blocks(x)
    assert codes.dtype == torch.int8
    assert codes[0, :4].tolist() == [127, 0, 2, 0]
    assert codes[0, 32:].tolist() == [-127] * 32
    assert codes[1].tolist() == [0] * 40 + [127] + [0] * 23
    assert scales[0, 0] == 1
    assert scales[1, 0] == 0
    assert torch.allclose(dequantize_blocks(codes, scales)[1], x[1])


@pytest.mark.parametrize("seed", range(3))
def test_rounding_is_off_by_half_a_scale_at_most(seed):
    x = torch.randn(5, 3, 96, generator=torch.Generator().manual_seed(seed)) * 10.0 ** (seed - 1)
    codes, scales = quantize_blocks(x)
    off = (dequantize_blocks(codes, scales) - x).abs().view(5, 3, 3, 32)
    assert (off <= scales[..., None] * 0.5001).all()
    assert codes.view(5, 3, 3, 32).abs().amax(-1).eq(127).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_shows_in_the_result(value):
    x = torch.ones(2, 64)
    x[0, 5] = value
    layer = BlockLinear(blocks("Q8_0", 4, 64)[0])
    y = layer(x)
    assert not y[0].isfinite().any()
    assert y[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_multiplies_rounded_inputs(kind, dtype):
    weight, values = blocks(kind, 33, 96)
    bias = torch.randn(33, generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, 3, 96, generator=torch.Generator().manual_seed(2)).to(dtype)
    y = BlockLinear(weight, bias)(x)
    assert y.dtype == dtype
    codes, scales = (part.double() for part in quantize_blocks(x))
    rounded = (codes.view(2, 3, 3, 32) * scales[..., None]).view(2, 3, 96)
    expected = rounded @ values.double().T + bias.double()
    close = 1e-5 if dtype == torch.float32 else 2.0**-8
    assert ((y.double() - expected).abs() <= close * (1 + expected.abs())).all()


def test_modules_move_without_a_change_of_their_codes():
    weight, values = blocks("Q4_1", 8, 64)
    layer = BlockLinear(weight, torch.ones(8)).to(torch.bfloat16)
    assert layer.get_buffer("bias").dtype == torch.bfloat16
    assert torch.equal(layer.blocks.dequantize(), values)
    table = BlockEmbedding(weight, torch.bfloat16)
    assert torch.equal(table.weight, values.to(torch.bfloat16))
    assert (table.num_embeddings, table.embedding_dim) == (8, 64)
