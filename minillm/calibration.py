"""Calibration: a text runs through a model block by block, and the layers' inputs are observed."""

import random
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import cast

import torch
from torch import Tensor, nn

from minillm.kv_cache.one_pass import OnePass
from minillm.layers.embedding import embed
from minillm.model import Block, Step, Transformer
from minillm.quantization.statistics import Statistics
from minillm.tokenizer import AnyTokenizer

# Of linear layers that share an input the first one stands for all.
FIRST = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
LENGTH = 512
TOKENS = 8_192


def calibration_sequences(
    ids: Sequence[int], *, length: int = LENGTH, tokens: int = TOKENS, seed: int = 0
) -> list[list[int]]:
    """Cut a text into sequences for calibration, which do not overlap.

    Where the text has more than is taken, the seed draws what is: the same one, the same sequences.

    ids: the text's token ids. length: tokens per sequence. tokens: at most so many in all.
    Raises ValueError for a text shorter than one sequence, or a length outside 1 … tokens.
    """
    if not 1 <= length <= tokens:
        raise ValueError(
            f"length is {length}; a whole number from 1 to {tokens} (tokens) is needed"
        )
    if len(ids) < length:
        raise ValueError(
            f"the calibration text has {len(ids)} tokens; at least {length} are needed, which is "
            "one sequence"
        )
    draw = random.Random(seed)
    starts = range(draw.randint(0, len(ids) % length), len(ids) - length + 1, length)
    chosen = sorted(draw.sample(starts, min(len(starts), tokens // length)))
    return [list(ids[start : start + length]) for start in chosen]


def calibration_ids(tokenizer: AnyTokenizer, seed: int = 0) -> list[list[int]]:
    """The course's calibration text as sequences of token ids."""
    return calibration_sequences(tokenizer.encode(course_calibration_text()), seed=seed)


def course_calibration_text() -> str:
    """The text that comes with minillm for calibration."""
    file = resources.files("minillm.quantization") / "data" / "calibration.txt"
    return file.read_text(encoding="utf-8")


def check_calibration(sequences: Sequence[Sequence[int]], vocab_size: int, most: int) -> None:
    """ValueError for sequences that are missing, empty, too long, or hold unknown ids.

    most: tokens that the model's context holds.
    """
    if not sequences:
        raise ValueError(
            "there is no calibration text; sequences of token ids are needed, which "
            "calibration_sequences makes"
        )
    for ids in sequences:
        if not 1 <= len(ids) <= most:
            raise ValueError(f"a calibration sequence has {len(ids)} tokens; 1 to {most} are fine")
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            raise ValueError(
                f"the calibration ids go from {min(ids)} to {max(ids)}; allowed are 0 to "
                f"{vocab_size - 1}"
            )


class Stream:
    """Calibration sequences on their way through a model: the hidden states before some block.

    hidden: (1, T, C) for each sequence, at first the embeddings. C numbers per token.
    """

    def __init__(self, model: Transformer, sequences: Sequence[Sequence[int]]) -> None:
        self._ops, config, table = model.ops, model.config, model.embed_tokens.weight
        ids = [torch.tensor([list(sequence)], device=table.device) for sequence in sequences]
        self.hidden = [embed(x, table) for x in ids]
        if config.embedding_scale != 1:
            self.hidden = [x * x.new_tensor(config.embedding_scale) for x in self.hidden]
        lengths = {x.shape[1] for x in ids}
        self._caches = {T: OnePass(torch.arange(T)[None]) for T in lengths}
        # Sequences of one length share rotations and masks.
        self._steps = {
            T: Step(cache.positions, config.head_dim, table.device, torch.tensor([T]))
            for T, cache in self._caches.items()
        }

    def through(self, block: Block) -> list[Tensor]:
        """The hidden states after a block. The stream itself stays where it is."""
        return [self._run(block, x, x.shape[1]) for x in self.hidden]

    def _run(self, block: Block, x: Tensor, length: int) -> Tensor:
        out: Tensor = block(x, self._steps[length], self._caches[length], self._ops)
        return out


def observe(
    block: Block, stream: Stream, paths: Sequence[str]
) -> tuple[dict[str, Statistics], list[Tensor]]:
    """Run a stream through a block, and gather what some of its linear layers are given.

    paths: names of linear layers within the block, such as "self_attn.q_proj". Layers that share an
    input (q, k and v; gate and up) share its statistics, so these are gathered once.
    Returns the statistics by path, and the block's outputs.
    """
    statistics: dict[str, Statistics] = {}
    hooks = []
    for path in paths:
        parent, _, name = path.rpartition(".")
        first = f"{parent}.{FIRST.get(name, name)}"
        if first not in statistics:
            linear = cast(nn.Linear, block.get_submodule(first))
            statistics[first] = Statistics(linear.in_features, linear.weight.device)
            hooks.append(linear.register_forward_pre_hook(partial(_add, statistics[first])))
        statistics[path] = statistics[first]
    try:
        outputs = stream.through(block)
    finally:
        for hook in hooks:
            hook.remove()
    return statistics, outputs


def _add(statistics: Statistics, module: nn.Module, inputs: tuple[Tensor]) -> None:
    statistics.add(inputs[0])
