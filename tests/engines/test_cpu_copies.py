"""A model with the C++ engine is turned to another dtype, copied or pickled."""

import copy
import pickle

import pytest
import torch

from minillm.engines import accelerate
from minillm.kv_cache import new_cache
from minillm.model import Transformer
from tests.engines.cpu_models import TOLERANCE, alone, needs_library, off_by, transformer
from tests.engines.cuda_models import BASE

pytestmark = needs_library

IDS = torch.tensor([[5, 9, 2, 7]])


def logits(model):
    dtype = model.norm.weight.dtype
    with torch.inference_mode():
        return model.logits(model(IDS, new_cache(model.config, 1, 9, dtype=dtype)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_weights_of_another_dtype(dtype):
    """As if the model had been in it from the start; float64 is left to the modules."""
    model = transformer(BASE)
    ours = accelerate(model, "cpu")
    before = logits(ours)
    found = logits(ours.to(dtype))
    assert found.dtype == dtype
    assert torch.equal(found, logits(model if dtype == torch.float64 else alone(model)))
    assert not torch.equal(found.float(), before)
    assert torch.equal(logits(ours.to(torch.float32)), logits(alone(model)))


def test_a_copy_is_the_plain_model():
    ours = accelerate(transformer(BASE), "cpu")
    expected = logits(transformer(BASE))
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(other) is Transformer
        assert torch.equal(logits(other), expected)
        assert off_by(logits(accelerate(other, "cpu")), expected).max() < TOLERANCE
    other.get_parameter("norm.weight").mul_(2)
    assert off_by(logits(ours), expected).max() < TOLERANCE
