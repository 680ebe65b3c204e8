"""The benchmark: one time per step, engines in turn, and the same tokens as the peer."""

import copy

import pytest
import torch

from minillm.bench import (
    machine,
    measure,
    minillm_engine,
    random_prompts,
    time_steps,
    transformers_engine,
)
from minillm.engines.base import Accelerated
from tests.engines.test_choice import Counting


def test_one_time_per_step(llm):
    engine = minillm_engine(llm)
    assert len(time_steps(engine, random_prompts(1_000, 2, 5), 4)) == 4


def test_the_models_engine_is_asked_for_its_own_loop(llm):
    """What is measured is what `LLM` runs."""
    fast, engine = copy.copy(llm), Counting()
    fast.model = Accelerated(llm.model, engine)
    assert len(time_steps(minillm_engine(fast), random_prompts(1_000, 2, 5), 3)) == 3
    assert engine.asked[:4] == ["new_cache", "forward", "logits", "decode"]


def test_engines_take_turns():
    order = []

    def engine(name):
        def run(prompts, new_tokens):
            order.append(name)
            yield from [None] * new_tokens

        return run

    found = measure({"a": engine("a"), "b": engine("b")}, 100, prompt_tokens=3, runs=2)
    assert order == ["a", "b"] * 3  # the first pair warms up
    assert [m.engine for m in found] == ["a", "b"]
    assert found[0].as_dict()["prompt_tokens"] == 3


@pytest.mark.parametrize(
    "arguments", [{"prompt_tokens": 0}, {"batch_size": 0}, {"new_tokens": 1}, {"runs": 0}]
)
def test_nothing_to_measure_is_refused(arguments):
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} is"):
        measure({}, 100, **({"prompt_tokens": 3} | arguments))


def test_the_peer_needs_a_folder(smollm2):
    (file,) = smollm2.glob("*.gguf")
    with pytest.raises(ValueError, match="is a file; the comparison needs a folder"):
        transformers_engine(file)


def test_machine_names_itself():
    here = machine()
    assert here["cpu"]
    assert here["threads"] == torch.get_num_threads()
