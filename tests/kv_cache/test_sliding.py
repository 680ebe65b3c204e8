"""The sliding cache stores less and changes nothing: logits against a dense cache, which has all.

Weights are random and tiny, in float32. The mask gives windows and sinks their meaning in both, and
tests/parity shows that this meaning is transformers'.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.config import LayerConfig, ModelConfig, RopeConfig
from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.kv_cache.base import new_positions
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.sliding import (
    SlidingKVCache,
    held_positions,
    is_overwritten,
    ring_place,
    ring_step,
    sink_turns,
)
from minillm.layers.rope import apply_rope, rope_tables
from minillm.model import Transformer
from minillm.sampling import SamplingParams
from minillm.weights.load import load_transformer

W = 8
LAYERS = 3
BASE = ModelConfig(
    vocab_size=31,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=LAYERS,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    layers=(LayerConfig(),) * LAYERS,
)
# Window, sinks, global_every.
STACKS = {
    "no sink": (W, 0, None),
    "one sink": (W, 1, None),
    "four sinks": (W, 4, None),
    "one sink, last layer global": (W, 1, 3),
    "more sinks than window": (2, 5, None),
    "itself alone": (1, 0, None),
    "itself and a sink": (1, 1, 2),
}


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def transformer(config, seed=0):
    """Random weights that are large enough for every key to matter."""
    torch.manual_seed(seed)
    model = Transformer(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def windowed(stack):
    window, sinks, global_every = STACKS[stack]
    return transformer(BASE.with_window(window, sinks=sinks, global_every=global_every))


def tokens(B, T, seed=1):
    return torch.randint(0, 31, (B, T), generator=torch.Generator().manual_seed(seed))


def whole(model, ids):
    """Logits (B, T, V) in one pass over a dense cache: the mask alone does the work."""
    return model.logits(model(ids, DenseKVCache(model.config, *ids.shape)))


def kv(*values):
    """Keys of one row, (1, K, T, D), that carry their number; values are the negative."""
    k = torch.tensor(values, dtype=torch.float32)[None, None, :, None].expand(1, 2, -1, 8)
    return k, -k


# The ring


def test_place_of_a_token_and_what_each_place_holds():
    places = ring_place(torch.arange(9), window=4, sinks=1)
    assert places.tolist() == [0, 1, 2, 3, 4, 1, 2, 3, 4]
    held = held_positions(torch.tensor([0, 1, 3, 5, 6, 7, 13]), window=4, sinks=1)
    assert held.tolist() == [
        [-1, -1, -1, -1, -1],
        [0, -1, -1, -1, -1],
        [0, 1, 2, -1, -1],
        [0, 1, 2, 3, 4],
        [0, 5, 2, 3, 4],
        [0, 5, 6, 3, 4],
        [0, 9, 10, 11, 12],
    ]


@given(window=st.integers(1, 9), sinks=st.integers(0, 9), length=st.integers(0, 60))
def test_held_positions_are_what_writing_one_by_one_leaves(window, sinks, length):
    written = [-1] * (sinks + window)
    for position in range(length):
        written[int(ring_place(torch.tensor(position), window, sinks))] = position
    assert held_positions(torch.tensor([length]), window, sinks)[0].tolist() == written
    last = range(max(sinks, length - window), length)
    assert set(written) >= {*last, *range(min(sinks, length))}


@given(
    window=st.integers(1, 6),
    sinks=st.integers(0, 4),
    before=st.integers(0, 20),
    counts=st.lists(st.integers(0, 15), min_size=1, max_size=3),
)
def test_a_step_writes_each_place_once_and_all_that_will_be_seen(window, sinks, before, counts):
    """Two writes to one place would leave the order to chance."""
    lengths = torch.full((len(counts),), before)
    positions = new_positions(lengths, counts, 15)
    rows, new, places = ring_step(lengths, positions, window, sinks).writes.tolist()
    targets = list(zip(rows, places, strict=True))
    assert len(set(targets)) == len(targets)
    written = {(row, int(positions[row, n])) for row, n in zip(rows, new, strict=True)}
    for row, count in enumerate(counts):
        after = before + count
        kept = {p for p in range(before, after) if p >= after - window or p < sinks}
        assert {p for r, p in written if r == row} == kept


# M05: a window of W is the token itself and W - 1 before it, in mask, prefill, decode and cache


def test_m05_a_window_of_4_on_6_tokens():
    cache = SlidingKVCache(BASE.with_window(4), 1, 6)
    seen = []
    for t in range(6):
        cache.advance([1], 1)
        _, _, positions = cache.update(0, *kv(t))
        seen.append(sorted(positions[0].tolist()))
    assert [len(positions) for positions in seen] == [1, 2, 3, 4, 4, 4]
    assert seen[5] == [2, 3, 4, 5]


@pytest.mark.parametrize("length", [W - 1, W, W + 1, 3 * W])
@pytest.mark.parametrize("stack", STACKS)
def test_m05_logits_with_the_cache_equal_those_without(stack, length):
    model, ids = windowed(stack), tokens(2, length)
    without = torch.stack(  # each position from its own text, nothing cached
        [whole(model, ids[:, : t + 1])[:, -1] for t in range(length)], dim=1
    )
    same(whole(model, ids), without)
    for chunk_size in {1, 2, W - 1, W, W + 1, 3 * W, length}:
        cache = new_cache(model.config, 2, length)
        assert isinstance(cache, SlidingKVCache)
        found = [model.logits(model(chunk, cache)) for chunk in ids.split(chunk_size, dim=1)]
        same(torch.cat(found, dim=1), without)


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("prompt", [1, W, W + 1, 3 * W])
def test_prefill_then_decode(stack, prompt):
    length = prompt + 3 * W
    model, ids = windowed(stack), tokens(2, length)
    cache = new_cache(model.config, 2, length)
    found = [prefill(model, ids[:, :prompt].tolist(), cache)]
    found += [model.logits(model(ids[:, t : t + 1], cache)[:, -1]) for t in range(prompt, length)]
    expected = whole(model, ids)[:, prompt - 1 :]
    same(torch.stack(found, dim=1), expected)


def test_the_window_matters_in_these_models():
    """Otherwise the tests above would show nothing."""
    ids = tokens(1, 3 * W)
    results = [whole(windowed(stack), ids)[0, -1] for stack in STACKS]
    results.append(whole(transformer(BASE), ids)[0, -1])
    for i, one in enumerate(results):
        assert all(float((one - other).abs().max()) > 0.01 for other in results[:i])


def test_a_chunk_longer_than_the_ring_attends_to_the_old_ring_first():
    cache = SlidingKVCache(BASE.with_window(4, sinks=1), 1, 100)
    cache.advance([6], 6)
    keys, values, positions = cache.update(0, *kv(0, 1, 2, 3, 4, 5))
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5]]
    cache.advance([6], 7)
    keys, values, positions = cache.update(0, *kv(6, 7, 8, 9, 10, 11, 99))
    assert positions.tolist() == [[0, 5, 2, 3, 4, 6, 7, 8, 9, 10, 11, -1]]
    assert keys[0, 0, :-1, 3].tolist() == positions[0, :-1].tolist()
    assert values[0, 1, :-1, 0].tolist() == [-p for p in positions[0, :-1].tolist()]
    cache.advance([0], 1)
    keys, _, positions = cache.update(0, *kv(99))
    assert positions.tolist() == [[0, 9, 10, 11, 8]]
    assert keys[0, 1, :, 0].tolist() == positions[0].tolist()


def test_one_token_is_written_in_place_and_nothing_is_copied():
    cache = SlidingKVCache(BASE.with_window(4), 1, 100)
    storage = cache.keys[0].data_ptr()
    for t in range(20):
        cache.advance([1], 1)
        keys, values, _ = cache.update(0, *kv(t))
        assert keys.data_ptr() == storage == cache.keys[0].data_ptr()
        assert values.data_ptr() == cache.values[0].data_ptr()


def test_layers_with_the_same_ring_share_their_positions():
    """A step builds its mask once for each of them: it knows them by the tensor's identity."""
    cache = SlidingKVCache(BASE.with_window(4, global_every=3), 1, 20)
    for width in (6, 3, 1):
        cache.advance([width], width)
        first, second, last = (cache.update(i, *kv(*range(width)))[2] for i in range(3))
        assert first is second
        assert first is not last


