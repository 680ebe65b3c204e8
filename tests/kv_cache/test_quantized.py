"""The quantized cache against a slow one in numpy that keeps each row's tokens in a list."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.config import LayerConfig, ModelConfig
from minillm.generate import Request, decode, prefill
from minillm.inspection import quantized_cache_bytes
from minillm.kv_cache import QUANTIZED, new_cache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.groups import channels_per_group
from minillm.kv_cache.quantized import QuantizedKVCache
from minillm.model import Transformer
from minillm.sampling import SamplingParams
from tests.kv_cache.rounding import round_trip

BLOCK, K, LAYERS = 32, 2, 2
CONFIG = ModelConfig(
    vocab_size=31,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=LAYERS,
    num_attention_heads=6,
    num_key_value_heads=K,
    head_dim=8,
    max_position_embeddings=512,
    layers=(LayerConfig(),) * LAYERS,
)
KINDS = {4: "int4", 8: "int8"}


class SlowRow:
    """Keys, or values, of one row in one layer: rounded blocks (K, 32, D) and newer tokens."""

    def __init__(self, group, bits):
        self.group, self.bits = group, bits
        self.blocks, self.newest = [], []

    def append(self, tokens):
        for token in tokens:
            self.newest.append(token)
            if len(self.newest) == BLOCK:
                block = np.stack(self.newest, axis=1)
                self.blocks.append(round_trip(block, self.group, self.bits))
                self.newest = []

    def stored(self):
        tokens = [block[:, t] for block in self.blocks for t in range(BLOCK)] + self.newest
        return np.stack(tokens, axis=1) if tokens else None

    def truncate(self, length):
        number, kept = divmod(length, BLOCK)
        if number < len(self.blocks):
            self.newest = [self.blocks[number][:, t] for t in range(BLOCK)]
        self.blocks, self.newest = self.blocks[:number], self.newest[:kept]

    def copy(self):
        other = SlowRow(self.group, self.bits)
        other.blocks, other.newest = list(self.blocks), list(self.newest)
        return other


class SlowCache:
    def __init__(self, batch_size, head_dim, bits, keys_per):
        values = (1, channels_per_group(head_dim))
        groups = [(BLOCK, 1) if keys_per == "channel" else values, values] * LAYERS
        self.rows = [[SlowRow(group, bits) for group in groups] for _ in range(batch_size)]
        self.lengths = [0] * batch_size

    def append(self, row, layer, k, v):
        self.rows[row][2 * layer].append(k)
        self.rows[row][2 * layer + 1].append(v)

    def stored(self, row, layer):
        return [store.stored() for store in self.rows[row][2 * layer : 2 * layer + 2]]

    def truncate(self, lengths):
        self.lengths = list(lengths)
        for row, length in zip(self.rows, lengths, strict=True):
            for store in row:
                store.truncate(length)

    def select(self, rows):
        self.rows = [[store.copy() for store in self.rows[row]] for row in rows]
        self.lengths = [self.lengths[row] for row in rows]


def check_step(cache, slow, generator, counts, width):
    """One step on both; padding is NaN, so that it would show. What comes back has to agree."""
    D = cache.keys.open.shape[-1]
    before = list(slow.lengths)
    positions = cache.advance(counts, width)
    slow.lengths = [n + count for n, count in zip(before, counts, strict=True)]
    assert cache.lengths.tolist() == slow.lengths
    S = max(slow.lengths)
    for row, (start, count) in enumerate(zip(before, counts, strict=True)):
        expected = [*range(start, start + count), *[-1] * (width - count)]
        assert positions[row].tolist() == expected
    for layer in range(LAYERS):
        size = (len(counts), K, width, D)
        k = generator.standard_normal(size, np.float32) * 3 + np.arange(D, dtype=np.float32)
        v = generator.standard_normal(size, np.float32)
        for row, count in enumerate(counts):
            new = range(count)
            slow.append(row, layer, [k[row, :, t] for t in new], [v[row, :, t] for t in new])
            k[row, :, count:] = v[row, :, count:] = np.nan
        *found, k_positions = cache.update(layer, torch.from_numpy(k), torch.from_numpy(v))
        for row, length in enumerate(slow.lengths):
            assert k_positions[row].tolist() == [*range(length), *[-1] * (S - length)]
            for part, expected in zip(found, slow.stored(row, layer), strict=True):
                assert part.shape == (len(counts), K, S, D)
                assert part.dtype == torch.float32
                if length:
                    np.testing.assert_array_equal(part[row, :, :length].numpy(), expected)
                assert not part[row, :, length:].any()


def check_empty_places(cache):
    """What holds no token is 0, so that nothing old can come back."""
    for store in (cache.keys, cache.values):
        for row, length in enumerate(cache.lengths.tolist()):
            full, rest = divmod(length, BLOCK)
            assert not store.open[:, row, :, rest:].any()
            assert not any(part[:, row, :, full:].any() for part in store.blocks)


@st.composite
def histories(draw):
    """A cache's make, and what happens to it: steps, truncations, selections."""
    batch_size, capacity = draw(st.integers(1, 3)), draw(st.integers(1, 150))
    head_dim = draw(st.sampled_from([2, 4, 48]))
    make = {
        "bits": draw(st.sampled_from([4, 8])),
        "keys_per": draw(st.sampled_from(["channel", "token"])),
    }
    lengths = [0] * batch_size
    events: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["step", "step", "one", "truncate", "select"]))
        room = [capacity - length for length in lengths]
        if kind == "one" and min(room) > 0:
            events.append(("step", [1] * len(lengths), 1))
            lengths = [length + 1 for length in lengths]
        elif kind == "truncate":
            lengths = [draw(st.integers(0, length)) for length in lengths]
            events.append(("truncate", lengths))
        elif kind == "select":
            rows = draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=3))
            lengths = [lengths[row] for row in rows]
            events.append(("select", rows))
        else:
            counts = [draw(st.integers(0, most)) for most in room]
            width = max([1, *counts]) + draw(st.integers(0, 2))
            lengths = [n + count for n, count in zip(lengths, counts, strict=True)]
            events.append(("step", counts, width))
    return batch_size, capacity, head_dim, make, events


