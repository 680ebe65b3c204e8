"""AWQ's folding: alone it changes nothing, and rounding makes the errors that were searched."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minillm.kv_cache import new_cache
from minillm.layers.norm import RMSNorm
from minillm.quantization import awq
from minillm.quantization.awq import divide_norm, fold_block, search_scales
from minillm.quantization.linear import QuantizedLinear
from minillm.quantization.scheme import Scheme
from minillm.quantization.statistics import Statistics
from tests.parity import measure
from tests.parity.models import RICHEST, saved, token_ids

GROUPS_8 = Scheme("awq", 4, 8, symmetric=False)
# Every family at its richest, and what else there is: biases, one KV head, as many as query heads.
FOLDED = [*RICHEST.values(), "llama-biased", "llama-mqa", "llama-mha", "llama-wide-heads"]
FOLDED += ["qwen3-tied-biased", "gemma3-untied", "olmo2-biased-tied", "qwen3-moe", "mixtral-tied"]


def generator(seed):
    return torch.Generator().manual_seed(seed)


def statistics_of(x):
    found = Statistics(x.shape[-1])
    found.add(x)
    return found


def opened(name, dtype=torch.float32) -> Any:
    return measure.ours(saved(name), dtype)


def linears(model):
    """The linear layers of the blocks, by block and path."""
    for index, block in enumerate(model.layers):
        found = block.named_modules()
        yield from ((index, path, part) for path, part in found if isinstance(part, nn.Linear))


def logits(model):
    ids = token_ids(2, measure.LENGTH)
    cache = new_cache(model.config, *ids.shape, dtype=model.embed_tokens.weight.dtype)
    return measure.whole(model, ids, cache)


def uneven(width, seed):
    """Statistics of inputs that differ by orders of magnitude from channel to channel."""
    g = generator(seed)
    size = (1.5 * torch.randn(width, generator=g)).exp()
    return statistics_of(torch.randn(64, width, generator=g) * size)


def fold(model, scheme=GROUPS_8):
    """Fold every block, with statistics that are not the model's own: they only choose scales."""
    given: list[dict[str, Statistics]] = [{} for _ in model.layers]
    for index, path, linear in linears(model):
        given[index][path] = uneven(linear.in_features, seed=7 * index + len(path))
    for block, statistics in zip(model.layers, given, strict=True):
        fold_block(block, statistics, scheme)


def unscaled(model, path):
    """Whether nothing comes before a linear layer that could take up its scales."""
    return model.config.norms == "after" and path.endswith(("q_proj", "k_proj", "gate_proj"))


@pytest.mark.parametrize("name", FOLDED)
def test_folding_alone_changes_nothing(name, record_property):
    model = opened(name)
    before = logits(model)
    old = {key: parameter.detach() for key, parameter in model.named_parameters()}
    copies = {key: tensor.clone() for key, tensor in old.items()}
    fold(model)
    found = measure.difference(logits(model), before)
    record_property("figure", f"AWQ's folding alone, {name}: {found:.1e} of the largest logit")
    assert found < 1e-5
    new = dict(model.named_parameters())
    for index, path, linear in linears(model):
        ratio = (linear.weight / old[f"layers.{index}.{path}.weight"]).abs()
        spread = float(ratio.max() / ratio.min())
        assert spread == 1 if unscaled(model, path) else spread > 2, (index, path)
    # What the file holds is not written to, and nothing else becomes another.
    assert all(torch.equal(old[key], copies[key]) for key in old)
    assert all(p.dtype == old[key].dtype and not p.requires_grad for key, p in new.items())
    rest = ("embed_tokens", "lm_head", "q_norm", "k_norm", "post_self_attn", "post_mlp")
    for key, parameter in new.items():
        if any(part in key for part in rest) or key == "norm.weight":
            assert torch.equal(parameter, copies[key]), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama3-rope", "gemma3-linear"])
def test_folding_in_sixteen_bits(name, dtype):
    """No further from float32 than twice what the dtype itself does."""
    exact = logits(opened(name))
    model = opened(name, dtype)
    before = measure.Errors.of(logits(model), exact)
    fold(model)
    after = measure.Errors.of(logits(model), exact)
    assert after.rms < 2 * before.rms
    assert {p.dtype for p in model.parameters()} == {dtype}


