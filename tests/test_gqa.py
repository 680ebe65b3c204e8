"""Fewer or more key/value heads: the order of heads, exact equivalence, shared weights."""

from dataclasses import replace

import pytest
import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.gqa import pool_kv_heads, repeat_kv_heads, to_grouped
from minillm.kv_cache import new_cache
from minillm.model import Transformer

CONFIG = ModelConfig(
    vocab_size=31,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=12,
    num_key_value_heads=6,
    head_dim=8,
    max_position_embeddings=64,
    layers=(LayerConfig(sliding_window=9), LayerConfig()),
    attention_bias=True,
    qk_norm="head",
)
IDS = torch.randint(0, 31, (2, 20), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Transformer(CONFIG).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def logits(model):
    return model.logits(model(IDS, new_cache(model.config, *IDS.shape)))


def heads(*values, width=1):
    """A projection (K·8, width) whose head k holds the k-th value everywhere."""
    return torch.tensor(values, dtype=torch.float32).repeat_interleave(8)[:, None].expand(-1, width)


def read(weight):
    return weight.reshape(-1, 8, *weight.shape[1:])[:, 0, 0].tolist()


@pytest.mark.parametrize(
    ("old", "new", "order"), [(2, 4, [0, 0, 1, 1]), (2, 6, [0, 0, 0, 1, 1, 1]), (1, 3, [0, 0, 0])]
)
def test_m11_repeated_heads_stand_side_by_side(old, new, order):
    assert read(repeat_kv_heads(heads(*range(old)), old, new)) == order


@pytest.mark.parametrize(
    ("new", "means"), [(6, [0, 1, 2, 3, 4, 5]), (3, [0.5, 2.5, 4.5]), (2, [1, 4]), (1, [2.5])]
)
def test_m11_pooled_heads_are_neighbours(new, means):
    assert read(pool_kv_heads(heads(0, 1, 2, 3, 4, 5, width=3), 6, new)) == means


def test_the_rows_inside_a_head_keep_their_order():
    weight = torch.arange(2 * 4 * 3.0).view(8, 3)  # two heads of 4 rows
    torch.testing.assert_close(pool_kv_heads(weight, 2, 1), (weight[:4] + weight[4:]) / 2)
    repeated = repeat_kv_heads(weight, 2, 4)
    assert torch.equal(repeated, torch.cat([weight[:4]] * 2 + [weight[4:]] * 2))
    bias = weight[:, 0]
    torch.testing.assert_close(pool_kv_heads(bias, 2, 1), (bias[:4] + bias[4:]) / 2)
    assert torch.equal(repeat_kv_heads(bias, 2, 4), repeated[:, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_is_taken_in_float32(dtype):
    weight = torch.tensor([[60_000.0], [60_000.0]], dtype=dtype)  # their sum is no float16
    pooled = pool_kv_heads(weight, 2, 1)
    assert pooled.dtype == dtype
    assert torch.equal(pooled, weight[:1])


@pytest.mark.parametrize("K", [1, 2, 3, 6])
def test_pooling_undoes_repeating(K):
    weight = torch.randn(K * 8, 5)
    torch.testing.assert_close(pool_kv_heads(repeat_kv_heads(weight, K, 6), 6, K), weight)


def test_more_heads_compute_exactly_the_same(model):
    assert torch.equal(logits(to_grouped(model, 6)), logits(model))
    mha = to_grouped(model, 12)
    assert mha.config == replace(CONFIG, num_key_value_heads=12)
    torch.testing.assert_close(logits(mha), logits(model))
    for K in (1, 2, 3):
        grouped = to_grouped(model, K)
        torch.testing.assert_close(logits(to_grouped(grouped, 12)), logits(grouped))
        assert float((logits(grouped) - logits(model)).abs().max()) > 0.01


def test_pooling_reduces_the_cache(model):
    for K in (1, 2, 3, 6):
        grouped = to_grouped(model, K)
        assert grouped.config.num_key_value_heads == K
        assert grouped.state_dict()["layers.0.self_attn.k_proj.weight"].shape == (K * 8, 24)
        ratio = new_cache(CONFIG, 1, 20).nbytes / new_cache(grouped.config, 1, 20).nbytes
        assert ratio == 6 / K


def test_equal_heads_can_be_merged_for_free(model):
    """Heads that a group shares already are their own mean: GQA → MHA → GQA is the same model."""
    few = to_grouped(model, 2)
    torch.testing.assert_close(logits(to_grouped(to_grouped(few, 6), 2)), logits(few))


def test_single_layers_can_be_converted(model):
    torch.testing.assert_close(
        logits(to_grouped(model, 2, layers=[0, 1])), logits(to_grouped(model, 2))
    )
    first, second = to_grouped(model, 2, layers=[0]), to_grouped(model, 2, layers=(1,))
    assert first.config == second.config == CONFIG
    untouched = "layers.1.self_attn.k_proj.weight"
    assert torch.equal(first.state_dict()[untouched], model.state_dict()[untouched])
    results = [logits(m) for m in (model, first, second, to_grouped(model, 2))]
    for i, one in enumerate(results):
        assert all(float((one - other).abs().max()) > 0.01 for other in results[:i])
    assert torch.equal(logits(to_grouped(model, 2, layers=[])), logits(model))


def test_all_other_weights_are_shared(model):
    model.ops = replace(model.ops)
    grouped = to_grouped(model, 3)
    changed = {"k_proj", "v_proj"}
    theirs = dict(grouped.named_parameters())
    for name, parameter in model.named_parameters():
        shared = theirs[name].data_ptr() == parameter.data_ptr()
        assert shared != bool(changed & set(name.split(".")))
    assert grouped.ops is model.ops
    assert not grouped.training


def test_what_does_not_divide_is_refused(model):
    for K in (4, 5, 0, -1):
        with pytest.raises(ValueError, match=r"merged|num_key_value_heads"):
            to_grouped(model, K)
    with pytest.raises(ValueError, match="num_key_value_heads 18"):
        to_grouped(model, 18)
    with pytest.raises(ValueError, match="6 heads cannot be merged into 4"):
        pool_kv_heads(torch.zeros(48, 1), 6, 4)
    with pytest.raises(ValueError, match="6 heads cannot be repeated to make 9"):
        repeat_kv_heads(torch.zeros(48, 1), 6, 9)
    for layers in ([2], [-1]):
        with pytest.raises(ValueError, match="layers"):
            to_grouped(model, 2, layers=layers)
