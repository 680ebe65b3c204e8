"""Quantizing a whole model: block by block, each fed by the quantized blocks before it.

int8 and int4 look at weights only. gptq and awq need to know what each linear layer is given. So a
calibration text runs through the model, one block at a time: its hidden states before a block are
kept, the block's inputs are observed, its weights are replaced, and the block as it is then makes
the hidden states before the next one. Each block is thus quantized for inputs that bear the errors
of all earlier ones, and only one block at a time exists both ways.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from minillm.calibration import Stream, check_calibration, observe
from minillm.model import Block, Transformer
from minillm.quantization.awq import fold_block
from minillm.quantization.gptq import gptq
from minillm.quantization.int4 import Quantized
from minillm.quantization.linear import QuantizedLinear, put, quantizable
from minillm.quantization.memory import trim
from minillm.quantization.scheme import CALIBRATED, Scheme, check_group_size
from minillm.quantization.statistics import Statistics

# GPTQ wants so many tokens per input column of a layer. With fewer it fits those so closely that
# outputs for others may be worse than with plain rounding.
ENOUGH = 1
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Report:
    """What was done to a model.

    layers: linear layers that hold codes now. bytes_before, bytes_after: what these layers take.
    errors: of a calibrated method, for each block: the squared error of its output, relative to the
    square of what the block adds to its input, on the calibration text.
    rounded: layers that gptq only rounded, because too few calibration tokens reached them: experts
    that were rarely chosen.
    """

    scheme: Scheme
    layers: int
    bytes_before: int
    bytes_after: int
    errors: tuple[float, ...] = ()
    rounded: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = (
            f"{self.layers} layers quantized with {self.scheme.method}: "
            f"{self.bytes_before / 1e6:,.1f} → {self.bytes_after / 1e6:,.1f} MB"
        )
        if self.errors:
            text += f"; a block's output is off by {max(self.errors):.2%} of its square at most"
        if self.rounded:
            text += f"; of these {len(self.rounded)} only rounded, as too few tokens reached them"
        return text


@torch.no_grad()
def quantize_model(
    model: Transformer,
    scheme: Scheme,
    calibration: Sequence[Sequence[int]] = (),
    *,
    progress: bool = True,
) -> Report:
    """Replace the linear layers of a model's blocks by `QuantizedLinear`, in place.

    Embedding, head, norms and routers stay as they are. A layer's weights are never written to, as
    they may be a file's own pages, and are let go when its codes exist.

    calibration: token ids for gptq and awq, see `calibration_sequences`. The same ids give the same
    codes. progress: show a bar on stderr, where that is a terminal.
    Memory beyond the model: a few copies of the largest weight, and for gptq and awq 4·C² bytes for
    each input of width C in a block, and 8·C bytes per calibration token.
    Raises ValueError, before anything is changed, for a model without such layers, a group size
    that does not fit, and calibration ids that are missing or bad. Weights or inputs that are not
    finite are found on the way, and leave the model in part quantized; the message names the layer.
    """
    names = list(quantizable(model))
    if not names:
        raise ValueError("the model has no linear layers in floating point, so none to quantize")
    if scheme.group_size != -1:
        check_group_size(scheme.group_size, *{linear.in_features for linear in _linears(model)})
    before = sum(map(_nbytes, _linears(model)))
    errors, rounded = [], []
    if scheme.method in CALIBRATED:
        most = model.config.context or max(map(len, calibration), default=1)
        check_calibration(calibration, model.config.vocab_size, most)
        stream = Stream(model, calibration)
        for index, block in enumerate(_bar(model.layers, progress)):
            with _named(f"layers.{index}"):
                error, few = quantize_block(cast(Block, block), stream, scheme)
            trim()  # the statistics are gone now
            errors.append(error)
            rounded += [f"layers.{index}.{path}" for path in few]
    else:
        for name in _bar(names, progress):
            with _named(name):
                replace(model, name, scheme.round)
    after = sum(_nbytes(model.get_submodule(name)) for name in names)
    return Report(scheme, len(names), before, after, tuple(errors), tuple(rounded))


def quantize_block(block: Block, stream: Stream, scheme: Scheme) -> tuple[float, list[str]]:
    """Quantize a block by gptq or awq for the inputs that a stream brings, and move the stream on.

    Returns the error that `Report.errors` describes, and the paths of layers that were only rounded
    for lack of tokens.
    """
    paths = list(quantizable(block))
    statistics, exact = observe(block, stream, paths)
    if scheme.method == "awq":
        fold_block(block, statistics, scheme)
    few = []
    for path in paths:
        quantize: Callable[[Tensor], Quantized] = scheme.round
        if scheme.method == "gptq" and _enough(statistics[path]):
            quantize = partial(_gptq, statistics=statistics[path], scheme=scheme)
        elif scheme.method == "gptq":
            few.append(path)
        with _named(path):
            replace(block, path, quantize)
    before, stream.hidden = stream.hidden, stream.through(block)
    return relative_error(before, exact, stream.hidden), few


def replace(model: nn.Module, name: str, quantize: Callable[[Tensor], Quantized]) -> None:
    """Put a `QuantizedLinear` in the place of a linear layer, whose weights are let go."""
    linear = cast(nn.Linear, model.get_submodule(name))
    put(model, name, QuantizedLinear.from_linear(linear, quantize))
    del linear
    trim()


def relative_error(
    before: Sequence[Tensor], exact: Sequence[Tensor], found: Sequence[Tensor]
) -> float:
    """A block's error in parts of what it does: Σ (found - exact)² / Σ (exact - before)²."""
    wrong = sum(map(_squared_distance, exact, found))
    added = sum(map(_squared_distance, before, exact))
    return wrong / added if added else 0.0


def _squared_distance(x: Tensor, y: Tensor) -> float:
    return (x.float() - y.float()).square().sum().item()


def _enough(statistics: Statistics) -> bool:
    return statistics.tokens >= ENOUGH * len(statistics.mean_abs)


def _gptq(weight: Tensor, statistics: Statistics, scheme: Scheme) -> Quantized:
    return gptq(
        weight,
        statistics.hessian,
        scheme.group_size,
        bits=scheme.bits,
        symmetric=scheme.symmetric,
        act_order=scheme.act_order,
    )


def _linears(model: nn.Module) -> Iterable[nn.Linear]:
    return quantizable(model).values()


def _nbytes(module: nn.Module) -> int:
    return sum(x.nbytes for x in (*module.parameters(), *module.buffers()))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say in which part of the model a ValueError arose."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _bar(items: Iterable[Item], shown: bool) -> Iterable[Item]:
    """The parts of the model as they are worked on, with a bar on stderr."""
    from tqdm import tqdm

    quiet = None if shown else True  # None: where stderr is no terminal
    return cast(Iterable[Item], tqdm(items, desc="quantize", leave=False, disable=quiet))
