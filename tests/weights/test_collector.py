"""The collector is off inside, and afterwards as it was."""

import gc

import pytest

from minillm.weights.collector import collector_paused


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_paused_and_restored(before):
    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == before
        with pytest.raises(ZeroDivisionError), collector_paused():
            1 / 0  # noqa: B018
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()
