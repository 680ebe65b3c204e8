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


def test_what_was_made_is_in_the_oldest_generation_and_what_was_frozen_stays_so():
    with collector_paused():
        made: list[list[int]] = [[] for _ in range(1_000)]
    young = {id(x) for generation in (0, 1) for x in gc.get_objects(generation)}
    assert not young & {id(x) for x in made}
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collector_paused():
            pass
        assert gc.get_freeze_count() >= frozen
    finally:
        gc.unfreeze()
