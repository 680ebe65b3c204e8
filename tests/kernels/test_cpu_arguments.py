"""What Python hands to the C++ kernels is checked first: nothing wrong reaches them."""

import copy
import gc
import pickle
import re

import pytest
import torch

from minillm.kernels import cpu
from minillm.kernels.cpu import products
from minillm.kernels.cpu.products import Groups

pytestmark = pytest.mark.skipif(cpu.why_not() is not None, reason=f"no library: {cpu.why_not()}")


def bytes_(*shape):
    return torch.zeros(shape, dtype=torch.uint8)


def groups(N=4, C=64, G=2, dtype=torch.float16):
    return Groups(bytes_(N, C // 2), torch.ones(N, G, dtype=dtype), bytes_(N, G))


def pack(parts, bits=4, order=None):
    return products.pack_groups(bits, parts, order)


BAD_GROUPS = {
    "codes of 5 bits": lambda: pack([groups()], bits=5),
    "no codes": lambda: pack([]),
    "codes are int8 (4, 32) on cpu": lambda: pack([groups()._replace(codes=bytes_(4, 32).char())]),
    "codes are uint8 (0, 32) on cpu": lambda: pack([groups(N=0)]),
    "codes are uint8 (4, 32) on meta": lambda: pack([Groups(*(x.to("meta") for x in groups()))]),
    "codes (4, 32) are not contiguous": lambda: pack([groups()._replace(codes=bytes_(32, 4).T)]),
    "scales are float64": lambda: pack([groups(dtype=torch.float64)]),
    "2 groups; a group must be": lambda: pack([groups(C=32)]),
    "3 groups; a group must be": lambda: pack([groups(C=64, G=3)]),
    "1 zeros a row, but 2 scales": lambda: pack([groups()._replace(zeros=bytes_(4, 1))]),
    "differ in their numbers of rows": lambda: pack([groups()._replace(zeros=bytes_(3, 2))]),
    "cannot be stacked": lambda: pack([groups(), groups(C=128)]),
    "and bfloat16 (4, 2) on cpu cannot": lambda: pack([groups(), groups(dtype=torch.bfloat16)]),
    "int64 (4,) on cpu is needed": lambda: pack([groups()], order=torch.arange(3)),
    "rows from 0 to 3": lambda: pack([groups()], order=torch.tensor([0, 1, 2, 4])),
    "the order must be contiguous": lambda: pack([groups()], order=torch.arange(8)[::2]),
}


@pytest.mark.parametrize("message", BAD_GROUPS)
def test_groups(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        BAD_GROUPS[message]()


def test_blocks_and_floats():
    with pytest.raises(ValueError, match="kind 'Q5_0'; known are Q4_0, Q4_1, Q8_0"):
        products.pack_blocks("Q5_0", [bytes_(1, 18)])
    with pytest.raises(ValueError, match="rows of 19 bytes; blocks of kind Q4_0 have 18"):
        products.pack_blocks("Q4_0", [bytes_(1, 19)])
    with pytest.raises(ValueError, match=r"blocks are float32 \(1, 18\)"):
        products.pack_blocks("Q4_0", [bytes_(1, 18).float()])
    with pytest.raises(ValueError, match="kind 'Q5_0'"):
        products.dequantize_blocks("Q5_0", bytes_(18))
    with pytest.raises(ValueError, match=r"a row of Q4_0 is uint8 \(17,\)"):
        products.dequantize_blocks("Q4_0", bytes_(17))
    with pytest.raises(ValueError, match=r"weights are float64 \(2, 2\)"):
        products.point_to_floats([torch.ones(2, 2, dtype=torch.float64)])
    assert products.dequantize_blocks("Q4_0", bytes_(0)).shape == (0,)


def test_products():
    weight, x = pack([groups()]), torch.ones(2, 64)
    bad: list[tuple[dict, str]] = [
        ({"x": x[:, :32].contiguous()}, "activations of 32 columns for a weight of 64"),
        ({"x": torch.ones(2, 33)}, "activations of 33 columns; a multiple of 32 is needed"),
        ({"x": torch.ones(64, 2).T}, "contiguous float32 (M, C) is needed"),
        ({"x": x.double()}, "activations are float64 (2, 64)"),
        ({"x": x[0]}, "activations are float32 (64,)"),
        ({"x": x.to("meta")}, "on meta"),
        ({"x": x, "bias": torch.ones(5)}, "the bias is float32 (5,)"),
        ({"x": x, "bias": torch.ones(4).double()}, "the bias is float64 (4,)"),
        ({"x": x, "bias": torch.ones(8)[::2]}, "the bias (4,) is not contiguous"),
        ({"x": x, "rows": (0, 5)}, "rows 0 to 5 of a weight with 4 rows"),
        ({"x": x, "rows": (-1, 2)}, "rows -1 to 2"),
        ({"x": x, "rows": (3, 2)}, "rows 3 to 2"),
    ]
    for arguments, message in bad:
        with pytest.raises(ValueError, match=re.escape(message)):
            products.product(weight, **arguments)
    for n in (-1, 4):
        with pytest.raises(ValueError, match=f"row {n} of a weight with 4 rows"):
            weight.row(n)
    for wrong in (torch.ones(2, 64, dtype=torch.int32), torch.ones(()), x.to("meta")):
        with pytest.raises(ValueError, match="activations are"):
            products.linear(weight, wrong)
    with pytest.raises(ValueError, match="activations of 0 columns"):
        products.quantize_rows(torch.ones(3, 0))


def test_memory_is_held_and_given_back():
    """Floating-point weights stay alive with what points to them; packed ones need no source."""
    data = torch.randn(8, 64)
    weight = products.point_to_floats([data])
    x, expected = torch.randn(1, 64), data.clone()
    del data
    gc.collect()
    torch.testing.assert_close(products.product(weight, x), x @ expected.T)
    assert weight.nbytes == 8 * 8
    packed = pack([groups(N=17)])
    assert packed.nbytes == 2 * (2 * 16 * 3 + 2 * 16 * 16)  # 2 panels of 2 groups: heads and codes
    assert packed.shape == (17, 64)
    packed.__del__()
    packed.handle = None  # given back once, not twice


def test_a_packed_weight_is_not_copied():
    """A copy would free the same memory again."""
    weight = products.point_to_floats([torch.ones(2, 4)])
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="packed weight cannot be copied or pickled"):
            make(weight)
    assert torch.equal(weight.row(1), torch.ones(4))
