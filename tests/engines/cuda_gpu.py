"""What the tests that need a GPU share: a longer text than those of the others, and its loop."""

from dataclasses import replace

import torch

from minillm.generate import Request, prefill
from minillm.sampling import SamplingParams
from tests.engines.cuda_models import BASE, DEVICE

LONG = replace(BASE, max_position_embeddings=256)
CAPACITY = 160


def run(engine, model, texts, tokens=20, **params):
    """One batch through the device-side loop, to its end."""
    cache = engine.new_cache(len(texts), CAPACITY)
    requests = [Request(text, SamplingParams(max_new_tokens=tokens, **params)) for text in texts]
    for request in requests:
        request.generator = torch.Generator(DEVICE).manual_seed(len(request.prompt_ids))
    steps = engine.decode(cache, prefill(model, texts, cache), requests)
    list(steps)
    return [request.token_ids for request in requests]
