"""Our Transformer against transformers' on tiny random checkpoints, whole and in pieces.

transformers writes each checkpoint, and both sides read the same folder. The tolerance is relative
to the largest logit, in float32.
"""

from contextlib import suppress

import pytest
import torch

from minillm import LLM
from minillm.generate import Request, decode, prefill
from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from minillm.kv_cache.sliding import SlidingKVCache
from minillm.sampling import SamplingParams
from tests.parity import measure
from tests.parity.measure import LENGTH, difference
from tests.parity.models import CASES, FAMILIES, TRAINED, VOCAB, WINDOW
from tests.parity.pairs import pair_of

TOLERANCE = 1e-5
ONE_OF_EACH = {case.family: name for name, case in CASES.items()}.values()
MORE = torch.tensor([[5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16]])


def expected_steps(pair, ids, prompt):
    """What follows a prompt, step by step: the whole text says it, but for a moving rotation."""
    if pair.case.dynamic:
        return measure.reference_steps(pair.theirs, ids, prompt)
    return measure.reference(pair.theirs, ids)[:, prompt - 1 :]


def caches(pair, length):
    """An empty cache of each kind that the model can have."""
    yield DenseKVCache(pair.ours.config, 2, length)
    if pair.case.windowed:
        yield new_cache(pair.ours.config, 2, length)


def test_full_forward(pair):
    for cache in caches(pair, LENGTH):
        assert difference(measure.whole(pair.ours, pair.ids, cache), pair.expected) < TOLERANCE


def test_number_of_parameters(pair):
    parameters = sum(p.numel() for p in pair.theirs.parameters())
    assert pair.ours.config.num_parameters() == parameters


@pytest.mark.parametrize("chunk_size", [7, 9, 17, 40])
def test_chunked_prefill(pair, chunk_size):
    """Chunks shorter and longer than the window; some straddle the original RoPE length."""
    cache = new_cache(pair.ours.config, *pair.ids.shape)
    found = prefill(pair.ours, pair.ids.tolist(), cache, chunk_size)
    assert difference(found, pair.expected[:, -1]) < TOLERANCE


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_bfloat16_is_as_near_as_transformers_own(name):
    """One model of each family here; `make parity` measures them all."""
    found = measure.measured(name, torch.bfloat16)
    assert not found.out_of_bounds, found


def test_gguf_of_every_family():
    """The same model out of a GGUF file, wherever such a file can say what it is."""
    families = set()
    for name, case in CASES.items():
        with suppress(measure.NotInGGUFError):
            model, pair = measure.ours_of_gguf(name, torch.float32), pair_of(name)
            cache = new_cache(model.config, *pair.ids.shape)
            assert difference(measure.whole(model, pair.ids, cache), pair.expected) < TOLERANCE
            families.add(case.family)
    assert families == set(FAMILIES)


@pytest.mark.parametrize(("prompt", "length"), [(1, TRAINED), (TRAINED + 1, 40)])
def test_decode_one_by_one(pair, prompt, length):
    """Below the original RoPE length, and beyond it."""
    ids = pair.ids[:, :length]
    for cache in caches(pair, LENGTH):
        found = measure.stepwise(pair.ours, ids[:, :prompt].tolist(), ids[:, prompt:], cache)
        assert difference(found, expected_steps(pair, ids, prompt)) < TOLERANCE


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.trained is None])
def test_decode_across_the_original_length(name):
    pair = pair_of(name)
    cache = new_cache(pair.ours.config, *pair.ids.shape)
    found = measure.stepwise(pair.ours, pair.ids[:, :1].tolist(), pair.ids[:, 1:], cache)
    assert difference(found, pair.expected) < TOLERANCE


def test_dynamic_scaling_across_the_original_length():
    """Each step turns its own token by the length so far; keys stay as they were stored."""
    pair = pair_of("llama-dynamic")
    for prompt in (1, TRAINED - 1, TRAINED):
        cache = new_cache(pair.ours.config, *pair.ids.shape)
        more = pair.ids[:, prompt:]
        found = measure.stepwise(pair.ours, pair.ids[:, :prompt].tolist(), more, cache)
        expected = measure.reference_steps(pair.theirs, pair.ids, prompt)
        assert difference(found, expected) < TOLERANCE


