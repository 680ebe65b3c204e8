"""Our Transformer against transformers' on tiny random models, and against itself in pieces.

The tolerance is relative to the largest logit, in float32.
"""

import pytest
import torch

from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.sliding import SlidingKVCache
from minillm.sampling import SamplingParams

LENGTH = 40  # past the window of 9 and the original RoPE length of 16


@pytest.fixture
def ids():
    return torch.randint(0, 97, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def difference(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def test_full_forward(pair, ids):
    ours, theirs = pair
    expected = theirs(ids).logits
    cache = DenseKVCache(ours.config, 2, LENGTH)
    assert difference(ours.logits(ours(ids, cache)), expected) < 1e-5
    parameters = sum(p.numel() for p in theirs.parameters())
    assert ours.config.num_parameters() == parameters


def test_decode_one_by_one(pair, ids):
    ours, theirs = pair
    cache = DenseKVCache(ours.config, 2, LENGTH)
    steps = [ours.logits(ours(ids[:, t : t + 1], cache)) for t in range(LENGTH)]
    assert difference(torch.cat(steps, dim=1), theirs(ids).logits) < 1e-5


@pytest.mark.parametrize("chunk_size", [1, 7, 9, 16, LENGTH, None])
def test_chunked_prefill(pair, ids, chunk_size):
    ours, theirs = pair
    cache = DenseKVCache(ours.config, 2, LENGTH)
    found = prefill(ours, ids.tolist(), cache, chunk_size)
    assert difference(found, theirs(ids).logits[:, -1]) < 1e-5


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_ragged_batch_then_decode(pair, ids, chunk_size):
    """Rows of different lengths, padded, chunked, then decoded, equal each row alone."""
    ours, theirs = pair
    prompts = [ids[0].tolist(), ids[1, :1].tolist(), ids[1, :8].tolist(), ids[0, :23].tolist()]
    cache = DenseKVCache(ours.config, 4, LENGTH + 3)
    found = [prefill(ours, prompts, cache, chunk_size)]
    more = torch.tensor([[5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16]])
    found += [ours.logits(ours(more[:, t : t + 1], cache)[:, -1]) for t in range(3)]
    for row, prompt in enumerate(prompts):
        alone = theirs(torch.tensor([prompt + more[row].tolist()])).logits[0, len(prompt) - 1 :]
        assert difference(torch.stack([step[row] for step in found]), alone) < 1e-5


@pytest.mark.parametrize("chunk_size", [1, 7, 9, 16, None])
@pytest.mark.parametrize("prompt", [5, 9, 25])
def test_m05_sliding_cache(windowed_pair, ids, prompt, chunk_size):
    """Prefill in chunks, decode far past the window of 9: what the ring dropped is not missed."""
    ours, theirs = windowed_pair
    cache = new_cache(ours.config, 2, LENGTH)
    assert isinstance(cache, SlidingKVCache)
    assert cache.nbytes < DenseKVCache(ours.config, 2, LENGTH).nbytes / 2
    found = [prefill(ours, ids[:, :prompt].tolist(), cache, chunk_size)]
    steps = ids[:, prompt:].split(1, dim=1)
    found += [ours.logits(ours(step, cache)[:, -1]) for step in steps]
    expected = theirs(ids).logits[:, prompt - 1 :]
    assert difference(torch.stack(found, dim=1), expected) < 1e-5


def test_greedy_batch_equals_one_by_one(pair, ids):
    """Requests that end at different times leave the batch; the others go on undisturbed."""
    ours, _ = pair
    prompts = [ids[0, :4].tolist(), ids[0, :11].tolist(), ids[1, :2].tolist()]
    lengths = [3, 12, 7]

    def run(rows):
        requests = [Request(prompts[r], SamplingParams(max_new_tokens=lengths[r])) for r in rows]
        cache = DenseKVCache(ours.config, len(rows), LENGTH)
        logits = prefill(ours, [request.prompt_ids for request in requests], cache)
        for _ in decode(ours, cache, logits, requests):
            pass
        return [request.token_ids for request in requests]

    together = run([0, 1, 2])
    assert together == [run([r])[0] for r in range(3)]
    assert [len(tokens) for tokens in together] == lengths
