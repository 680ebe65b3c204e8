"""Loading the real model beside transformers, in fresh processes that take turns.

Seconds are printed beside the peer's, not asserted; memory is.
"""

import pytest

from minillm.bench import machine
from tools.bench_loading import DTYPES, engines_of, measure, table


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_loading_beside_transformers(smollm2, dtype, record_property):
    names, engines = engines_of(smollm2)
    loads = measure(engines, dtype, runs=2)
    here = machine()
    lines = table(names, loads, dtype)
    record_property("figure", "\n".join([f"loading, on {here['cpu']}:", *lines]))
    ours = loads[0]
    # The weights are pages of the file, or half as many bytes; beside them the tokenizer.
    weights = 538e6 if dtype == "float32" else 269e6
    assert ours.peak_first < weights + 120e6
    assert ours.peak_load < (120e6 if dtype == "float32" else 1.4 * weights)
