"""What the C++ engine holds: no cache that is done with, no weights of a model that is gone, and
tables that do not grow with a text."""

import gc
from dataclasses import replace
from typing import Any
from weakref import ref

import pytest
import torch

from minillm import LLM, SamplingParams
from minillm.engines.cpu_tokens import KEPT
from minillm.kernels.cpu.products import Weight
from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from tests.engines.cpu_models import TOLERANCE, alone, needs_library, off_by, on_blocks, transformer
from tests.engines.cpu_models import wide as wide_config
from tests.engines.cuda_models import BASE
from tests.weights.test_gguf_blocks import gguf_of

pytestmark = needs_library


def test_a_closed_text_gives_its_cache_back(tmp_path, monkeypatch):
    """So does one that has come to its end."""
    llm, caches = LLM.from_pretrained(gguf_of("llama", tmp_path, "Q8_0"), backend="cpu"), []
    make = llm.new_cache

    def watched(*sizes) -> Any:
        cache: Any = make(*sizes)
        caches.append(ref(cache.keys))
        return cache

    monkeypatch.setattr(llm, "new_cache", watched)
    params = SamplingParams(max_new_tokens=20, ignore_eos=True)
    stream = llm.stream([5, 9, 2], params)
    next(stream)
    stream.close()
    llm.generate([[5, 9, 2], [7]], params)
    gc.collect()
    assert len(caches) == 2
    assert [cache() for cache in caches] == [None, None]


def test_weights_go_with_their_model():
    def weights():
        gc.collect()
        return sum(type(x) is Weight for x in gc.get_objects())

    before = weights()
    for _ in range(10):
        model = alone(on_blocks(wide_config("llama"), "Q4_0"))
        assert weights() > before
        del model
    assert weights() == before


@pytest.mark.usefixtures("many_tokens")
@torch.inference_mode()
def test_tables_stay_small_in_a_text_without_end():
    """Two rows on both sides of the last position that a table has, in windows."""
    config = replace(BASE, max_position_embeddings=10**6).with_window(7)
    model = transformer(config)
    ours, generator = alone(model), torch.Generator().manual_seed(0)
    steps = [torch.randint(0, 61, (2, T), generator=generator) for T in (9, 1, 1, 5, 1, 1)]
    results = []
    for runner in (ours, model):
        cache: Any = new_cache(config, 2, 100)
        cache.lengths = torch.tensor([KEPT - 12, 3 * KEPT])
        cache._reached = cache.lengths
        results.append(torch.cat([runner(ids, cache) for ids in steps], dim=1))
    assert off_by(*results).max() < TOLERANCE
    for cos, sin in ours.engine._tables._known.values():
        assert max(len(cos), len(sin)) <= KEPT


@pytest.mark.usefixtures("many_tokens")
@torch.inference_mode()
def test_the_same_text_on_both_sides_of_a_table(monkeypatch):
    """Whatever part of a text the tables cover."""
    model, ids = transformer(BASE), torch.arange(12)[None]
    expected = model(ids, DenseKVCache(BASE, 1, 12))
    for kept in (1, 5, 11, 12):
        monkeypatch.setattr("minillm.engines.cpu_tokens.KEPT", kept)
        ours, cache = alone(model), DenseKVCache(BASE, 1, 12)
        found = [ours(step, cache) for step in ids.split([3, 1, 1, 4, 1, 1, 1], dim=1)]
        assert off_by(torch.cat(found, dim=1), expected).max() < TOLERANCE
