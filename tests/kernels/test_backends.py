"""Every backend's products against float64 arithmetic in numpy, on codes packed here."""

import numpy as np
import pytest
import torch

from minillm.kernels import backends, triton
from minillm.kernels.reference import dequantize, unpack_nibbles

# Tokens (any leading shape), outputs, inputs, group size.
SHAPES = {
    "one token": ((1,), 8, 64, 32),
    "one token, no batch": ((), 8, 64, 64),
    "no token": ((0,), 8, 64, 64),
    "odd outputs": ((3,), 7, 128, 64),
    "one wide group": ((1,), 9, 1300, 1300),
    "one output": ((2, 3), 1, 96, 32),
    "one group": ((4,), 16, 100, 100),
    "groups of 32": ((2, 5), 33, 576, 32),
    "groups of 64": ((2, 5), 33, 576, 64),
    "groups of 128": ((17,), 20, 1536, 128),
    "groups of 2": ((3,), 5, 6, 2),
    "many tokens": ((300,), 24, 64, 32),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# What sums, and in 16 bits weights and results, are rounded to.
EPS = {torch.float32: 2.0**-21, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


@pytest.fixture(params=backends())
def kernels(request):
    on_gpu = request.node.callspec.params["device"] == "cuda"
    if request.param == "triton" and not on_gpu and not triton.interpreted():
        pytest.skip("Triton runs on the GPU here")
    return backends()[request.param]


def case(shape, seed, dtype=torch.float32, bits=4, outliers=False):
    """x, codes, scales, zeros and a bias, as numpy arrays; x is exact in the dtype."""
    leading, N, C, size = SHAPES[shape]
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*leading, C))
    if outliers:
        x[..., :: max(C // 3, 1)] *= 1_000
    x = torch.tensor(x).to(dtype).double().numpy()
    codes = rng.integers(0, 2**bits, (N, C), dtype=np.uint8)
    zeros = rng.integers(0, 2**bits, (N, C // size), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.1, zeros.shape).astype(np.float16)
    return x, codes, scales, zeros, rng.standard_normal(N)


def weights(codes, scales, zeros):
    """What the codes stand for, one by one."""
    size = codes.shape[1] // scales.shape[1]
    group = np.arange(codes.shape[1]) // size
    return (codes.astype(np.int64) - zeros[:, group]) * scales[:, group].astype(np.float64)


def packed(codes, bits):
    """Bytes as the format has them: the even column in the low half."""
    return codes if bits == 8 else codes[:, 0::2] + 16 * codes[:, 1::2]


def distance(found, expected, x, W, dtype):
    """The largest difference, in units of what rounding alone may cause in a sum of products."""
    spread = np.sqrt(x**2 @ (W**2).T)
    allowed = EPS[dtype] * (np.abs(expected) + 2 * spread + 1)
    found = found.double().cpu().numpy()
    assert found.shape == expected.shape
    return (np.abs(found - expected) / allowed).max(initial=0)


def on(device, *arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(EPS), ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_quantized_linear(kernels, shape, bits, dtype, device):
    for seed, outliers in enumerate((False, True)):
        x, codes, scales, zeros, bias = case(shape, seed, dtype, bits, outliers)
        arguments = on(device, x, packed(codes, bits), scales, zeros)
        arguments[0] = arguments[0].to(dtype)
        W = weights(codes, scales, zeros)
        for b in (None, bias):
            tensor = None if b is None else torch.tensor(b, dtype=dtype, device=device)
            found = kernels.quantized_linear(*arguments, tensor, bits)
            expected = x @ W.T + (0 if tensor is None else tensor.double().cpu().numpy())
            assert found.dtype == dtype
            assert distance(found, expected, x, W, dtype) < 4


@pytest.mark.parametrize("fault", ["zero point off by one", "halves of bytes exchanged"])
@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "no token"])
def test_the_tolerance_is_not_too_wide(shape, fault):
    x, codes, scales, zeros, _ = case(shape, 0)
    W = weights(codes, scales, zeros)
    if fault == "zero point off by one":
        wrong = weights(codes, scales, zeros.astype(np.int64) + 1)
    else:
        wrong = weights(codes.reshape(-1, 2)[:, ::-1].reshape(codes.shape), scales, zeros)
    assert distance(torch.tensor(x @ wrong.T), x @ W.T, x, W, torch.float32) > 1_000


def whole_numbers(rng, *shape):
    return rng.integers(-127, 128, shape, dtype=np.int8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_linear(kernels, shape, device):
    leading, N, C, _ = SHAPES[shape]
    rng = np.random.default_rng(0)
    x, w = whole_numbers(rng, *leading, C), whole_numbers(rng, N, C)
    x_scales = rng.uniform(1e-4, 1, (*leading, 1)).astype(np.float32)
    scales = rng.uniform(1e-4, 1, (N, 1)).astype(np.float32)
    bias = rng.standard_normal(N).astype(np.float32)
    sums = x.astype(np.int64) @ w.astype(np.int64).T
    expected = sums * x_scales.astype(np.float64) * scales[:, 0]
    for b in (None, bias):
        found = kernels.int8_linear(
            *on(device, x, x_scales, w, scales), None if b is None else on(device, b)[0]
        )
        assert found.dtype == torch.float32
        np.testing.assert_allclose(
            found.cpu().numpy(), expected if b is None else expected + b, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("device", DEVICES)
def test_int8_sums_are_exact_past_float32(kernels, device):
    """Sums of 2^27 and more, where float32 holds multiples of 16; and the same taken away again."""
    C, rng = 50_000, np.random.default_rng(1)
    x, w = np.abs(whole_numbers(rng, 5, C)), np.abs(whole_numbers(rng, 7, C))
    one = np.ones((7, 1), dtype=np.float32)
    found = kernels.int8_linear(*on(device, x, one[:5].copy(), w, one))
    sums = x.astype(np.int64) @ w.astype(np.int64).T
    assert sums.min() > 2**27
    np.testing.assert_array_equal(found.cpu().numpy(), sums.astype(np.float32))
    x, w = np.hstack([x, x, x[:, :37] * 0 + 1]), np.hstack([w, -w, w[:, :37] * 0 + 1])
    found = kernels.int8_linear(*on(device, x, one[:5].copy(), w, one))
    assert torch.equal(found.cpu(), torch.full((5, 7), 37.0))


def test_dequantize_is_exact():
    """A code of 8 bits times a scale of 11 bits fits in float32's 24."""
    _, codes, scales, zeros, _ = case("groups of 64", 0, bits=8)
    found = dequantize(*on("cpu", codes, scales, zeros))
    np.testing.assert_array_equal(found.double().numpy(), weights(codes, scales, zeros))


def test_views_are_read_as_what_they_show():
    _, codes, scales, zeros, _ = case("groups of 32", 0)
    tensors = on("cpu", codes, scales, zeros)
    turned = [x.T.contiguous().T for x in tensors]
    assert not turned[0].is_contiguous()
    assert torch.equal(dequantize(*turned), dequantize(*tensors))
    low = torch.arange(64, dtype=torch.uint8).reshape(8, 8)
    assert torch.equal(unpack_nibbles(low.T), unpack_nibbles(low.T.contiguous()))


def test_the_reference_is_a_backend():
    assert "reference" in backends()


def test_triton_is_a_backend_where_it_can_run():
    assert ("triton" in backends()) == (triton.why_not() is None)


def test_a_triton_that_is_too_old(monkeypatch):
    pytest.importorskip("triton")
    found = triton.why_not()
    for version in ("2.1.0", "3.3.1", "3.3.1+git12"):
        monkeypatch.setattr("triton.__version__", version)
        assert triton.why_not() == f"triton is {version}; 3.4 is needed"
    for version in ("3.4.0", "3.10.0+git12", "4.0"):
        monkeypatch.setattr("triton.__version__", version)
        assert triton.why_not() == found
