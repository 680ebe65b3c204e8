"""A model that was changed after the C++ engine had read it: the engine sees it, or steps aside."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize, prune

from minillm.engines import accelerate
from minillm.engines.base import Accelerated, Unsupported
from minillm.engines.cpu import CpuEngine
from minillm.kv_cache import new_cache
from minillm.layers.mlp import swiglu
from minillm.model import Block, Transformer
from minillm.quantization.linear import put
from tests.engines.cpu_models import (
    TOLERANCE,
    alone,
    needs_library,
    off_by,
    on_blocks,
    on_codes,
    transformer,
    wide,
)
from tests.engines.cuda_models import BASE, MODELS

pytestmark = needs_library

IDS = torch.tensor([[5, 9, 2, 7]])


def logits(model):
    with torch.inference_mode():
        return model.logits(model(IDS, new_cache(model.config, 1, 9)))


class Doubled(nn.Module):
    """Anything around a module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        return self.inner(*args) * 2


class Adapted(nn.Linear):
    """A layer with more than its weight, as adapters are often written."""

    def forward(self, x):
        return super().forward(x) + x.sum(-1, keepdim=True)


class Squared(nn.Module):
    """A weight that is worked out of another."""

    def forward(self, weight):
        return weight.square()


def adapted(model, name):
    plain = model.get_submodule(name)
    layer = Adapted(plain.in_features, plain.out_features, bias=False)
    layer.weight = plain.weight
    put(model, name, layer)


def patched(module):
    forward = module.forward
    module.forward = lambda *args: forward(*args) * 2


def wrapped(model, name):
    put(model, name, Doubled(model.get_submodule(name)))


def shorter(model):
    model.layers = model.layers[:2]


def sharper(model):
    model.layers[1].self_attn.query_scale *= 3