# Ragged batches


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("chunk_size", [None, 5, W])
def test_m07_rows_of_any_length_equal_each_row_alone(stack, chunk_size):
    model, ids = windowed(stack), tokens(4, 40)
    lengths = [30, 1, W, 17]
    cache = new_cache(model.config, 4, 40)
    prompts = [row[:n] for row, n in zip(ids.tolist(), lengths, strict=True)]
    found = [prefill(model, prompts, cache, chunk_size)]
    assert cache.lengths.tolist() == lengths
    for t in range(10):  # positions go on in each row by itself
        new = torch.stack([ids[row, n + t] for row, n in enumerate(lengths)])
        found.append(model.logits(model(new[:, None], cache)[:, -1]))
    assert cache.lengths.tolist() == [n + 10 for n in lengths]
    for row, n in enumerate(lengths):
        alone = whole(model, ids[row : row + 1, : n + 10])[0, n - 1 :]
        same(torch.stack(found)[:, row], alone)


@pytest.mark.parametrize("stack", STACKS)
def test_m07_greedy_batch_equals_one_by_one(stack):
    """Requests end at different times; their rows leave, the others go on undisturbed."""
    model = windowed(stack)
    prompts = [tokens(1, n, seed=n)[0].tolist() for n in (4, 21, 2)]
    lengths = [3, 30, 17]

    def run(rows, cache):
        requests = [Request(prompts[r], SamplingParams(max_new_tokens=lengths[r])) for r in rows]
        logits = prefill(model, [request.prompt_ids for request in requests], cache)
        for _ in decode(model, cache, logits, requests):
            pass
        return [request.token_ids for request in requests]

    together = run([0, 1, 2], new_cache(model.config, 3, 60))
    assert together == [run([r], new_cache(model.config, 1, 60))[0] for r in range(3)]
    assert together == run([0, 1, 2], DenseKVCache(model.config, 3, 60))


