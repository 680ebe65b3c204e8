"""Every launch can be recorded as a CUDA graph, and replayed on other values.

Without a GPU there is nothing to record: the same calls are made again.
"""

from collections.abc import Callable

import pytest
import torch

from minillm.config import RopeConfig
from minillm.layers.rope import rope_tables
from minillm.quantization.int4 import pack_nibbles, quantize_groups
from tests.kernels.triton_device import DEVICES, close, random

from minillm.kernels.triton import attention, cache, linear, mlp, norm, sampling  # isort: skip

pytestmark = pytest.mark.parametrize("device", DEVICES)


def recorded(call: Callable[[], torch.Tensor], device: str) -> Callable[[], torch.Tensor]:
    """A function that repeats this call, by a graph where there is a GPU."""
    if device == "cpu":
        return call
    call()  # compiles and tunes, which a recording must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return out.clone()

    return replay


def test_attention_at_any_position(device):
    """One step of a layer: positions and lengths are read when it is replayed."""
    H, K, D, capacity = 6, 2, 64, 96
    heads = random(2, H + 2 * K, 1, D, seed=0, dtype=torch.float32, device=device)
    tables = rope_tables(torch.arange(capacity)[None], RopeConfig(), D)
    cos, sin = (x[0, 0].to(device) for x in tables)
    keys, values = random(2, 2, K, capacity, D, seed=1, dtype=torch.float32, device=device)
    positions = torch.zeros(2, 1, dtype=torch.int64, device=device)

    def step() -> torch.Tensor:
        q, k, v = heads.split([H, K, K], dim=1)
        q = cache.rope_and_cache(q, k, v, cos, sin, keys, values, positions)
        return attention.decode_attention(q, keys, values, positions[:, 0] + 1)

    replay = recorded(step, device)
    for first in (0, 1, 31, 64, 95):
        positions.copy_(torch.tensor([[first], [first // 2]]))
        heads.copy_(random(*heads.shape, seed=first, dtype=torch.float32, device=device))
        found = replay()
        close(found, step(), 1e-6)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_products_and_norms(bits, tokens, device):
    x = random(tokens, 128, seed=0, dtype=torch.float32, device=device)
    weight = random(256, 128, seed=1, dtype=torch.float32, device="cpu")
    codes, scales, zeros, *_ = quantize_groups(weight, 64, bits=bits)
    packed = (pack_nibbles(codes) if bits == 4 else codes).to(device)
    parts = packed, scales.to(device), zeros.to(device)
    one = torch.ones(128, device=device)

    def step() -> torch.Tensor:
        normed, total = norm.add_rms_norm(x, x, one, 1e-5)
        gated = mlp.swiglu(linear.quantized_linear(normed, *parts, None, bits))
        return norm.rms_norm(gated + total, one, 1e-5)

    replay = recorded(step, device)
    for seed in (2, 3):
        x.copy_(random(tokens, 128, seed=seed, dtype=torch.float32, device=device))
        found = replay()
        close(found, step(), 1e-6)


def test_sampling(device):
    logits = random(2, 1000, seed=0, dtype=torch.float32, device=device)
    real = torch.tensor([[0.0, 1.0], [0.9, 1.0], [0.0, 0.05]], device=device)
    top_k, seeds = torch.tensor([0, 50], device=device), torch.tensor([3, 4], device=device)
    steps = torch.zeros(2, dtype=torch.int64, device=device)

    def step() -> torch.Tensor:
        return sampling.sample(logits, real[0], top_k, real[1], real[2], seeds, steps)

    replay = recorded(step, device)
    drawn = []
    for number in range(8):
        steps.fill_(number)
        drawn.append(replay().tolist())
        assert drawn[-1] == step().tolist()
    assert {first for first, _ in drawn} == {int(logits[0].argmax())}
    assert len({second for _, second in drawn}) > 3
