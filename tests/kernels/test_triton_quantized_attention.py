"""Attention over a quantized cache in Triton, against attention to what the cache returns."""

import pytest
import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.kernels.triton import CodedTokens
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.layers.attention import attention, attention_mask
from tests.kernels.triton_device import DEVICES, EPS, close, random

from minillm.kernels.triton.quantized_attention import (  # isort: skip - after the skip
    quantized_decode_attention,
)

pytestmark = pytest.mark.parametrize("device", DEVICES)


def config(K, D):
    layer = LayerConfig(rope=None)
    return ModelConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=K,
        num_key_value_heads=K,
        head_dim=D,
        max_position_embeddings=4096,
        layers=(layer, layer),
    )


def filled(lengths, K, D, dtype, device, **options):
    """A cache with so many tokens per row; its storage of layer 1, and what it returns of it."""
    B, capacity = len(lengths), max(*lengths, 1)
    cache = QuantizedKVCache(config(K, D), B, capacity, dtype=dtype, device=device, **options)
    k, v = random(2, B, K, capacity, D, seed=1, dtype=dtype, device=device)
    k[..., 3] += 20  # a channel far from 0, as keys have them
    cache.advance(lengths, capacity)
    cache.update(0, v, k)
    returned = cache.update(1, k, v)
    return coded(cache.keys), coded(cache.values), returned


def coded(store):
    codes, scales, minima = store.blocks
    return CodedTokens(codes[1], scales[1], minima[1], store.open[1])


def expected(q, returned, window=None, sinks=0):
    k, v, k_positions = returned
    lengths = (k_positions >= 0).sum(1)
    mask = attention_mask(lengths[:, None] - 1, k_positions, window, sinks)
    out = attention(q.double().cpu(), k.double().cpu(), v.double().cpu(), mask)
    out[lengths == 0] = 0
    return out.to(q.device)


CASES = [
    (H, K, D, bits, keys_per, torch.float32)
    for H, K, D in ((9, 3, 64), (5, 1, 80), (2, 2, 96), (20, 1, 16))
    for bits in (4, 8)
    for keys_per in ("channel", "token")
]
CASES += [(3, 1, 128, 4, "channel", torch.bfloat16), (3, 1, 128, 8, "channel", torch.float16)]
CASES += [(4, 2, 256, 4, "channel", torch.float16)]


@pytest.mark.parametrize(("H", "K", "D", "bits", "keys_per", "dtype"), CASES, ids=str)
def test_heads_widths_and_codes(H, K, D, bits, keys_per, dtype, device):
    lengths = [0, 1, 31, 32, 33, 100]
    keys, values, returned = filled(lengths, K, D, dtype, device, bits=bits, keys_per=keys_per)
    q = random(len(lengths), H, 1, D, seed=0, dtype=dtype, device=device) / 4
    found = quantized_decode_attention(q, keys, values, torch.tensor(lengths, device=device))
    assert found.dtype == dtype
    close(found, expected(q, returned), 3e-6 if dtype == torch.float32 else 8 * EPS[dtype])


@pytest.mark.parametrize("sinks", [0, 2, 40])
@pytest.mark.parametrize("window", [1, 32, 33, 70])
def test_windows_that_begin_within_a_block(window, sinks, device):
    lengths = [5, 32, 64, 65, 70, 71, 96, 97, 200, 255]
    keys, values, returned = filled(lengths, 1, 16, torch.float32, device, bits=8)
    q = random(len(lengths), 2, 1, 16, seed=0, dtype=torch.float32, device=device)
    whole = torch.tensor(lengths, dtype=torch.int32, device=device)
    whole = whole.repeat_interleave(2)[::2]  # a view
    found = quantized_decode_attention(q, keys, values, whole, window=window, sinks=sinks)
    close(found, expected(q, returned, window, sinks), 3e-6)


def test_3k_context(device):
    keys, values, returned = filled([3000], 1, 64, torch.float32, device, bits=4)
    q = random(1, 3, 1, 64, seed=0, dtype=torch.float32, device=device)
    found = quantized_decode_attention(q, keys, values, torch.tensor([3000], device=device))
    close(found, expected(q, returned), 3e-6)


def test_other_tensors_are_refused(device):
    keys, values, _ = filled([40], 2, 16, torch.float32, device, bits=8)
    q = torch.zeros(1, 4, 1, 16, device=device)
    lengths = torch.tensor([40], device=device)
    other = filled([40], 2, 16, torch.float32, device, bits=4)[1]
    bad = [
        (keys, other, "have to be alike"),
        (keys._replace(newest=keys.newest[:, :1]), values, "and q"),
        (keys._replace(scales=keys.scales[..., :5]), values, "and q"),
        (keys._replace(codes=keys.codes.int()), values, "codes are torch.int32"),
    ]
    for k, v, message in bad:
        with pytest.raises(ValueError, match=message):
            quantized_decode_attention(q, k, v, lengths)
    with pytest.raises(ValueError, match="q has shape"):
        quantized_decode_attention(q[:, :3], keys, values, lengths)
    k, v, _ = filled([40], 2, 256, torch.float32, device, bits=8)
    q = torch.zeros(1, 4, 1, 256, device=device)
    with pytest.raises(ValueError, match="128 is the most"):
        quantized_decode_attention(q, k, v, lengths)
