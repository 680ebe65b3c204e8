"""Random tiny models: whole, in chunks and step by step, against transformers.

MINILLM_PARITY_N says how many; the first of them are always the same.
"""

import os
import random

import pytest

from minillm.kv_cache import new_cache
from tests.parity import measure
from tests.parity.measure import FLOAT32_BOUND, LENGTH, difference
from tests.parity.models import save, theirs, token_ids
from tests.parity.random_models import random_case


@pytest.mark.parametrize("seed", range(int(os.environ.get("MINILLM_PARITY_N", "30"))))
def test_random_model(seed, tmp_path):
    case, draw = random_case(seed), random.Random(seed)
    folder = save(case, tmp_path / "model")
    exact, model, ids = theirs(folder), measure.ours(folder), token_ids(2, LENGTH, seed)
    expected = measure.reference(exact, ids)

    def fresh():
        return new_cache(model.config, *ids.shape)

    assert difference(measure.whole(model, ids, fresh()), expected) < FLOAT32_BOUND
    size = draw.choice([2, 5, 9, 16, 23, 39])
    assert difference(measure.chunked(model, ids, fresh(), size), expected) < FLOAT32_BOUND
    prompt = draw.randint((case.trained or 0) + 1, LENGTH - 1)
    if case.dynamic:
        steps = measure.reference_steps(exact, ids, prompt)
    else:
        steps = expected[:, prompt - 1 :]
    found = measure.stepwise(model, ids[:, :prompt].tolist(), ids[:, prompt:], fresh())
    assert difference(found, steps) < FLOAT32_BOUND
