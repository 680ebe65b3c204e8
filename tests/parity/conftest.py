"""Both sides of every tiny model, as fixtures."""

import pytest

from tests.parity.models import CASES
from tests.parity.pairs import pair_of


@pytest.fixture(params=CASES)
def pair(request):
    return pair_of(request.param)


@pytest.fixture(params=[name for name, case in CASES.items() if case.windowed])
def windowed_pair(request):
    """As `pair`, for models of which a layer has a window of 9."""
    return pair_of(request.param)
