"""`QuantizedLinear`: the layer it replaces with rounded weights, in any type and place."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minillm.quantization.int4 import Quantized, quantize_groups
from minillm.quantization.linear import QuantizedLinear, put, quantizable


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(N=6, C=64, size=32, bits=4, bias=True, seed=0):
    quantized = quantize_groups(random(N, C, seed=seed), size, bits=bits)
    return QuantizedLinear(quantized, random(N, seed=seed + 1) if bias else None)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
def test_codes_come_back_for_every_width_of_bits_and_shape(bits, N, G, size):
    quantized = quantize_groups(random(N, G * size), size, bits=bits)
    made = QuantizedLinear(quantized)
    back = made.quantized
    assert (back.bits, back.group_size, back.order) == (bits, size, None)
    for a, b in zip(back[:3], quantized[:3], strict=True):
        assert torch.equal(a, b)
    packed = bits <= 4 and G * size % 2 == 0
    assert made.codes.nbytes == N * G * size // (2 if packed else 1)
    assert (made.in_features, made.out_features) == (G * size, N)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("C", [64, 63, 1])
@pytest.mark.parametrize("bits", [2, 4, 5, 8])
def test_equals_a_layer_with_the_rounded_weights(bits, C, bias):
    made, x = layer(C=C, size=-1, bits=bits, bias=bias), random(2, 3, C, seed=9)
    expected = F.linear(x, made.quantized.dequantize(), made.bias)
    torch.testing.assert_close(made(x), expected)


def test_from_linear():
    linear = nn.Linear(64, 6)
    made = QuantizedLinear.from_linear(linear, lambda w: quantize_groups(w, 32, bits=8))
    x = random(4, 64)
    assert float((made(x) - linear(x)).detach().abs().max()) < 0.02
    assert not list(made.parameters())
    assert not made(x).requires_grad
    without = QuantizedLinear.from_linear(nn.Linear(64, 6, bias=False), quantize_groups)
    assert without.bias is None


def test_columns_in_another_order():
    weight, order = random(6, 64), torch.randperm(64, generator=torch.Generator().manual_seed(0))
    plain = quantize_groups(weight[:, order], 32)
    made, x = QuantizedLinear(Quantized(*plain[:4], order)), random(3, 64)
    torch.testing.assert_close(made(x), x @ made.quantized.dequantize().T)
    torch.testing.assert_close(made(x), QuantizedLinear(plain)(x[:, order]))
    assert made.quantized.order is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_inputs_of_another_type(dtype):
    """The bias may stay float32, and the result has the type of x."""
    made, x = layer(), random(4, 64, seed=3).to(dtype)
    found = made(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), made(x.float()), rtol=2e-2, atol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_change_of_type_leaves_the_weights_alone(dtype):
    made = layer()
    moved = copy.deepcopy(made)
    nn.Sequential(nn.Sequential(moved)).to(dtype)
    for a, b in zip(moved.quantized[:3], made.quantized[:3], strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert moved.bias is not None
    assert moved.bias.dtype == dtype
    assert moved(random(2, 64).to(dtype)).dtype == dtype
    torch.testing.assert_close(moved.float()(random(2, 64)), made(random(2, 64)), rtol=0, atol=0.02)


def test_even_when_all_buffers_are_asked_to_change():
    made, x = layer(), random(2, 64)
    assert torch.equal(copy.deepcopy(made).type(torch.float32)(x), made(x))


def test_moves_to_a_device():
    moved = layer().to("meta", torch.bfloat16)
    assert {buffer.device.type for buffer in moved.buffers()} == {"meta"}
    assert moved.scales.dtype == torch.float16
    assert moved.to_empty(device="cpu").scales.device.type == "cpu"


def test_bytes():
    # 6 rows: 32 bytes of codes, 2 groups of 2 + 1 bytes, and a bias of 4.
    assert layer().nbytes == 6 * (32 + 2 * 3 + 4)
    assert layer(bits=8, bias=False).nbytes == 6 * (64 + 2 * 3)
    assert layer(C=63, size=63, bias=False).nbytes == 6 * (63 + 3)


def test_state_and_copies():
    first, second, x = layer(seed=0), layer(seed=5), random(3, 64)
    assert not torch.equal(first(x), second(x))
    twin = copy.deepcopy(second)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert not torch.equal(first(x), twin(x))
    assert set(first.state_dict()) == {"codes", "scales", "zeros", "bias"}


def test_codes_of_a_view_are_stored_in_rows():
    quantized = quantize_groups(random(6, 64), 32, bits=8)
    turned = quantized._replace(codes=quantized.codes.T.contiguous().T)
    assert QuantizedLinear(turned).codes.is_contiguous()


def test_a_kernel_can_be_replaced():
    made, x = layer(), random(2, 64)
    made.kernel = lambda x, *rest: x[..., : rest[-1]]
    assert torch.equal(made(x), x[:, :4])  # the last argument: four bits


@pytest.mark.parametrize(
    ("change", "bias", "message"),
    [
        ({"codes": torch.zeros(64, dtype=torch.uint8)}, None, r"codes \(64,\)"),
        ({"codes": torch.zeros(5, 64, dtype=torch.uint8)}, None, r"codes \(5, 64\)"),
        ({"codes": torch.zeros(6, 63, dtype=torch.uint8)}, None, r"codes \(6, 63\)"),
        ({"zeros": torch.zeros(6, 1, dtype=torch.uint8)}, None, r"zeros \(6, 1\)"),
        ({"codes": torch.full((6, 64), 16, dtype=torch.uint8)}, None, "a code is 16"),
        ({"codes": torch.zeros(6, 64, dtype=torch.int8)}, None, "codes are torch.int8"),
        ({"zeros": torch.zeros(6, 2)}, None, "zeros are torch.float32"),
        ({"bits": 16}, None, "bits is 16"),
        ({}, torch.zeros(5), r"bias has shape \(5,\); \(6,\) is needed"),
    ],
)
def test_what_does_not_belong_together(change, bias, message):
    quantized = quantize_groups(random(6, 64), 32)._replace(**change)
    with pytest.raises(ValueError, match=message):
        QuantizedLinear(quantized, bias)


def test_which_layers_are_quantized():
    model = nn.ModuleDict(
        {
            "lm_head": nn.Linear(4, 4),
            "block": nn.ModuleDict({"up": nn.Linear(4, 4), "norm": nn.LayerNorm(4)}),
        }
    )
    assert list(quantizable(model)) == ["block.up"]
    new = nn.Identity()
    put(model, "block.up", new)
    assert model.get_submodule("block.up") is new
    assert not quantizable(model)
