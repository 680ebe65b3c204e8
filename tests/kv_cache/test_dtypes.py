"""Keys and values in another dtype than the model's: rounded once, and otherwise the same."""

import pytest
import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.sliding import SlidingKVCache
from minillm.model import Transformer

BASE = ModelConfig(
    vocab_size=31,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    layers=(LayerConfig(),) * 2,
)
# Half a unit in the last place of each type's significand.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 0.0}


def kv(B, T, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, 2, T, 8, generator=generator), torch.randn(B, 2, T, 8)


@pytest.mark.parametrize("window", [None, 4, 64])
@pytest.mark.parametrize("kind", ROUNDING)
def test_stored_in_the_dtype_and_returned_in_the_models(kind, window):
    config = BASE if window is None else BASE.with_window(window, sinks=1)
    cache = new_cache(config, 2, 16, kind=kind)
    exact = new_cache(config, 2, 16)
    assert type(cache) is (DenseKVCache if window is None else SlidingKVCache)
    assert cache.nbytes == exact.nbytes * getattr(torch, kind).itemsize // 4
    # One place for all rows, ragged rows, single tokens, and a chunk longer than the small ring.
    for seed, (counts, T) in enumerate((([3, 3], 3), ([2, 1], 2), ([1, 1], 1), ([6, 4], 6))):
        assert torch.equal(cache.advance(counts, T), exact.advance(counts, T))
        for layer in range(2):
            k, v = kv(2, T, seed)
            found = cache.update(layer, k, v)
            expected = exact.update(layer, k, v)
            for x, y in zip(found[:2], expected[:2], strict=True):
                assert x.dtype == torch.float32
                held = (expected[2] >= 0)[:, None, :, None]
                off = ((x - y).abs() * held).max()
                assert off <= ROUNDING[kind] * y.abs().max()
                if kind != "float32":
                    assert off > 0
            assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_logits_of_a_model(kind):
    torch.manual_seed(0)
    model = Transformer(BASE).eval().requires_grad_(False)
    ids = torch.randint(0, 31, (2, 40), generator=torch.Generator().manual_seed(1))
    exact = model.logits(model(ids, new_cache(BASE, 2, 40)))
    cache = new_cache(BASE, 2, 40, kind=kind)
    parts = [model(chunk, cache) for chunk in (ids[:, :30], *ids[:, 30:].split(1, dim=1))]
    off = (model.logits(torch.cat(parts, dim=1)) - exact).abs().max()
    assert 0 < off <= 4 * ROUNDING[kind] * exact.abs().max()


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'fp8'; known are int8, int4, float16, bfloat16, float32"):
        new_cache(BASE, 1, 8, kind="fp8")