MODELS = {stack: windowed(stack) for stack in STACKS}


@given(data=st.data(), stack=st.sampled_from(list(STACKS)))
@settings(max_examples=60, deadline=None)
def test_any_sequence_of_steps(data, stack):
    """Chunks of any width, rows that bring some tokens or none, rows that leave, small steps back.

    After each step the last token of each row predicts what it does in one pass over its text.
    """
    model = MODELS[stack]
    rows = data.draw(st.lists(st.integers(0, 1000), min_size=1, max_size=3), label="seeds")
    texts = [tokens(1, 120, seed=seed)[0] for seed in rows]
    cache = new_cache(model.config, len(texts), 120)
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        if len(texts) > 1 and data.draw(st.integers(0, 4), label="leave?") == 0:
            kept = data.draw(st.permutations(range(len(texts))))[:-1]
            texts = [texts[row] for row in kept]
            cache.select(kept)
        if data.draw(st.booleans(), label="back?"):
            lengths = cache.lengths.tolist()
            try:
                cache.truncate([max(n - 1, 0) for n in lengths])
            except ValueError:  # the second step back in a row
                assert cache.lengths.tolist() == lengths
        width = data.draw(st.integers(1, 20), label="width")
        counts = [data.draw(st.integers(0, width)) for _ in texts]
        new = torch.zeros(len(texts), width, dtype=torch.int64)
        for row, (count, start) in enumerate(zip(counts, cache.lengths.tolist(), strict=True)):
            new[row, :count] = texts[row][start : start + count]
        logits = model.logits(model(new, cache, counts))
        for row, count in enumerate(counts):
            if count:
                text = texts[row][None, : int(cache.lengths[row])]
                expected = whole(model, text)[0, -count:]
                same(logits[row, :count], expected)


def test_padding_may_be_anything():
    model, ids = windowed("one sink"), tokens(2, 30)
    results = []
    for filler in (0, 30):
        cache = new_cache(model.config, 2, 30)
        model(ids[:, :9], cache)
        chunk = ids[:, 9:20].clone()
        chunk[1, 3:] = filler
        model(chunk, cache, [11, 3])
        results.append(model(ids[:, 20:21], cache))
    assert torch.equal(results[0], results[1])


# Truncation and selection


