"""A token's product is the same to the bit alone and among others: with rounded activations the
smallest difference grows, and a text would depend on its neighbours in a batch."""

import numpy as np
import pytest
import torch

from minillm.kernels import cpu
from minillm.kernels.cpu import products
from minillm.quantization.blocks import BLOCK_BYTES
from tests.kernels.test_cpu_products import random_blocks, random_groups

pytestmark = pytest.mark.skipif(cpu.why_not() is not None, reason=f"no library: {cpu.why_not()}")


def weight(kind, N, C):
    rng = np.random.default_rng(C)
    if kind in BLOCK_BYTES:
        return products.pack_blocks(kind, [random_blocks(rng, kind, N, C)[0].data])
    if kind in (4, 8):
        return products.pack_groups(kind, [random_groups(rng, kind, N, C, 32, torch.float16)[0]])
    return products.point_to_floats([torch.tensor(rng.standard_normal((N, C))).to(kind)])


@pytest.mark.parametrize("C", [32, 96, 768, 800, 1536])  # up to 24 blocks at a time, and more
@pytest.mark.parametrize("kind", [*BLOCK_BYTES, 4, 8, torch.float32, torch.bfloat16], ids=str)
def test_a_token_is_the_same_in_any_company(kind, C):
    x, bias = torch.randn(100, C, generator=torch.Generator().manual_seed(0)), torch.randn(33)
    packed, before = weight(kind, 33, C), str(cpu.variant())
    try:
        for name in cpu.variants():
            cpu.use(name)
            whole = products.product(packed, x, bias)
            for first, count in ((0, 1), (3, 2), (99, 1), (4, 5), (9, 8), (17, 13), (60, 40)):
                some = products.product(packed, x[first : first + count].contiguous(), bias)
                assert torch.equal(some, whole[first : first + count]), (name, first, count)
    finally:
        cpu.use(before)
