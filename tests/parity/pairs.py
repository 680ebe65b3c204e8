"""Both sides of every tiny model, made once."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minillm.model import Transformer
from tests.parity import measure
from tests.parity.measure import LENGTH
from tests.parity.models import CASES, Case, saved, theirs, token_ids


class Pair(NamedTuple):
    """A case: our model, transformers', two texts, and transformers' logits of them."""

    case: Case
    ours: Transformer
    theirs: Any
    ids: Tensor
    expected: Tensor


@functools.cache
@torch.inference_mode(False)  # whoever asks first: transformers writes to its buffers later on
def pair_of(name: str) -> Pair:
    """A case by its name."""
    folder = saved(name)
    model, ids = theirs(folder), token_ids(2, LENGTH)
    return Pair(CASES[name], measure.ours(folder), model, ids, measure.reference(model, ids))