def test_truncate_is_free_before_the_ring_wraps():
    model, ids = windowed("one sink"), tokens(1, 20)
    expected = whole(model, ids)
    cache = new_cache(model.config, 1, 20)
    model(tokens(1, W + 1, seed=9), cache)  # as many as there are places
    for length in (5, 0):
        cache.truncate([length])
        assert cache.lengths.tolist() == [length]
    for t in range(20):
        found = model.logits(model(ids[:, t : t + 1], cache))
        same(found[:, 0], expected[:, t])


@pytest.mark.parametrize(
    "stack", ["one sink", "one sink, last layer global", "more sinks than window"]
)
@pytest.mark.parametrize("chunk_size", [1, 5, 25])
def test_one_step_back_is_always_possible_two_are_not(stack, chunk_size):
    model, ids = windowed(stack), tokens(1, 30)
    expected = whole(model, ids)
    cache = new_cache(model.config, 1, 30)
    wrong = ids[:, :25].clone()
    wrong[0, 24] = (wrong[0, 24] + 1) % 31
    for chunk in wrong.split(chunk_size, dim=1):
        model(chunk, cache)
    with pytest.raises(ValueError, match=r"lengths is \[23\].*from \[25\] .* back by one token"):
        cache.truncate([23])
    cache.truncate([24])
    with pytest.raises(ValueError, match="overwritten"):
        cache.truncate([23])
    assert cache.lengths.tolist() == [24]
    found = model.logits(model(ids[:, 24:], cache))
    same(found, expected[:, 24:])
    cache.truncate([29])
    found = model.logits(model(ids[:, 29:], cache))
    same(found, expected[:, 29:])


def test_back_to_the_sinks_or_to_nothing_is_always_possible():
    model, ids = windowed("four sinks"), tokens(2, 30)
    cache = new_cache(model.config, 2, 30)
    other = ids.clone()
    other[0, 4:] = 3
    other[1] = 5
    model(other, cache)
    cache.truncate([4, 0])
    model(other[:, :6], cache)  # from here on the ring has not wrapped: any step back will do
    cache.truncate([8, 3])
    cache.truncate([4, 0])
    starts = [4, 0]
    found = []
    for t in range(26):
        new = torch.stack([ids[row, start + t] for row, start in enumerate(starts)])
        found.append(model.logits(model(new[:, None], cache)[:, 0]))
    expected = whole(model, ids)
    same(torch.stack(found)[:, 0], expected[0, 4:])
    same(torch.stack(found)[:, 1], expected[1, :26])


@pytest.mark.parametrize("lengths", [[9], [-1], [1, 1], []])
def test_truncate_refuses_what_is_not_there(lengths):
    cache = SlidingKVCache(BASE.with_window(4), 1, 20)
    cache.advance([3], 3)
    with pytest.raises(ValueError, match=r"at most \[3\] can be kept"):
        cache.truncate(lengths)


def test_is_overwritten_is_what_the_ring_says():
    """Against the ring itself: is each token of the window that a query at `length` sees, held?"""
    for window, sinks in ((1, 0), (4, 0), (4, 2), (2, 5)):
        for reached in range(15):
            held = set(held_positions(torch.tensor([reached]), window, sinks)[0].tolist())
            for length in range(reached + 1):
                needed = {*range(max(length - window + 1, 0), length), *range(min(sinks, length))}
                found = is_overwritten(
                    torch.tensor([length]), torch.tensor([reached]), window, sinks
                )
                assert bool(found[0]) == bool(needed - held), (window, sinks, reached, length)


def test_select_keeps_rows_in_their_order():
    cache = SlidingKVCache(BASE.with_window(3, sinks=1), 3, 20)
    cache.advance([5, 2, 6], 6)
    k = torch.arange(18.0).view(3, 1, 6, 1).expand(3, 2, 6, 8)
    cache.update(1, k, -k)
    cache.select([2, 0])
    assert cache.lengths.tolist() == [6, 5]
    cache.advance([0, 0], 1)
    keys, values, positions = cache.update(1, k[:2, :, :1], k[:2, :, :1])
    assert positions.tolist() == [[0, 4, 5, 3], [0, 4, 2, 3]]
    assert keys[:, 0, :, 0].tolist() == [[12, 16, 17, 15], [0, 4, 2, 3]]
    assert torch.equal(values, -keys)


# Memory


