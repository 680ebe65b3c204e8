"""The C++ products, every variant that runs here, against float64 on the rounded codes."""

import numpy as np
import pytest
import torch

from minillm.kernels import cpu, reference
from minillm.kernels.cpu import products
from minillm.kernels.cpu.products import Groups, pack_blocks, pack_groups, point_to_floats
from minillm.quantization.blocks import BLOCK_BYTES, Blocks

pytestmark = pytest.mark.skipif(cpu.why_not() is not None, reason=f"no library: {cpu.why_not()}")
# Numbers of tokens and of outputs around the sizes that the kernels work in; inputs, group size.
TOKENS = (0, 1, 2, 3, 7, 8, 9, 33, 257)
OUTPUTS = (1, 2, 7, 31, 33, 48)
GROUPS = ((32, 32), (64, 32), (96, 96), (576, 64), (1536, 128), (1536, 1536))
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# Sums of float32 over up to 48 blocks, relative to the sum of the terms' sizes.
TOLERANCE = 2e-6


def random_groups(rng, bits, N, C, size, dtype):
    """Groups, and what they stand for: (N, C), float64."""
    codes = rng.integers(0, 2**bits, (N, C), dtype=np.uint8)
    zeros = rng.integers(0, 2**bits, (N, C // size), dtype=np.uint8)
    scales = torch.tensor(rng.uniform(0.001, 0.1, zeros.shape)).to(dtype)
    packed = codes if bits == 8 else codes[:, 0::2] + 16 * codes[:, 1::2]
    spread = np.arange(C) // size
    values = (codes.astype(int) - zeros[:, spread]) * scales.double().numpy()[:, spread]
    return Groups(torch.tensor(packed), scales, torch.tensor(zeros)), values


def random_blocks(rng, kind, N, C):
    """Blocks of finite float16 scales, and what they stand for."""
    data = rng.integers(0, 256, (N, C // 32, BLOCK_BYTES[kind]), dtype=np.uint8)
    heads = 2 if kind == "Q4_1" else 1
    values = rng.normal(0, 0.05, (N, C // 32, heads)).astype(np.float16)
    data[..., : 2 * heads] = values.view(np.uint8)
    blocks = Blocks(kind, torch.tensor(data.reshape(N, -1)))
    return blocks, block_values(kind, data).reshape(N, C)


def block_values(kind, data):
    """The format's definition, in float64."""
    scale = data[..., :2].copy().view(np.float16).astype(float)
    if kind == "Q8_0":
        return data[..., 2:].view(np.int8) * scale
    codes = np.concatenate([data[..., -16:] & 15, data[..., -16:] >> 4], axis=-1)
    if kind == "Q4_0":
        return (codes - 8.0) * scale
    return codes * scale + data[..., 2:4].copy().view(np.float16).astype(float)


def rounded(x):
    """What the kernels multiply, in float64."""
    return reference.dequantize_blocks(*reference.quantize_blocks(x)).double().numpy()


def distance(y, x, W):
    """The largest error, relative to the sizes of the terms."""
    if y.numel() == 0:
        return 0.0
    x = rounded(x)
    sizes = np.abs(x) @ np.abs(W).T + 1e-30
    return float((np.abs(y.double().numpy() - x @ W.T) / sizes).max())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("C", "size"), GROUPS)
def test_groups(variant, bits, C, size):
    rng = np.random.default_rng(C + bits)
    for i, N in enumerate(OUTPUTS):
        parts, W = random_groups(rng, bits, N, C, size, list(DTYPES.values())[i % 3])
        weight = pack_groups(bits, [parts])
        exact = torch.stack([weight.row(n) for n in range(N)])
        np.testing.assert_array_equal(exact.numpy(), W.astype(np.float32))
        for M in TOKENS:
            x = torch.tensor(rng.standard_normal((M, C)), dtype=torch.float32)
            assert distance(products.product(weight, x), x, W) < TOLERANCE, (M, N)


@pytest.mark.parametrize("kind", BLOCK_BYTES)
@pytest.mark.parametrize("C", [32, 96, 1536])
def test_blocks(variant, kind, C):
    rng = np.random.default_rng(C)
    for N in OUTPUTS:
        blocks, W = random_blocks(rng, kind, N, C)
        weight = pack_blocks(kind, [blocks.data])
        exact = torch.stack([weight.row(n) for n in range(N)])
        assert torch.equal(exact, blocks.dequantize())
        for n in range(N):
            assert torch.equal(products.dequantize_blocks(kind, blocks.data[n]), exact[n])
        for M in TOKENS:
            x = torch.tensor(rng.standard_normal((M, C)), dtype=torch.float32)
            assert distance(products.product(weight, x), x, W) < TOLERANCE, (M, N)


def test_the_tolerance_is_not_too_wide():
    rng = np.random.default_rng(0)
    parts, W = random_groups(rng, 4, 33, 1536, 128, torch.float32)
    x = torch.randn(9, 1536)
    y = products.product(pack_groups(4, [parts]), x)
    codes, scales = reference.quantize_blocks(x)
    for wrong in (
        W + parts.scales.double().repeat_interleave(128, 1).numpy(),  # zero points off by one
        W.reshape(-1, 2)[:, ::-1].reshape(W.shape),  # halves of bytes exchanged
    ):
        assert distance(y, x, wrong) > 100 * TOLERANCE
    codes[0, 0] += 1  # one activation rounded the other way
    moved = reference.dequantize_blocks(codes, scales).double().numpy() @ W.T
    assert np.abs(moved[0] - y[0].numpy()).max() > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_are_read_in_place(variant, dtype):
    rng = np.random.default_rng(0)
    for N, C in ((1, 1), (7, 5), (33, 100), (48, 576)):
        parts = [torch.tensor(rng.standard_normal((n, C))).to(DTYPES[dtype]) for n in (N, 2)]
        weight = point_to_floats(parts)
        W = torch.cat(parts).double()
        assert torch.equal(weight.row(N), parts[1][0].float())
        x, bias = torch.randn(3, C), torch.randn(N + 2)
        y = products.linear(weight, x, bias)
        sizes = x.double().abs() @ W.abs().T + bias.abs()
        assert ((y - (x.double() @ W.T + bias)).abs() / sizes).max() < TOLERANCE
        parts[1][0] = 0
        assert torch.equal(products.linear(weight, x)[:, N], torch.zeros(3))


@pytest.mark.parametrize("M", [1, 9, 100])
def test_ranges_of_rows(variant, M):
    """Any range gives the same rows, and touches no other."""
    rng = np.random.default_rng(M)
    parts, _ = random_groups(rng, 4, 50, 96, 32, torch.float16)
    floats = torch.randn(50, 96)
    x, bias = torch.randn(M, 96), torch.randn(50)
    for weight in (pack_groups(4, [parts]), point_to_floats([floats])):
        whole = products.product(weight, x, bias)
        for first, last in ((0, 50), (0, 1), (15, 16), (16, 17), (5, 40), (49, 50), (20, 20)):
            some = products.product(weight, x, bias, rows=(first, last))
            assert torch.equal(some[:, first:last], whole[:, first:last])
            assert some[:, :first].isnan().all()
            assert some[:, last:].isnan().all()


def test_stacked_and_ordered():
    rng = np.random.default_rng(0)
    x = torch.randn(3, 64)
    alone = [random_groups(rng, 8, N, 64, 32, torch.float16)[0] for N in (7, 33, 16)]
    order = torch.randperm(56)
    apart = torch.cat([products.product(pack_groups(8, [part]), x) for part in alone], dim=1)
    assert torch.equal(products.product(pack_groups(8, alone), x), apart)
    assert torch.equal(products.product(pack_groups(8, alone, order), x), apart[:, order])
    blocks = [random_blocks(rng, "Q4_1", N, 64)[0].data for N in (7, 33, 16)]
    apart = torch.cat([products.product(pack_blocks("Q4_1", [b]), x) for b in blocks], dim=1)
    assert torch.equal(products.product(pack_blocks("Q4_1", blocks, order), x), apart[:, order])
    floats = [torch.randn(N, 64) for N in (7, 33, 16)]
    apart = torch.cat([x @ w.T for w in floats], dim=1)[:, order]
    torch.testing.assert_close(products.product(point_to_floats(floats, order), x), apart)


def test_variants_agree():
    rng = np.random.default_rng(0)
    parts, W = random_groups(rng, 4, 48, 576, 64, torch.float16)
    weight, before = pack_groups(4, [parts]), str(cpu.variant())
    for M in (1, 8, 100):
        x = torch.randn(M, 576)
        found = {}
        for name in cpu.variants():
            cpu.use(name)
            found[name] = products.linear(weight, x)
        cpu.use(before)
        sizes = np.abs(rounded(x)) @ np.abs(W).T
        for y in found.values():
            assert (np.abs((y - found["portable"]).numpy()) / sizes).max() < TOLERANCE


@pytest.mark.parametrize("M", [1, 9, 100])
@pytest.mark.parametrize("kind", BLOCK_BYTES)
def test_extreme_scales(variant, kind, M):
    """The least and the largest numbers of float16, and rows that are zero."""
    rng = np.random.default_rng(0)
    blocks, _ = random_blocks(rng, kind, 20, 64)
    data = blocks.data.numpy().reshape(20, 2, -1)
    heads = np.array([2**-24, -(2**-24), 65504, -65504, 0, -0.0], dtype=np.float16)
    data[:6, :, :2] = heads.view(np.uint8).reshape(6, 1, 2)
    if kind == "Q4_1":
        data[:6, :, 2:4] = heads[::-1].copy().view(np.uint8).reshape(6, 1, 2)
    data[6] = 0
    W = block_values(kind, data).reshape(20, 64)
    x = torch.tensor(rng.standard_normal((M, 64)), dtype=torch.float32)
    weight = pack_blocks(kind, [torch.tensor(data.reshape(20, -1))])
    y = products.product(weight, x)
    assert distance(y, x, W) < TOLERANCE
    assert torch.equal(y[:, 6], torch.zeros(M))


@pytest.mark.parametrize("M", [1, 9, 100])
def test_what_is_not_finite_shows(variant, M):
    rng = np.random.default_rng(0)
    for bits in (4, 8):
        parts, W = random_groups(rng, bits, 17, 96, 32, torch.float32)
        weight, clean = pack_groups(bits, [parts]), torch.randn(M, 96)
        for value in (float("nan"), float("inf"), -float("inf")):
            x = clean.clone()
            x[M // 2, 40] = value
            y = products.linear(weight, x)
            assert y[M // 2].isnan().all()
            others = torch.arange(M) != M // 2
            assert distance(y[others], clean[others], W) < TOLERANCE


def test_rounding_is_the_references(variant):
    """To the bit: halves, the largest, subnormal numbers, zeros, and what is not finite."""
    x = torch.randn(64, 96) * torch.logspace(-38, 38, 64)[:, None]
    x[0] = 0
    x[1, ::7] = 0
    x[2] = torch.arange(96) / 2 - 24  # codes n + 1/2: the scale of the middle block is not whole
    x[3, :32] = torch.linspace(-127, 127, 32).round() + 0.5
    x[3, 0] = 127.0
    x[4] = 1e-45
    x[5, 33], x[6, 3], x[7, 70] = float("nan"), float("inf"), -float("inf")
    codes, scales, sums = products.quantize_rows(x)
    expected, expected_scales = reference.quantize_blocks(x)
    assert torch.equal(codes, expected)
    torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(sums, expected.int().view(64, 3, 32).sum(-1, dtype=torch.int32))


def test_linear_keeps_shape_and_dtype(variant):
    rng = np.random.default_rng(0)
    parts, W = random_groups(rng, 4, 20, 64, 64, torch.float16)
    weight = pack_groups(4, [parts])
    for shape in ((64,), (1, 64), (2, 3, 64), (0, 64), (2, 0, 64)):
        for dtype, tolerance in ((torch.float32, TOLERANCE), (torch.bfloat16, 2.0**-8)):
            x = torch.randn(shape).to(dtype)
            y = products.linear(weight, x)
            assert y.dtype == dtype
            assert y.shape == (*shape[:-1], 20)
            assert distance(y.reshape(-1, 20), x.reshape(-1, 64).float(), W) < tolerance
    turned = torch.randn(64, 5).T
    assert torch.equal(products.linear(weight, turned), products.linear(weight, turned.clone()))
