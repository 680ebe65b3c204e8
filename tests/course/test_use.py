"""`use`: the reader's own functions run the model after they pass their check, and only then."""

import math
from dataclasses import fields

import pytest
import torch

from minillm import SamplingParams
from minillm.course import use
from minillm.course.live import CHECKS
from minillm.ops import Ops

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CALLS: list[torch.Size] = []


def my_attention(q, k, v, mask):
    """Written as a reader would."""
    CALLS.append(q.shape)
    groups, T, S = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is None:
        mask = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v


@pytest.fixture(autouse=True)
def _restored(llm):
    yield
    llm.model.ops = Ops()


def test_the_readers_attention_answers_the_question(llm):
    said = use(llm, attention=my_attention)
    assert repr(said) == "Your attention now runs smollm2, in all of its 30 layers."
    CALLS.clear()
    answer = llm.chat(QUESTION, SamplingParams(max_new_tokens=16))
    assert answer.text == "The capital of France is Paris."
    passes = answer.stats.output_tokens  # one prefill, then one decode pass per further token
    assert len(CALLS) == 30 * passes
    assert "own functions" in repr(use(llm))
    assert llm.model.ops == Ops()


def test_a_stub_is_not_attempted_and_the_model_runs_on(llm):
    def stub(q, k, v, mask):
        raise NotImplementedError

    said = use(llm, attention=stub)
    assert "not attempted" in repr(said)
    assert "runs as before" in said._repr_html_()
    assert llm.model.ops == Ops()


@pytest.mark.parametrize(
    ("name", "cause", "wrong"), [(n, c, w) for n, e in CHECKS.items() for c, w in e.wrong]
)
def test_a_wrong_function_is_diagnosed_and_not_used(llm, name, cause, wrong):
    said = use(llm, **{name: wrong})
    assert f"Likely cause: {cause}." in repr(said)
    assert llm.model.ops == Ops()


def test_one_wrong_function_of_two_leaves_both_out(llm):
    use(llm, attention=my_attention, swiglu=lambda gate, up: gate * up)
    assert llm.model.ops == Ops()


def test_a_second_use_starts_from_the_packages_functions(llm):
    use(llm, attention=my_attention)
    use(llm, swiglu=lambda gate, up: gate * gate.sigmoid() * up)
    assert llm.model.ops.attention is Ops().attention


def test_every_op_has_a_check_with_three_wrong_answers():
    assert set(CHECKS) == {field.name for field in fields(Ops)}
    assert all(len(exercise.wrong) >= 3 for exercise in CHECKS.values())


def test_an_unknown_op(llm):
    with pytest.raises(ValueError, match="no op 'attn'; a model is made of attention, rms_norm"):
        use(llm, attn=my_attention)