def test_nbytes_is_the_arithmetic_of_a_mixed_stack():
    config = BASE.with_window(W, sinks=2, global_every=3)  # layers 0 and 1 local, 2 global
    cache = SlidingKVCache(config, 5, 100, dtype=torch.bfloat16)
    assert cache.nbytes == 2 * 5 * 2 * 8 * (2 * (W + 2) + 100) * 2
    assert cache.nbytes == 5 * (2 * (W + 2) + 100) * config.cache_bytes_per_token(2) // 3
    assert new_cache(config, 5, 7).nbytes == new_cache(BASE, 5, 7).nbytes  # never more than dense


def test_memory_stays_constant_however_long_the_text():
    model = transformer(BASE.with_window(W, sinks=1))
    cache = SlidingKVCache(model.config, 1, 1_000_000)
    storages = [tensor.untyped_storage() for tensor in [*cache.keys, *cache.values]]
    assert sum(storage.nbytes() for storage in storages) == cache.nbytes
    assert cache.nbytes == 2 * 2 * 8 * LAYERS * (W + 1) * 4
    pointers = [storage.data_ptr() for storage in storages]
    for chunk in tokens(1, 700).split(50, dim=1):
        hidden = model(chunk, cache)
        hidden = model(chunk[:, :1], cache)
        assert torch.isfinite(hidden).all()
    assert cache.lengths.tolist() == [714]
    assert [tensor.data_ptr() for tensor in [*cache.keys, *cache.values]] == pointers
    assert all(step.k_positions.shape[1] <= W + 1 for step in cache._steps.values())


def test_a_layer_that_keeps_all_bounds_the_length():
    too_large = BASE.with_window(6), BASE.with_window(4, sinks=2)
    for config in (BASE.with_window(4, global_every=3), *too_large, BASE):
        cache = SlidingKVCache(config, 1, 5)
        assert max(keys.shape[2] for keys in cache.keys) == 5
        cache.advance([5], 5)
        with pytest.raises(ValueError, match="holds 5 tokens per row; 6 needed"):
            cache.advance([1], 1)
        assert cache.lengths.tolist() == [5]
    for config in (BASE.with_window(5), BASE.with_window(4, sinks=1)):
        cache = SlidingKVCache(config, 1, 5)
        cache.advance([5], 5)
        cache.advance([1], 1)
        assert cache.lengths.tolist() == [6]


@pytest.mark.parametrize("counts", [[1, 1], [-1], [3]])
def test_bad_counts(counts):
    with pytest.raises(ValueError, match="counts is"):
        SlidingKVCache(BASE.with_window(4), 1, 4).advance(counts, 2)


def test_new_cache_chooses_by_the_configuration():
    assert isinstance(new_cache(BASE, 1, 9), DenseKVCache)
    cache = new_cache(BASE.with_window(4, global_every=2), 2, 9, dtype=torch.float16)
    assert isinstance(cache, SlidingKVCache)
    assert cache.keys[0].dtype == torch.float16
    assert [keys.shape[2] for keys in cache.keys] == [4, 9, 4]


# Sinks past the trained length

