"""The C++ engine against the modules: every feature and family, whole, in chunks, and decoding."""

import pytest
import torch

from minillm.generate import prefill
from minillm.kv_cache import new_cache
from minillm.kv_cache.dense import DenseKVCache
from tests.engines.cpu_models import (
    TOLERANCE,
    alone,
    needs_library,
    off_by,
    transformer,
)
from tests.engines.cuda_models import BASE, MODELS
from tests.parity import measure
from tests.parity.measure import LENGTH
from tests.parity.models import CASES, TRAINED
from tests.parity.pairs import pair_of

pytestmark = [needs_library, pytest.mark.usefixtures("many_tokens")]

DENSE = [name for name, case in CASES.items() if not case.kind.endswith(("Moe", "Mixtral"))]
PROMPTS = [11, 1, 6]  # tokens of each row
MORE = 7


def ragged(model, cache, chunk_size=None):
    """Logits of three prompts, and of seven tokens after each, one at a time."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda *size: torch.randint(0, model.config.vocab_size, size, generator=generator)  # noqa: E731
    prompts = [draw(length).tolist() for length in PROMPTS]
    return measure.stepwise(model, prompts, draw(len(PROMPTS), MORE), cache, chunk_size)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_every_feature(name, variant):
    model = transformer(MODELS[name])
    trained = MODELS[name].max_position_embeddings
    assert max(PROMPTS) + MORE < trained
    for make in (new_cache, DenseKVCache):
        expected = ragged(model, make(model.config, 3, 20))
        for chunk_size in (None, 1, 4):
            found = ragged(alone(model), make(model.config, 3, 20), chunk_size)
            if "dynamic" in name or "longrope" in name:  # chunks are told the whole length
                expected = ragged(model, make(model.config, 3, 20), chunk_size)
            assert off_by(found, expected).max() < TOLERANCE


@pytest.mark.parametrize("name", DENSE)
@torch.inference_mode()
def test_every_family(name):
    """Past the window and the trained length: in one pass, in chunks, and token by token."""
    pair = pair_of(name)
    ours, ids = alone(pair.ours), pair.ids
    expected = measure.whole(pair.ours, ids, new_cache(pair.ours.config, 2, LENGTH))
    found = measure.whole(ours, ids, new_cache(ours.config, 2, LENGTH))
    assert off_by(found, expected).max() < TOLERANCE
    for size in (7, 9, 17):
        found = measure.chunked(ours, ids, new_cache(ours.config, 2, LENGTH), size)
        assert off_by(found, expected).max() < TOLERANCE
    prompts, more = ids[:, : TRAINED + 1].tolist(), ids[:, TRAINED + 1 :]
    steps = (measure.stepwise(m, prompts, more, new_cache(m.config, 2, LENGTH))
             for m in (ours, pair.ours))  # fmt: skip
    found, expected = steps
    assert off_by(found, expected).max() < TOLERANCE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_16_bits_are_nearer_to_float32_than_the_modules(dtype):
    """The engine rounds stored keys, values and results; the modules after each operation too."""
    for name in ("llama", "gemma", "biases", "windows"):
        model = transformer(MODELS[name], dtype)
        exact = transformer(MODELS[name], dtype).float()
        wanted = ragged(exact, DenseKVCache(model.config, 3, 20))
        cache = [DenseKVCache(model.config, 3, 20, dtype=dtype) for _ in range(2)]
        found, theirs = ragged(alone(model), cache[0]), ragged(model, cache[1])
        assert found.dtype == dtype
        ours, modules = (off_by(x, wanted).square().mean() for x in (found, theirs))
        assert ours < modules
        assert off_by(found, wanted).max() < 4 * torch.finfo(dtype).eps


@torch.inference_mode()
def test_long_prompts(variant):
    """Several tiles of keys and queries, several chunks of tokens, and a window across them."""
    generator = torch.Generator().manual_seed(2)
    for config in (BASE, BASE.with_window(75, sinks=3, global_every=2)):
        model = transformer(config)
        ours, ids = alone(model), torch.randint(0, 61, (1, 333), generator=generator)
        expected = measure.whole(model, ids, DenseKVCache(config, 1, 340))
        found = measure.whole(ours, ids, DenseKVCache(config, 1, 340))
        assert off_by(found, expected).max() < TOLERANCE
        cache = DenseKVCache(config, 1, 340)
        prefill(ours, ids[:, :-1].tolist(), cache, 100)
        last = ours.logits(ours(ids[:, -1:], cache))
        assert off_by(last[:, 0], expected[:, -1]).max() < TOLERANCE
