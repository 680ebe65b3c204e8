"""A text from the C++ engine is the same, to the bit, alone and among others."""

from dataclasses import replace

import pytest
import torch

from minillm import LLM, SamplingParams
from minillm.generate import prefill
from minillm.kv_cache import new_cache
from tests.engines.cpu_models import alone, needs_library, on_blocks, wide
from tests.weights.test_gguf_blocks import gguf_of

pytestmark = needs_library

KINDS = [None, "float16", "int8", "int4"]


@pytest.fixture(autouse=True, params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def draw(*size):
    return torch.randint(0, 61, size, generator=torch.Generator().manual_seed(sum(size)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "biases", "gemma", "windows"])
@torch.inference_mode()
def test_rows_of_a_batch(name, kind, variant):
    """Prompts around the sizes at which products change their way, then single tokens."""
    config = replace(wide(name), max_position_embeddings=256)
    model = alone(on_blocks(config, "Q8_0"))
    prompts = [draw(n).tolist() for n in (3, 9, 2, 17, 40)]
    more = draw(len(prompts), 6)

    def logits(rows):
        cache = new_cache(config, len(rows), 50, kind=kind)
        first = prefill(model, [prompts[row] for row in rows], cache)
        steps = [model.logits(model(step, cache))[:, 0] for step in more[rows].split(1, dim=1)]
        return torch.stack([first, *steps], dim=1)

    together = logits(list(range(len(prompts))))
    for row in range(len(prompts)):
        assert torch.equal(logits([row])[0], together[row])
    assert torch.equal(logits([4, 2]), together[[4, 2]])


@torch.inference_mode()
def test_long_rows_beside_short_ones(threads):
    """Rows of several pieces of keys, cut among threads."""
    config = replace(wide("llama"), max_position_embeddings=1024)
    model = alone(on_blocks(config, "Q8_0"))
    prompts = [draw(n).tolist() for n in (700, 3, 257)]

    def logits(rows):
        cache = new_cache(config, len(rows), 710, kind="float16")
        prefill(model, [prompts[row] for row in rows], cache)
        return model.logits(model(torch.full((len(rows), 1), 5), cache))

    together = logits([0, 1, 2])
    for row in range(3):
        assert torch.equal(logits([row])[0], together[row])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(logits([0, 1, 2]), together)
    torch.set_num_threads(before)


def test_seeds_give_the_same_text_whatever_the_neighbours(tmp_path):
    llm = LLM.from_pretrained(gguf_of("llama", tmp_path, "Q4_0"), backend="cpu", kv_cache="float16")
    prompts = [[5, 9, 2], list(range(30)), [7, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    each = [
        SamplingParams(max_new_tokens=n, temperature=1.0, seed=n, ignore_eos=True)
        for n in (20, 5, 31, 12)
    ]
    together = llm.generate(prompts, each)
    for prompt, params, output in zip(prompts, each, together, strict=True):
        assert llm.generate(prompt, params).token_ids == output.token_ids
