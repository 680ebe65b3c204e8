"""AWQ: before rounding, make the columns larger whose inputs are large.

A column's rounding errors are multiplied by its input. If the column is multiplied by s > 1 and the
input divided by s, the layer computes the same, but the errors that reach the output are s times
smaller, for as long as the group's range, and with it the size of a step, stays what it was. Other
columns of the group pay where it does not. So s is searched for, and measured by the output.

The division costs nothing when the model runs, because it is done once, to the weights of whatever
produces the input: a norm, or the rows of another linear layer. (Rows have scales of their own, so
that to divide one changes nothing about how it will be rounded.)

Source: Lin et al. 2023, arXiv 2306.00978, section 3.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from minillm.layers.mlp import MLP
from minillm.layers.moe import MoE
from minillm.layers.norm import RMSNorm
from minillm.quantization.linear import CodedLinear
from minillm.quantization.scheme import Scheme
from minillm.quantization.statistics import Statistics, output_error

if TYPE_CHECKING:
    from minillm.model import Block

__all__ = ["activation_scales", "search_scales"]

# A channel counts as at least this share of the largest one, so that scales stay within 0.01 … 100.
SMALLEST = 1e-4


class ScaleSearch(NamedTuple):
    """What `search_scales` found.

    scales: (C,), float32, positive: one for each input channel.
    alphas: the exponents that were tried, 0 first. errors: the output's mean squared error at each.
    """

    scales: Tensor
    alphas: list[float]
    errors: list[float]


def activation_scales(mean_abs: Tensor, alpha: float) -> Tensor:
    """Scales from the size of inputs: s = mean|x|^α, divided by √(max s · min s).

    α = 0 is no scaling, with α = 1 all channels become equally large. The division puts the largest
    and the smallest s equally far from 1, so that neither weights nor inputs leave their dtype's
    range; what is rounded hardly depends on it, as a factor common to all columns scales the steps
    too. A channel that was never anything but 0 has no scale of its own: it counts as 1/10,000 of
    the largest.

    mean_abs: (C,), at least 0. Returns (C,), float32, all within 0.01 … 100.
    """
    level = mean_abs.float() / mean_abs.max().clamp(min=torch.finfo(torch.float32).tiny)
    scales = level.clamp(min=SMALLEST) ** alpha
    return scales / (scales.max() * scales.min()).sqrt()


def search_scales(
    weights: Sequence[Tensor], statistics: Statistics, scheme: Scheme, *, steps: int = 20
) -> ScaleSearch:
    """The exponent α at which scaled, rounded and unscaled weights change the output least.

    error(α) = mean |(round(W·s)/s - W)·x|², by `output_error`, with s from `activation_scales`.
    α = 0 is rounding to nearest: on the calibration text the result is never worse than that.

    weights: (N, C) each, of the layers that share one input, such as q, k and v: they have to share
    its scales. statistics: of that input. scheme: bits, group size and symmetry of the rounding.
    steps: how many α are tried, evenly from 0 to 1. 2·steps·N·C² FLOPs.
    Raises ValueError for statistics of another width or that are not finite, fewer than 1 step, and
    what `scheme.round` refuses.
    Source: Lin et al. 2023, arXiv 2306.00978, equations 4 and 5.
    """
    check_inputs(weights, statistics)
    if steps < 1:
        raise ValueError(f"steps is {steps}; at least 1 exponent has to be tried")
    alphas = torch.linspace(0, 1, steps).tolist()
    candidates = [activation_scales(statistics.mean_abs, alpha) for alpha in alphas]
    errors = []
    for scales in candidates:
        total = 0.0
        for weight in weights:
            rounded = scheme.round(weight.float() * scales).dequantize() / scales
            total += output_error(rounded - weight, statistics.hessian) * len(weight)
        errors.append(total / sum(map(len, weights)))
    best = errors.index(min(errors))
    return ScaleSearch(candidates[best], alphas, errors)


def fold_scales(
    scales: Tensor, producer: nn.Linear | RMSNorm, consumers: Sequence[nn.Linear]
) -> None:
    """Divide what one layer gives by s, and multiply what others do with it: x/s · (W·s)ᵀ = x·Wᵀ.

    scales: (C,), positive. producer: a norm over C values or a linear layer with C outputs.
    consumers: all linear layers that are given its output, or its product with something else.
    Their weights become new tensors; the old ones, which may lie in a read-only file, stay as they
    are.
    """
    if isinstance(producer, RMSNorm):
        scales = divide_norm(producer, scales)
    else:
        divide_rows(producer, scales)
    for linear in consumers:
        multiply_columns(linear, scales)


def divide_norm(norm: RMSNorm, scales: Tensor) -> Tensor:
    """Divide a norm's output by scales; returns by which it really is divided.

    What is stored is the weight less an offset. Near -offset a 16-bit number is too coarse for the
    quotient, so the scales follow from what could be stored. Where that is 0, nothing is divided.
    """
    before = norm.weight.float() + norm.offset
    stored = (before / scales - norm.offset).to(norm.weight.dtype)
    stored = torch.where(stored.float() + norm.offset == 0, norm.weight, stored)
    norm.weight = nn.Parameter(stored, requires_grad=False)
    after = stored.float() + norm.offset
    return torch.where(after == 0, 1.0, before / after)


def divide_rows(linear: nn.Linear, scales: Tensor) -> None:
    """Divide a linear layer's outputs by scales: the rows of its weight, and its bias."""
    linear.weight = _converted(linear.weight, linear.weight.float() / scales[:, None])
    if linear.bias is not None:
        linear.bias = _converted(linear.bias, linear.bias.float() / scales)


