"""The gated MLP against its formula."""

import torch

from minillm.layers.mlp import MLP, swiglu
from minillm.ops import Ops


def test_swiglu_by_hand():
    # silu(0) = 0; silu(1) = 1 / (1 + 1/e) = 0.731059
    out = swiglu(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 2.0]))
    torch.testing.assert_close(out, torch.tensor([0.0, 1.462117]))


def test_mlp_is_down_of_gated_up():
    mlp = MLP(8, 12, bias=True)
    x = torch.randn(1, 3, 8)
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    expected = mlp.down_proj(gate * torch.sigmoid(gate) * up)
    torch.testing.assert_close(mlp(x, Ops()), expected)


def test_embedding_is_a_one_hot_product():
    from minillm.layers.embedding import embed

    table = torch.randn(7, 3)
    ids = torch.tensor([[0, 6, 6], [2, 1, 0]])
    one_hot = torch.nn.functional.one_hot(ids, 7).float()
    torch.testing.assert_close(embed(ids, table), one_hot @ table)