@pytest.mark.parametrize("name", ["llama3-rope", "llama-mqa", "qwen3-window", "llama-wide-heads"])
def test_heads_that_share_values_share_scales(name):
    """Query heads h with the same h // (H/K) read the same rows of v_proj."""
    model = opened(name)
    H, K = model.config.num_attention_heads, model.config.num_key_value_heads
    attention = model.layers[1].self_attn
    o_before, v_before = attention.o_proj.weight.double(), attention.v_proj.weight.double()
    fold(model)
    ratios = (attention.o_proj.weight / o_before)[0].view(H, -1)
    for head in range(H):
        torch.testing.assert_close(ratios[head], ratios[head // (H // K) * (H // K)])
    assert float(ratios.max() / ratios.min()) > 2
    # v's columns were multiplied too, for the norm before it: per row only one factor is left.
    rows = (attention.v_proj.weight / v_before).view(K, -1, model.config.hidden_size)
    product = rows * ratios[:: H // K, :, None]
    torch.testing.assert_close(product, product[:1, :1].expand_as(product), rtol=1e-5, atol=0)


class Inputs:
    """Inputs and weights of all linear layers of a model during one forward pass."""

    def __init__(self, model):
        self.x, handles = {}, []
        for index, path, linear in linears(model):
            save = functools.partial(self._save, (index, path))
            handles.append(linear.register_forward_pre_hook(save))
        logits(model)
        for handle in handles:
            handle.remove()
        self.weights = {(index, path): part.weight for index, path, part in linears(model)}

    def _save(self, key, module, args):
        self.x[key] = args[0].detach().flatten(0, -2)

    def statistics(self, index):
        own = {path: part for (block, path), part in self.weights.items() if block == index}
        empty = {path: Statistics(weight.shape[1]) for path, weight in own.items()}
        seen = {path: statistics_of(x) for (block, path), x in self.x.items() if block == index}
        return empty | seen


@pytest.mark.parametrize("name", ["llama3-rope", "gemma3-linear", "olmo2-yarn", "mixtral-window"])
def test_the_error_that_is_searched_is_the_one_that_rounding_makes(name, monkeypatch):
    """For every search: its error, and what the folded weights give when rounded, on their inputs.

    Outputs that were divided (v's for the sake of o, up's for down) are multiplied back first.
    The sum over the experts of a layer is left out: each is given only its own tokens.
    """
    model = opened(name)
    before = Inputs(model)
    searched = []

    def spy(weights, *args, **options):
        found = search_scales(weights, *args, **options)
        searched.append(([weight.data_ptr() for weight in weights], found))
        return found

    monkeypatch.setattr(awq, "search_scales", spy)
    for index, block in enumerate(model.layers):
        fold_block(block, before.statistics(index), GROUPS_8)
    after = Inputs(model)
    checked = 0
    keys = list(before.weights)
    for _, found in searched:
        assert min(found.errors) <= found.errors[0]
    for pointers, found in searched:
        parts = [keys[i] for i, w in enumerate(before.weights.values()) if w.data_ptr() in pointers]
        if parts[0] not in after.x or (".experts." in parts[0][1] and len(parts) > 1):
            continue
        squares = []
        for key in parts:
            weight, x = after.weights[key], after.x[key]
            y_before = before.x[key].double() @ before.weights[key].double().T
            y = x.double() @ weight.double().T
            divided_by = (y_before * y).sum(dim=0) / (y * y).sum(dim=0)
            rounded = x.double() @ GROUPS_8.round(weight).dequantize().double().T
            squares.append((((rounded - y) * divided_by) ** 2).mean(dim=0))
        # Divided rows have scales that float16 rounds otherwise, which tips codes that stand on
        # the edge; o_proj's and down_proj's rows stay.
        bound = 1e-4 if len(parts) == 1 else 0.03
        assert float(torch.cat(squares).mean()) == pytest.approx(min(found.errors), rel=bound)
        checked += 1
    assert checked >= 2 * len(model.layers)


def test_experts_without_tokens_stay_unscaled():
    model = opened("mixtral")
    before = logits(model)
    block = model.layers[0]
    statistics = {p: uneven(part.in_features, 1) for i, p, part in linears(model) if i == 0}
    for name in ("gate_proj", "up_proj", "down_proj"):
        path = f"mlp.experts.2.{name}"
        statistics[path] = Statistics(len(statistics[path].mean_abs))
    down = block.mlp.experts[2].down_proj.weight.clone()
    others = block.mlp.experts[1].down_proj.weight.clone()
    fold_block(block, statistics, GROUPS_8)
    assert torch.equal(block.mlp.experts[2].down_proj.weight, down)
    assert not torch.equal(block.mlp.experts[1].down_proj.weight, others)
    assert measure.difference(logits(model), before) < 1e-5


def test_a_block_that_is_quantized_in_part_is_refused():
    model = opened("llama3")
    attention = model.layers[0].self_attn
    attention.k_proj = QuantizedLinear.from_linear(attention.k_proj, GROUPS_8.round)
    before = [parameter.detach() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=r"self_attn\.k_proj is quantized already"):
        fold(model)
    assert all(map(torch.equal, model.parameters(), before))


def test_merged_statistics_are_those_of_all_inputs():
    x = torch.randn(70, 12, generator=generator(0))
    parts = [statistics_of(x[:10]), Statistics(12), statistics_of(x[10:])]
    found = awq.merged(parts)
    assert found.tokens == 70
    np.testing.assert_allclose(found.hessian, x.double().T @ x.double() / 70, atol=1e-6)
    np.testing.assert_allclose(found.mean_abs, x.double().abs().mean(dim=0), atol=1e-6)
    assert awq.merged([Statistics(12)]).hessian.tolist() == [[0] * 12] * 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_norm_takes_up_scales_as_far_as_its_numbers_can(dtype, offset):
    """What the norm gives times the scales it reports is what it gave, also near weight + 1 = 0."""
    values = torch.tensor([0.5, 0.0, -1.0, -0.999, -1.001, 3.0, 200.0, 1e-3])
    scales = torch.tensor([100.0, 50, 7, 99, 0.01, 0.013, 64, 100])
    norm = RMSNorm(8, 1e-6, offset)
    norm.weight = nn.Parameter(values.to(dtype), requires_grad=False)
    before = norm.weight.double() + offset
    applied = divide_norm(norm, scales)
    after = norm.weight.double() + offset
    assert norm.weight.dtype == dtype
    assert bool((applied.isfinite() & (applied != 0)).all())
    torch.testing.assert_close(after * applied, before, rtol=1e-6, atol=0)
    usable = before.abs() > 0.1  # there the scale is nearly the one that was asked for
    torch.testing.assert_close(applied[usable], scales[usable], rtol=0.6, atol=0)
    assert applied[before == 0].tolist() == [1] * int((before == 0).sum())