ROPES = {
    "default": RopeConfig(),
    "linear": RopeConfig(rope_type="linear", factor=4.0),
    "yarn": RopeConfig(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    "llama3": RopeConfig(rope_type="llama3", factor=8.0, original_max_position_embeddings=16),
}


def beyond(rope, trained, sinks=3, layers=1):
    return ModelConfig(
        vocab_size=31,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=trained,
        layers=(LayerConfig(sliding_window=5, rope=rope, sinks=sinks),) * layers,
    )


@pytest.mark.parametrize("rope", ROPES)
def test_a_turned_sink_is_the_key_of_a_later_position(rope):
    config = beyond(ROPES[rope], trained=20)
    k = torch.randn(2, 2, 3, 8)
    positions = torch.arange(3).expand(2, 3)
    shift = torch.tensor([0, 13])
    turns = sink_turns(config, shift + 20, 1)
    stored = apply_rope(k, *rope_tables(positions, ROPES[rope], 8))
    found = apply_rope(stored, *turns[ROPES[rope]])
    expected = apply_rope(k, *rope_tables(positions + shift[:, None], ROPES[rope], 8))
    same(found, expected)
    assert torch.equal(found[0], stored[0])  # a row within the trained length: to the last bit


class MovedSinks(DenseKVCache):
    """All tokens of a text at once, the sinks rotated as if they followed by `shift`."""

    def __init__(self, config, length, shift):
        super().__init__(config, 1, length)
        self.shift, self.sinks = shift, config.layers[0].sinks

    def advance(self, counts, width):
        positions = super().advance(counts, width).clone()
        positions[:, : self.sinks] += self.shift
        return positions


@pytest.mark.parametrize("rope", ROPES)
def test_past_the_trained_length_sinks_follow(rope):
    """One layer, against a forward pass that rotates the sinks to where they should seem to be."""
    model = transformer(beyond(ROPES[rope], trained=20))
    ids, cache = tokens(1, 50), new_cache(model.config, 1, 50)
    for t in range(50):
        found = model.logits(model(ids[:, t : t + 1], cache))[0, -1]
        text = ids[:, : t + 1]
        moved = MovedSinks(model.config, t + 1, max(0, t + 1 - 20))
        same(found, model.logits(model(text, moved))[0, -1])
        true = whole(model, text)[0, -1]
        if t < 20:
            same(found, true)
        elif t > 25:  # else this test would show nothing
            assert float((found - true).abs().max()) > 1e-3


def test_past_the_trained_length_without_sinks_nothing_changes():
    model = transformer(beyond(RopeConfig(), trained=20, sinks=0, layers=2))
    ids, cache = tokens(1, 60), new_cache(model.config, 1, 60)
    found = [model.logits(model(chunk, cache)) for chunk in ids.split(30, dim=1)]
    same(torch.cat(found, dim=1), whole(model, ids))


def test_past_the_trained_length_rows_do_not_disturb_each_other():
    model = transformer(beyond(RopeConfig(), trained=20, layers=2))
    ids = tokens(2, 40)
    cache = new_cache(model.config, 2, 40)
    prefill(model, [ids[0].tolist(), ids[1, :9].tolist()], cache, 10)
    found = model.logits(model(ids[:, :1], cache)[:, -1])
    for row, length in ((0, 40), (1, 9)):
        alone = new_cache(model.config, 1, 40)
        prefill(model, [ids[row, :length].tolist()], alone, 10)
        expected = model.logits(model(ids[row : row + 1, :1], alone)[:, -1])[0]
        same(found[row], expected)


def test_a_step_may_not_be_so_long_that_sinks_overtake_it():
    cache = SlidingKVCache(beyond(RopeConfig(), trained=20), 1, 100)
    cache.advance([18], 18)  # within the trained length any step will do
    with pytest.raises(ValueError, match=r"a step of 18 tokens .* with 3 sinks.*may have 17"):
        cache.advance([18], 18)
    assert cache.lengths.tolist() == [18]
    cache.advance([17], 17)
    assert cache.lengths.tolist() == [35]


def test_layers_without_rope_have_nothing_to_turn():
    config = beyond(None, trained=20, layers=2)
    model, ids = transformer(config), tokens(1, 45)
    cache = new_cache(config, 1, 45)
    found = [model.logits(model(chunk, cache)) for chunk in ids.split(15, dim=1)]
    same(torch.cat(found, dim=1), whole(model, ids))


# The real model


@pytest.mark.parametrize("sinks", [0, 1])
def test_smollm2_with_a_window_of_64(llm, sinks):
    """300 tokens: prefill past the window in chunks, then decode, against one masked dense pass."""
    config = llm.config.with_window(64, sinks=sinks)
    model = load_transformer(config, llm.model.state_dict())
    text = "The library at the corner opens early, and the first reader is always the same man. "
    ids = llm.tokenizer.encode(text * 20)[:300]
    with torch.inference_mode():
        dense = model.logits(model(torch.tensor([ids]), DenseKVCache(config, 1, 300))[0, 269:])
        cache = new_cache(config, 1, 300)
        found = [prefill(model, [ids[:270]], cache, 100)[0]]
        rest = torch.tensor([ids[270:]]).split(1, dim=1)
        found += [model.logits(model(token, cache)[0, -1]) for token in rest]
    assert cache.nbytes == (64 + sinks) * config.cache_bytes_per_token(4)
    difference = (torch.stack(found) - dense).abs().max() / dense.abs().max()
    assert float(difference) < 1e-4