@settings(deadline=None, max_examples=60)
@given(histories(), st.integers(0, 2**32 - 1))
def test_any_history_equals_the_slow_cache(history, seed):
    batch_size, capacity, head_dim, make, events = history
    config = replace(CONFIG, head_dim=head_dim)
    cache = QuantizedKVCache(config, batch_size, capacity, **make)
    slow = SlowCache(batch_size, head_dim, make["bits"], make["keys_per"])
    generator = np.random.default_rng(seed)
    last = ("step", [0] * len(events[-1][1]), 1)
    for kind, *what in [*events, last]:
        if kind == "step":
            check_step(cache, slow, generator, *what)
        else:
            for one in (cache, slow):
                getattr(one, kind)(*what)
        check_empty_places(cache)
    nbytes = stored_bytes(len(slow.lengths), capacity, head_dim, **make)
    assert cache.nbytes == nbytes


def stored_bytes(batch_size, capacity, head_dim, bits, keys_per="channel", exact=4):
    """Codes, and 2 + 2 bytes for each group; and 32 tokens exact, all by counting."""
    blocks = capacity // BLOCK
    codes = 2 * BLOCK * head_dim * bits // 8
    in_values = BLOCK * head_dim // channels_per_group(head_dim)
    in_keys = head_dim if keys_per == "channel" else in_values
    block = codes + 4 * (in_keys + in_values)
    return LAYERS * batch_size * K * (blocks * block + 2 * BLOCK * head_dim * exact)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("head_dim", [8, 16, 48, 64, 80, 96, 128, 256])
def test_every_head_dim(head_dim, bits):
    config = replace(CONFIG, head_dim=head_dim)
    cache, slow = (
        QuantizedKVCache(config, 2, 70, bits=bits),
        SlowCache(2, head_dim, bits, "channel"),
    )
    generator = np.random.default_rng(head_dim)
    for counts in ([33, 5], [1, 28], [0, 0]):
        check_step(cache, slow, generator, counts, max(1, *counts))
    assert cache.nbytes == stored_bytes(2, 70, head_dim, bits)
    assert cache.nbytes == 2 * quantized_cache_bytes(config, 70, bits, 4)


@pytest.mark.parametrize(("bits", "bits_per_value"), [(4, 5), (8, 9)])
def test_bits_per_value_with_groups_of_32(bits, bits_per_value):
    config = replace(CONFIG, head_dim=64)
    cache = QuantizedKVCache(config, 3, 100, bits=bits, dtype=torch.bfloat16)
    tokens = LAYERS * 3 * K * 64 * 2  # values that a token of all rows has
    assert cache.nbytes == tokens * 32 * (3 * bits_per_value / 8 + 2)
    assert cache.nbytes == 3 * quantized_cache_bytes(config, 100, bits, 2)
    one_more_block = QuantizedKVCache(config, 3, 128, bits=bits, dtype=torch.bfloat16)
    dense = DenseKVCache(config, 3, 32, dtype=torch.bfloat16)
    assert (one_more_block.nbytes - cache.nbytes) / dense.nbytes == bits_per_value / 16


# How the text comes does not matter, except for how long a token stays exact