CHANGES = {
    "a subclass of Linear": lambda m: adapted(m, "layers.0.mlp.up_proj"),
    "a subclass of the head": lambda m: adapted(m, "lm_head"),
    "forward of a layer": lambda m: patched(m.layers[0].mlp.up_proj),
    "forward of an MLP": lambda m: patched(m.layers[1].mlp),
    "forward of a norm": lambda m: patched(m.norm),
    "a wrapped block": lambda m: wrapped(m, "layers.0"),
    "wrapped attention": lambda m: wrapped(m, "layers.2.self_attn"),
    "a wrapped MLP": lambda m: wrapped(m, "layers.2.mlp"),
    "a wrapped norm": lambda m: wrapped(m, "norm"),
    "a wrapped layer": lambda m: wrapped(m, "layers.0.self_attn.q_proj"),
    "parametrized": lambda m: parametrize.register_parametrization(
        m.layers[0].mlp.up_proj, "weight", Squared()
    ),
    "pruned": lambda m: prune.l1_unstructured(m.layers[0].mlp.up_proj, "weight", 0.5),
    "fewer layers": shorter,
    "one layer more": lambda m: m.layers.append(transformer(BASE, seed=1).layers[0]),
    "epsilon": lambda m: setattr(m.layers[0].input_layernorm, "eps", 0.5),
    "gating": lambda m: setattr(m.layers[0].mlp, "gating", "geglu"),
    "query scale": sharper,
    "no head": lambda m: delattr(m, "lm_head"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change(name):
    """What comes after it is what the modules give, and is not what came before."""
    model = transformer(BASE)
    ours = Accelerated(model, CpuEngine(model))
    before = logits(ours)
    CHANGES[name](model)
    after = logits(ours)
    assert off_by(after, logits(model)).max() < TOLERANCE
    assert off_by(after, before).max() > 0.01


def linear(model, C, F):
    put(model, "layers.1.mlp.gate_proj", nn.Linear(C, F, bias=False))


# Tensors that do not fit: C++ would read or write past their end.
MISFITS = {
    "too few rows": lambda m: linear(m, 32, 16),
    "too many rows": lambda m: linear(m, 32, 64),
    "too few columns": lambda m: linear(m, 8, 48),
    "a short norm": lambda m: setattr(m.layers[0].input_layernorm.weight, "data", torch.ones(3)),
    "a short bias": lambda m: setattr(m.layers[0].mlp.up_proj.bias, "data", torch.ones(2)),
    "a short table": lambda m: put(m, "embed_tokens", nn.Embedding(6, 32)),
    "a narrow table": lambda m: put(m, "embed_tokens", nn.Embedding(61, 16)),
    "a narrow head": lambda m: put(m, "lm_head", nn.Linear(16, 61, bias=False)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_tensors_that_do_not_fit_raise_what_the_modules_raise(name):
    model = transformer(replace(MODELS["biases"], tie_word_embeddings=False))
    ours = Accelerated(model, CpuEngine(model))
    MISFITS[name](model)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        logits(model)
    with pytest.raises(expected.type):
        logits(ours)
    if name != "a narrow head":  # the modules run that one, and no other part
        with pytest.raises(Unsupported):
            CpuEngine(model)


@pytest.mark.parametrize("part", ["codes", "scales", "zeros"])
def test_codes_that_change_in_place(part):
    model = on_codes(wide("llama"), 8, 32)
    ours = alone(model)
    before = logits(ours)
    model.layers[1].mlp.up_proj.get_buffer(part).mul_(2)
    fresh = logits(alone(model))
    assert torch.equal(logits(ours), fresh)
    assert off_by(fresh, before).max() > 0.01
    other = {name: x.flip(0) for name, x in model.state_dict().items()}
    model.load_state_dict(other)  # copies into the same tensors
    fresh = logits(alone(model))
    assert torch.equal(logits(ours), fresh)
    blocks = on_blocks(wide("llama"), "Q8_0")
    ours = alone(blocks)
    before = logits(ours)
    blocks.layers[0].mlp.up_proj.data[:, 2:] = 3
    assert torch.equal(logits(ours), logits(alone(blocks)))
    assert off_by(logits(ours), before).max() > 0.01


def test_ops_that_were_replaced_before():
    model = transformer(BASE)
    model.ops = replace(model.ops, swiglu=lambda gate, up: 2 * swiglu(gate, up))
    with pytest.raises(ValueError, match="cannot run this model: one of its ops was replaced"):
        accelerate(model, "cpu")


def test_a_model_of_another_class():
    class Mine(Transformer):
        def forward(self, *args):
            return super().forward(*args) * math.pi

    with pytest.raises(Unsupported, match="the model is a Mine"):
        CpuEngine(Mine(BASE))
    model = transformer(BASE)
    model.layers[0] = type("Other", (Block,), {})(BASE, BASE.layers[0], 0)
    with pytest.raises(Unsupported, match=r"layers\.0 is a Other"):
        CpuEngine(model)
    twice = accelerate(accelerate(transformer(BASE), "cpu"), "cpu")
    assert off_by(logits(twice), logits(transformer(BASE))).max() < TOLERANCE


def test_weights_that_move_to_another_device():
    ours = accelerate(transformer(BASE), "cpu").to("meta")
    hidden = ours(IDS.to("meta"), new_cache(BASE, 1, 9, device="meta"))
    assert hidden.shape == (1, 4, 32)


def test_gradients():
    """Recorded where a weight, or the input of the head, wants one; else the engine runs."""
    model = transformer(BASE)
    ours = accelerate(model, "cpu")
    model.layers[1].mlp.up_proj.weight.requires_grad_(True)
    for runner in (model, ours):
        hidden = runner(IDS, new_cache(BASE, 1, 9))
        runner.logits(hidden).square().mean().backward()
    grad = model.layers[1].mlp.up_proj.weight.grad
    model.layers[1].mlp.up_proj.weight.grad = None
    model.logits(model(IDS, new_cache(BASE, 1, 9))).square().mean().backward()
    assert torch.allclose(grad, 2 * model.layers[1].mlp.up_proj.weight.grad)
    assert logits(alone(model)).isfinite().all()  # in inference mode none are


def test_hooks_of_all_modules_are_heard():
    heard: list[object] = []
    ours = accelerate(transformer(BASE), "cpu")
    handle = register_module_forward_hook(lambda module, *_: heard.append(type(module)))
    try:
        logits(ours)
    finally:
        handle.remove()
    assert heard.count(Block) == 3
    logits(ours)
    assert heard.count(Block) == 3
