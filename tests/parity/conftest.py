"""Both sides of every tiny model."""

import functools
from typing import Any, NamedTuple

import pytest
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
def pair_of(name: str) -> Pair:
    folder = saved(name)
    model, ids = theirs(folder), token_ids(2, LENGTH)
    return Pair(CASES[name], measure.ours(folder), model, ids, measure.reference(model, ids))


@pytest.fixture(params=CASES)
def pair(request):
    return pair_of(request.param)


@pytest.fixture(params=[name for name, case in CASES.items() if case.windowed])
def windowed_pair(request):
    """As `pair`, for models of which a layer has a window of 9."""
    return pair_of(request.param)