def filled(bits, chunks, k, v, dtype=torch.float32):
    """The cache after chunks of a text, and what each step gave back in layer 1."""
    cache, seen = new_cache(CONFIG, len(k), 100, kind=KINDS[bits], dtype=dtype), []
    start = 0
    for size in chunks:
        cache.advance([size] * len(k), size)
        for layer in range(LAYERS):
            part = slice(start, start + size)
            got = cache.update(layer, k[:, :, part], v[:, :, part])
        seen.append(got)
        start += size
    return cache, seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [4, 8])
def test_chunks_of_any_size_store_the_same(bits, dtype):
    k, v = torch.randn(2, 1, K, 70, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    whole, _ = filled(bits, [70], k, v, dtype)
    for chunks in ([1] * 70, [31, 1, 38], [32, 32, 6], [33, 37], [5] * 14):
        cache, seen = filled(bits, chunks, k, v, dtype)
        for one, other in ((cache.keys, whole.keys), (cache.values, whole.values)):
            assert torch.equal(one.open, other.open)
            assert all(torch.equal(a, b) for a, b in zip(one.blocks, other.blocks, strict=True))
        assert {part.dtype for got in seen for part in got[:2]} == {dtype}


def test_a_token_is_exact_until_its_block_is_full():
    k, v = torch.randn(2, 1, K, 70, 8, generator=torch.Generator().manual_seed(0))
    _, seen = filled(8, [31, 1, 20, 18], k, v)
    assert torch.equal(seen[0][0], k[:, :, :31])
    assert not torch.equal(seen[1][0][:, :, :31], k[:, :, :31])
    assert torch.equal(seen[1][0], seen[3][0][:, :, :32])
    assert torch.equal(seen[2][1][:, :, 32:], v[:, :, 32:52])
    assert torch.equal(seen[3][1][:, :, 64:], v[:, :, 64:])
    assert not torch.equal(seen[3][1][:, :, 32:64], v[:, :, 32:64])


def test_storage_is_allocated_once():
    cache = QuantizedKVCache(CONFIG, 1, 70)
    tensors = [x for s in (cache.keys, cache.values) for x in (s.open, *s.blocks)]
    k, v = torch.randn(2, 1, K, 70, 8)
    for t in range(70):
        cache.advance([1], 1)
        for layer in range(LAYERS):
            cache.update(layer, k[:, :, t : t + 1], v[:, :, t : t + 1])
    after = [x for s in (cache.keys, cache.values) for x in (s.open, *s.blocks)]
    assert all(a is b for a, b in zip(tensors, after, strict=True))


def test_what_stays_of_a_truncated_block_was_rounded_once():
    k, v = torch.randn(2, 1, K, 70, 8, generator=torch.Generator().manual_seed(0))
    cache, seen = filled(4, [70], k, v)
    cache.truncate([40])
    cache.advance([1], 1)
    keys, values, _ = cache.update(1, k[:, :, 40:41], v[:, :, 40:41])
    assert torch.equal(keys[:, :, :40], seen[0][0][:, :, :40])
    assert torch.equal(values[:, :, 40:], v[:, :, 40:41])


# What no number can hold


def test_keys_of_1e38_in_bfloat16_stay_finite():
    k = (torch.randn(1, K, 40, 8) * 3e37).bfloat16()
    for bits in (4, 8):
        _, seen = filled(bits, [40], k, k, torch.bfloat16)
        assert all(part.isfinite().all() for part in seen[0][:2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_is_still_there_once_its_block_is_rounded(bad):
    k, v = torch.zeros(2, 1, K, 40, 8)
    k[0, 1, 3, 2] = bad
    _, seen = filled(8, [20, 20], k, v)
    assert not seen[0][0][0, 1, 3, 2].isfinite()
    assert seen[1][0][0, 1, :32, 2].isnan().all()
    assert int(seen[1][0].isnan().sum()) == 32


# Errors


def test_overflow_is_refused_before_anything_changes():
    cache = QuantizedKVCache(CONFIG, 2, 40)
    cache.advance([40, 3], 40)
    with pytest.raises(ValueError, match="holds 40 tokens per row; 41 needed"):
        cache.advance([1, 1], 1)
    assert cache.lengths.tolist() == [40, 3]
    assert cache.advance([0, 1], 1).tolist() == [[-1], [3]]


def test_what_is_refused():
    with pytest.raises(ValueError, match="bits is 3; 4 and 8"):
        QuantizedKVCache(CONFIG, 1, 9, bits=3)
    with pytest.raises(ValueError, match="keys_per is 'row'; 'channel' and 'token'"):
        QuantizedKVCache(CONFIG, 1, 9, keys_per="row")  # type: ignore[arg-type]
    odd = replace(CONFIG, head_dim=7, layers=(LayerConfig(rope=None),) * LAYERS)
    with pytest.raises(ValueError, match="head_dim is 7; 4-bit codes need an even one"):
        QuantizedKVCache(odd, 1, 9, bits=4)
    assert QuantizedKVCache(odd, 1, 40, bits=8).nbytes == stored_bytes(1, 40, 7, 8)
    cache = QuantizedKVCache(CONFIG, 2, 9)
    for counts in ([1], [-1, 0], [3, 0]):
        with pytest.raises(ValueError, match="counts is"):
            cache.advance(counts, 2)
    for lengths in ([1, 0], [-1, 0], [0]):
        with pytest.raises(ValueError, match="at most"):
            cache.truncate(lengths)


def test_sinks_past_the_trained_length_are_refused():
    """Only the sliding cache turns them; without sinks no distance leaves the window."""
    sinks, window = CONFIG.with_window(4, sinks=1), CONFIG.with_window(4)
    assert sinks.context is None
    new_cache(sinks, 1, 512, kind="int8")
    new_cache(window, 1, 2000, kind="int8")
    with pytest.raises(ValueError, match=r"hold 513 tokens per row; with sinks .* of 512"):
        new_cache(sinks, 1, 513, kind="int8")


def test_new_cache_by_kind():
    for bits, kind in KINDS.items():
        cache = new_cache(CONFIG, 2, 9, kind=kind, dtype=torch.bfloat16)
        assert isinstance(cache, QuantizedKVCache)
        assert cache.keys.bits == cache.values.bits == bits == QUANTIZED[kind]
        assert cache.keys.group == (32, 1)
        assert cache.keys.open.dtype == torch.bfloat16
    assert isinstance(new_cache(CONFIG, 1, 9, kind=None), DenseKVCache)
    for kind in ("int2", "", "INT8"):
        with pytest.raises(ValueError, match=f"KV cache is '{kind}'; known are int8, int4"):
            new_cache(CONFIG, 1, 9, kind=kind)


# A model on it


def transformer(config, seed=0):
    """Random weights that are large enough for every key to matter."""
    torch.manual_seed(seed)
    model = Transformer(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def tokens(B, T, seed=1):
    return torch.randint(0, 31, (B, T), generator=torch.Generator().manual_seed(seed))


def logits(model, ids, kind, chunk):
    cache = new_cache(model.config, *ids.shape, kind=kind)
    return torch.cat([model.logits(model(part, cache)) for part in ids.split(chunk, dim=1)], dim=1)


def off(found, expected):
    """Root mean square of the difference, relative to the expected."""
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_logits_are_near_those_of_the_dense_cache(window, chunk):
    """The same for a model with windows: the mask hides what the sliding cache would forget."""
    model = transformer(CONFIG if window is None else CONFIG.with_window(window, sinks=2))
    ids = tokens(2, 100)
    exact = logits(model, ids, None, 100)
    eight, four = (off(logits(model, ids, kind, chunk), exact) for kind in ("int8", "int4"))
    assert eight < 0.03
    assert 5 * eight < four < 0.5


@pytest.mark.parametrize("bits", [4, 8])
def test_up_to_31_tokens_nothing_is_rounded(bits):
    model, ids = transformer(CONFIG), tokens(2, 31)
    assert torch.equal(logits(model, ids, KINDS[bits], 1), logits(model, ids, None, 1))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_batch_gives_each_prompt_what_it_gets_alone(kind):
    """Prompts of several lengths that end at different steps: padding, ragged blocks, `select`."""
    model = transformer(CONFIG)
    prompts = [tokens(1, n, seed=n)[0].tolist() for n in (1, 30, 32, 45)]

    def answers(rows):
        requests = [
            Request(prompts[row], SamplingParams(temperature=0, max_new_tokens=8 + 13 * row))
            for row in rows
        ]
        cache = new_cache(CONFIG, len(rows), 100, kind=kind)
        first = prefill(model, [prompts[row] for row in rows], cache, 20)
        for _ in decode(model, cache, first, requests):
            pass
        return [request.token_ids for request in requests]

    assert answers(range(4)) == [answers([row])[0] for row in range(4)]


def test_int8_on_the_real_model(llm, record_property):
    text = "The cache keeps a key and a value for every token that the model has read. " * 20
    ids = torch.tensor([llm.tokenizer.encode(text)[:300]])
    with torch.inference_mode():
        exact = llm.model.logits(llm.model(ids, llm.new_cache(1, 300)))
        found = {
            kind: off(
                llm.model.logits(llm.model(ids, new_cache(llm.config, 1, 300, kind=kind))), exact
            )
            for kind in ("int8", "int4")
        }
    record_property("figure", f"KV cache, 300 tokens: logits are off by (rms) {found}")
    assert found["int8"] < 0.01
    assert 5 * found["int8"] < found["int4"] < 0.15
