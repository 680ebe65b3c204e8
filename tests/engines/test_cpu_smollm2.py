"""The C++ engine on the real model's own blocks, against the modules."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from minillm import LLM
from minillm.kv_cache import new_cache
from minillm.model import Transformer
from minillm.ops import Ops
from tests.engines.cpu_models import TOLERANCE, alone, needs_library, off_by, rms

pytestmark = [needs_library, pytest.mark.slow]
LENGTH = 40


@pytest.fixture(scope="module")
def blocks(smollm2):
    """SmolLM2 on the GGUF file's blocks, a text, the modules' logits, and what layers are given."""
    llm = LLM.from_pretrained(smollm2, quantize="gguf", backend="torch", device="cpu")
    ids = torch.randint(0, 49_152, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    given: list[torch.Tensor] = []
    hooks = [x.register_forward_pre_hook(lambda _, x: given.append(x[0])) for x in llm.model.layers]
    with torch.inference_mode():
        expected = llm.model.logits(llm.model(ids, llm.new_cache(1, LENGTH)))
    for hook in hooks:
        hook.remove()
    return llm.model, ids, expected, given


def nudged(x, weight, eps):
    """A norm whose results are off by about the last bit of a float32."""
    return Ops().rms_norm(x, weight, eps) * (1 + 3e-8 * torch.randn(x.shape))


@torch.inference_mode()
def test_logits(blocks, record_property):
    """Whole, in chunks, and token by token.

    Of the inputs that 30 layers round some number falls so close to the middle of two codes that
    the order of additions decides; from there on two computations part. The modules differ from
    themselves, with activations changed in the last bit, as much as the engine does from them.
    """
    model, ids, expected, _ = blocks
    ours = alone(model)
    torch.manual_seed(0)
    model.ops = replace(model.ops, rms_norm=nudged)
    try:
        themselves = model.logits(model(ids, new_cache(model.config, 1, LENGTH)))
    finally:
        model.ops = Ops()
    noise = rms(themselves - expected)
    for size in (LENGTH, 7, 1):
        cache = new_cache(model.config, 1, LENGTH)
        found = torch.cat([ours.logits(ours(x, cache)) for x in ids.split(size, dim=1)], dim=1)
        assert rms(found - expected) < 2 * noise
    record_property(
        "figure",
        f"SmolLM2 from its blocks, rms of logits: {rms(expected):.2f}; of the difference between "
        f"engine and modules {rms(found - expected):.3f}, between modules and modules {noise:.3f}",
    )


@pytest.mark.parametrize("index", [0, 7, 15, 22, 29])
@torch.inference_mode()
def test_each_layer_by_itself(blocks, index):
    """Given what the layer is given, it gives the same, but where a number rounds the other way."""
    model, _, _, given = blocks
    config = model.config
    config = replace(config, num_hidden_layers=1, layers=config.layers[:1], vocab_size=LENGTH)
    # Token t of its table is what the layer is given at position t.
    one = Transformer(replace(config, tie_word_embeddings=True))
    one.embed_tokens = nn.Embedding.from_pretrained(given[index][0])
    one.layers, one.norm = nn.ModuleList([model.layers[index]]), model.norm
    ids, before = torch.arange(LENGTH)[None], model.layers[index].self_attn.index
    model.layers[index].self_attn.index = 0
    try:
        expected = one(ids, new_cache(config, 1, LENGTH))
        found = alone(one)(ids, new_cache(config, 1, LENGTH))
    finally:
        model.layers[index].self_attn.index = before
    off = off_by(found, expected)
    # One such number moves what later tokens see of this one, too.
    assert (off < TOLERANCE).float().mean() > 0.2
    assert off.max() < 0.02