class NoText:
    """A tokenizer for models whose tokens stand for nothing."""

    vocab_size = VOCAB

    def ids_without_token(self, vocab_size):
        return ()

    def stream(self, **_):
        return self

    def push(self, token):
        return ""

    def flush(self):
        return ""


@pytest.mark.parametrize("name", [name for name in CASES if "longrope" in name])
def test_longrope_greedy_tokens_across_the_original_length(name):
    """Past the original length all of a text is turned otherwise, and read again; in a batch too.

    The oracle is transformers' own loop, which does the same for this family.
    """
    pair = pair_of(name)
    llm = LLM(pair.ours, NoText())  # type: ignore[arg-type]
    lengths = [1, 7, 15, 16, 17]
    prompts = [pair.ids[row % 2, :length].tolist() for row, length in enumerate(lengths)]
    expected = [
        pair.theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=14,
            min_new_tokens=14,
            do_sample=False,
            eos_token_id=None,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    params = SamplingParams(max_new_tokens=14, ignore_eos=True)
    assert [output.token_ids for output in llm.generate(prompts, params)] == expected
    assert [llm.generate(prompt, params).token_ids for prompt in prompts] == expected


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_ragged_batch_then_decode(pair, chunk_size):
    """Rows of different lengths, padded, chunked, then decoded, equal each row alone."""
    lengths = [40, 1, 8, 23]
    prompts = [pair.ids[row % 2, :length].tolist() for row, length in enumerate(lengths)]
    cache = new_cache(pair.ours.config, 4, 43)
    found = measure.stepwise(pair.ours, prompts, MORE, cache, chunk_size)
    for row, prompt in enumerate(prompts):
        alone = torch.tensor([prompt + MORE[row].tolist()])
        expected = expected_steps(pair, alone, len(prompt))[0]
        assert difference(found[row], expected) < TOLERANCE


@pytest.mark.parametrize("chunk_size", [1, 7, 9, None])
@pytest.mark.parametrize("prompt", [9, 25])
def test_m05_sliding_cache(windowed_pair, prompt, chunk_size):
    """Prefill in chunks, decode far past the window of 9: what the ring dropped is not missed."""
    pair = windowed_pair
    length = TRAINED if pair.case.trained and prompt <= TRAINED else 40
    cache, ids = new_cache(pair.ours.config, 2, length), pair.ids[:, :length]
    assert isinstance(cache, SlidingKVCache)
    found = measure.stepwise(
        pair.ours, ids[:, :prompt].tolist(), ids[:, prompt:], cache, chunk_size
    )
    assert difference(found, expected_steps(pair, ids, prompt)) < TOLERANCE


@pytest.mark.parametrize("length", [WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_m05_lengths_about_the_window(windowed_pair, length):
    """The mask alone, the ring in one pass, and the ring token by token are one and the same."""
    pair, ids = windowed_pair, windowed_pair.ids[:, :length]
    expected = measure.reference(pair.theirs, ids)
    for cache in caches(pair, length):
        assert difference(measure.whole(pair.ours, ids, cache), expected) < TOLERANCE
    prompt = TRAINED + 1 if pair.case.trained and length > TRAINED else 1
    cache = new_cache(pair.ours.config, 2, length)
    found = measure.stepwise(pair.ours, ids[:, :prompt].tolist(), ids[:, prompt:], cache)
    assert difference(found, expected[:, prompt - 1 :]) < TOLERANCE


def test_greedy_batch_equals_one_by_one(pair):
    """Requests that end at different times leave the batch; the others go on undisturbed."""
    prompts = [pair.ids[0, :4].tolist(), pair.ids[0, :11].tolist(), pair.ids[1, :2].tolist()]
    lengths = [3, 12, 7]

    def run(rows):
        requests = [Request(prompts[r], SamplingParams(max_new_tokens=lengths[r])) for r in rows]
        cache = new_cache(pair.ours.config, len(rows), 40)
        logits = prefill(pair.ours, [request.prompt_ids for request in requests], cache)
        for _ in decode(pair.ours, cache, logits, requests):
            pass
        return [request.token_ids for request in requests]

    together = run([0, 1, 2])
    assert together == [run([r])[0] for r in range(3)]
    assert [len(tokens) for tokens in together] == lengths
