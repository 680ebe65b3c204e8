"""How a model says what its weights are stored as."""

import pytest
import torch
from torch import nn

from minillm.quantization.blocks import BlockEmbedding, BlockLinear, Blocks
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.linear import QuantizedLinear
from minillm.quantization.stored import stored_as

WEIGHT = torch.zeros(4, 32)


def coded(bits):
    return QuantizedLinear(quantize_groups(WEIGHT, 32, bits=bits))


def blocks(kind, size):
    return Blocks(kind, torch.zeros(4, size, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([nn.Linear(2, 2)], "float32"),
        ([nn.Linear(2, 2, dtype=torch.bfloat16), nn.LayerNorm(2)], "bfloat16/float32"),
        ([nn.Linear(2, 2).half(), coded(4), coded(4), coded(8)], "INT4/INT8/float16"),
        (
            [
                BlockEmbedding(blocks("Q8_0", 34), torch.float32),
                BlockLinear(blocks("Q4_1", 20)),
                nn.LayerNorm(2),
            ],
            "Q4_1/Q8_0/float32",
        ),
    ],
)
def test_every_form_is_named_once(layers, said):
    assert stored_as(nn.Sequential(*layers)) == said
