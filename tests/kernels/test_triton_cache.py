"""RoPE with the cache write in Triton against `apply_rope` and the caches' own `update`."""

from typing import Any

import pytest
import torch

from minillm.config import RopeConfig
from minillm.kv_cache.sliding import ring_place as reference_place
from minillm.layers.rope import apply_rope, rope_tables
from tests.kernels.triton_device import DEVICES, DTYPES, EPS, close, random

from minillm.kernels.triton.cache import rope_and_cache  # isort: skip - after the skip

pytestmark = pytest.mark.parametrize("device", DEVICES)
# B, H, K, T, D, rotated values of a head.
CASES = {
    "one token": (1, 9, 3, 1, 64, 64),
    "one key head": (2, 5, 1, 1, 80, 80),
    "partly turned": (2, 4, 2, 1, 80, 32),
    "not turned": (1, 4, 4, 1, 96, 0),
    "a pair": (3, 2, 1, 1, 128, 2),
    "chunk": (2, 6, 2, 7, 256, 256),
}
CAPACITY = 40


def inputs(case, dtype, device) -> Any:
    """q, k, v as views of one product, tables of all positions, and the cache, with old content."""
    B, H, K, T, D, R = CASES[case]
    fused = random(B, T, (H + 2 * K) * D, seed=0, dtype=dtype, device=device)
    heads = fused.view(B, T, H + 2 * K, D).transpose(1, 2)
    tables: list[torch.Tensor | None] = [None, None]
    if R:
        angles = rope_tables(torch.arange(CAPACITY)[None], RopeConfig(), R)
        tables = [x[0, 0].to(device) for x in angles]
    storage = random(2, B, K, CAPACITY, D, seed=1, dtype=dtype, device=device)
    q, k, v = heads.split([H, K, K], dim=1)
    return (q, k, v), *tables, *storage


def expected(heads, cos, sin, keys, values, positions, place):
    """The same, token by token."""
    q, k, v = heads
    keys, values = keys.clone(), values.clone()
    turned = torch.zeros(q.shape, dtype=q.dtype)
    for row, t in ((positions >= 0).nonzero()).tolist():
        p = int(positions[row, t])
        now = slice(t, t + 1)
        qt, kt = q[row : row + 1, :, now].cpu(), k[row : row + 1, :, now].cpu()
        if cos is not None:
            angles = cos[p].cpu(), sin[p].cpu()
            qt, kt = apply_rope(qt, *angles), apply_rope(kt, *angles)
        turned[row, :, t] = qt[0, :, 0]
        keys[row, :, place(p)] = kt[0, :, 0].to(keys)
        values[row, :, place(p)] = v[row, :, t].to(values)
    return turned.to(q.device), keys, values


def run(heads, *others):
    q, k, v = heads
    return rope_and_cache(q, k, v, *others)


def positions_of(case, device, dtype=torch.int64):
    B, _, _, T, _, _ = CASES[case]
    first = torch.tensor([0, CAPACITY - T, 13][:B])
    return (first[:, None] + torch.arange(T)).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_dense(case, dtype, device):
    heads, cos, sin, keys, values = inputs(case, dtype, device)
    positions = positions_of(case, device)
    want = expected(heads, cos, sin, keys, values, positions.cpu(), lambda p: p)
    turned = run(heads, cos, sin, keys, values, positions)
    assert turned.is_contiguous()
    assert turned.dtype == dtype
    for found, wanted in zip((turned, keys, values), want, strict=True):
        close(found, wanted, 2 * EPS[dtype])
    assert torch.equal(values, want[2])


def test_padding_writes_nothing_and_neither_does_a_full_cache(device):
    heads, cos, sin, keys, values = inputs("chunk", torch.float32, device)
    before = keys.clone(), values.clone()
    positions = torch.full((2, 7), -1, dtype=torch.int32, device=device)
    assert not run(heads, cos, sin, keys, values, positions).any()
    positions[:] = CAPACITY
    run(heads, cos, sin, keys, values, positions)
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])
    positions[0] = torch.tensor([3, 4, -1, -1, -1, -1, -1])
    want = expected(heads, cos, sin, keys, values, torch.full((2, 7), -1), None)
    assert torch.equal(keys, want[1])
    run(heads, cos, sin, keys, values, positions)
    changed = (keys != before[0]).any(-1).any(1).nonzero().tolist()
    assert changed == [[0, 3], [0, 4]]


@pytest.mark.parametrize(("ring", "sinks"), [(8, 0), (8, 2), (38, 2)])
def test_ring(ring, sinks, device):
    heads, _, _, keys, values = inputs("not turned", torch.float32, device)

    def place(p):
        return int(reference_place(torch.tensor(p), ring, sinks))

    for position in (0, 1, 2, ring - 1, ring, ring + sinks, 5 * ring + 3):
        positions = torch.tensor([[position]], device=device)
        want = expected(heads, None, None, keys, values, positions.cpu(), place)
        turned = run(heads, None, None, keys, values, positions, ring, sinks)
        for found, wanted in zip((turned, keys, values), want, strict=True):
            assert torch.equal(found, wanted)


def test_offsets_beyond_32_bits(device):
    """The third key head lies 2^31 numbers behind the first."""
    k, v = random(2, 1, 3, 1, 16, seed=0, dtype=torch.float16, device=device)
    storage = torch.empty(2**31 + 1000, dtype=torch.float16, device=device)
    apart = (1, 3, 20, 16), (2**32, 2**30, 16, 1)
    keys, values = storage.as_strided(*apart), storage[400:].as_strided(*apart)
    positions = torch.tensor([[5]], device=device)
    rope_and_cache(k, k, v, None, None, keys, values, positions)
    assert torch.equal(keys[:, :, 5:6], k)
    assert torch.equal(values[:, :, 5:6], v)


def test_a_cache_of_16_bits_beside_activations_of_32(device):
    heads, cos, sin, keys, values = inputs("one token", torch.float32, device)
    keys, values = keys.half(), values.half()
    positions = torch.tensor([[17]], device=device)
    want = expected(heads, cos, sin, keys, values, positions.cpu(), lambda p: p)
    turned = run(heads, cos, sin, keys, values, positions)
    assert turned.dtype == torch.float32
    close(keys, want[1], 2 * EPS[torch.float16])
    close(values, want[2], 2 * EPS[torch.float16])


def test_what_does_not_fit_is_refused(device):
    (q, k, v), cos, sin, keys, values = inputs("one key head", torch.float32, device)
    positions = torch.tensor([[0], [1]], device=device)
    good = {"q": q, "k": k, "v": v, "cos": cos, "sin": sin, "keys": keys, "values": values}
    good["positions"] = positions
    bad = [
        ({"k": q}, "k and v need"),
        ({"v": v.half()}, "all one dtype"),
        ({"k": k.expand(2, 1, 1, 80).transpose(2, 3)}, "k and v need"),
        ({"values": values[:, :, :-1]}, "both need"),
        ({"keys": keys.transpose(2, 3).contiguous().transpose(2, 3)}, "keys have strides"),
        ({"positions": positions[:, 0]}, "positions are"),
        ({"positions": positions.float()}, "positions are"),
        ({"sin": sin[:3]}, "cos and sin have shapes"),
        ({"sin": None}, "cos and sin have shapes"),
        ({"cos": cos.double(), "sin": sin.double()}, "contiguous float32"),
        ({"ring": 40, "sinks": 1}, "40 places"),
        ({"ring": 0}, "ring is 0"),
    ]
    for change, message in bad:
        with pytest.raises(ValueError, match=message):
            rope_and_cache(**(good | change))