def multiply_columns(linear: nn.Linear, scales: Tensor) -> None:
    """Make up for inputs that are divided by scales."""
    linear.weight = _converted(linear.weight, linear.weight.float() * scales)


def _converted(old: Tensor, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.to(old.dtype), requires_grad=False)


@torch.no_grad()
def fold_block(block: "Block", statistics: Mapping[str, Statistics], scheme: Scheme) -> None:
    """Search scales for the inputs of all linear layers of a block, and fold them into it.

    Unquantized, the block computes what it did before, up to rounding. Where a model has no norm
    before attention or the network, nothing can take up the scales of q, k and v, or gate and up:
    those stay as they are.

    statistics: of each linear layer's input, by its path within the block: "self_attn.o_proj",
    "mlp.down_proj", "mlp.experts.3.up_proj". Of layers that share an input the first one's count.
    Peak memory: a few copies of the largest weight. Raises ValueError for a block of which a part
    is quantized already, and as `search_scales` does.
    """
    coded = [path for path, part in block.named_modules() if isinstance(part, CodedLinear)]
    if coded:
        raise ValueError(f"{coded[0]} is quantized already; awq scales floating-point weights")
    attention, norm = block.self_attn, block.input_layernorm
    if isinstance(norm, RMSNorm):
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        found = _search(projections, statistics["self_attn.q_proj"], scheme)
        fold_scales(found, norm, projections)
    # Each KV head serves several query heads: its D outputs have one scale each for all of them.
    heads = attention.v_proj.out_features // attention.head_dim, attention.head_dim
    shared = shared_by_heads(statistics["self_attn.o_proj"], *heads)
    found = _search([attention.o_proj], shared, scheme)
    divide_rows(attention.v_proj, found.view(heads[0], -1, heads[1])[:, 0].flatten())
    multiply_columns(attention.o_proj, found)
    _fold_feed_forward(block, statistics, scheme)


def _fold_feed_forward(
    block: "Block", statistics: Mapping[str, Statistics], scheme: Scheme
) -> None:
    """Gate and up of all experts share the norm before them, with the router too."""
    norm = block.post_attention_layernorm
    experts = {path: part for path, part in block.named_modules() if isinstance(part, MLP)}
    if isinstance(norm, RMSNorm):
        searched = [linear for mlp in experts.values() for linear in (mlp.gate_proj, mlp.up_proj)]
        inputs = merged([statistics[f"{path}.gate_proj"] for path in experts])
        router = [block.mlp.gate] if isinstance(block.mlp, MoE) else []
        fold_scales(_search(searched, inputs, scheme), norm, searched + router)
    for path, expert in experts.items():
        found = _search([expert.down_proj], statistics[f"{path}.down_proj"], scheme)
        fold_scales(found, expert.up_proj, [expert.down_proj])


def _search(linears: Sequence[nn.Linear], statistics: Statistics, scheme: Scheme) -> Tensor:
    return search_scales([linear.weight for linear in linears], statistics, scheme).scales


def shared_by_heads(statistics: Statistics, num_kv_heads: int, head_dim: int) -> Statistics:
    """Statistics of o_proj's input, with one mean |x| for all query heads that share a KV head.

    Scales made from them are alike within a group of heads, so that v_proj can take them up, and
    the search measures what such scales do.
    """
    shared = copy.copy(statistics)
    heads = statistics.mean_abs.view(num_kv_heads, -1, head_dim)  # (K, H/K, D)
    shared.mean_abs = heads.mean(dim=1, keepdim=True).expand_as(heads).flatten()
    return shared


def merged(parts: Sequence[Statistics]) -> Statistics:
    """Statistics of the inputs of several layers together, such as the experts of a layer.

    As each token passes through equally many experts, these are the statistics of all tokens.
    """
    whole = Statistics(len(parts[0].mean_abs), parts[0].mean_abs.device)
    whole.tokens = sum(part.tokens for part in parts)
    for part in parts:
        share = part.tokens / max(whole.tokens, 1)
        whole.hessian += part.hessian * share
        whole.mean_abs += part.mean_abs * share
    return whole


def check_inputs(weights: Sequence[Tensor], statistics: Statistics) -> None:
    """ValueError for no weights, and for statistics of other inputs or that are not finite."""
    width = len(statistics.mean_abs)
    shapes = [tuple(weight.shape) for weight in weights]
    if not shapes or any(len(shape) != 2 or shape[1] != width for shape in shapes):
        raise ValueError(
            f"the weights are {shapes}; matrices of {width} columns are needed, as wide as the "
            "inputs that the statistics are of"
        )
    if not bool(statistics.hessian.isfinite().all() and statistics.mean_abs.isfinite().all()):
        raise ValueError(
            "the statistics hold NaN or infinite values: so did the layer's inputs on the "
            "calibration text, or their squares"
        )
