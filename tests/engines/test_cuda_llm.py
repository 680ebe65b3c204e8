"""The CUDA engine behind the front door, on the real model: texts, stops, batches, seeds.

Its kernels are those in plain PyTorch here, on the CPU; test_cuda_gpu.py has the real ones.
"""

import gc

import pytest
import torch

from minillm import LLM
from minillm.engines.base import Accelerated
from minillm.sampling import SamplingParams
from tests.engines.kernels import engine_of

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def fast(llm):
    model = Accelerated(llm.model, engine_of(llm.model))
    return LLM(
        model,
        llm.tokenizer,
        chat_template=llm.chat_template,
        eos_token_ids=llm.eos_token_ids,
        source=llm.source,
    )


def answers(llm, prompts, params):
    return [(x.text, x.token_ids, x.finish_reason) for x in llm.generate(prompts, params)]


def test_an_answer_streams(llm, fast):
    """To its end token, which the loop finds one step late."""
    params = SamplingParams(max_new_tokens=30)
    pieces = list(fast.stream_chat(QUESTION, params))
    expected = llm.chat(QUESTION, params)
    assert expected.finish_reason == "stop"
    assert "".join(pieces) == expected.text
    assert len(pieces) > 3
    assert fast.chat(QUESTION, params).token_ids == expected.token_ids


def test_a_batch_of_different_lengths(llm, fast):
    prompts = ["The capital of France is", "One two three", "A"]
    params = [SamplingParams(max_new_tokens=n) for n in (12, 3, 7)]
    assert answers(fast, prompts, params) == answers(llm, prompts, params)


def test_a_stop_string(llm, fast):
    params = SamplingParams(max_new_tokens=20, stop=[" five"])
    prompt = ["one two three four"]
    assert answers(fast, prompt, params) == answers(llm, prompt, params)


def test_a_repetition_penalty(llm, fast):
    params = SamplingParams(max_new_tokens=8, repetition_penalty=1.3)
    assert answers(fast, ["Again and again"], params) == answers(llm, ["Again and again"], params)


def test_seeds(fast):
    params = SamplingParams(max_new_tokens=8, temperature=1.0, seed=4)
    first = fast.generate("Once", params).text
    assert fast.generate("Once", params).text == first
    beside = fast.generate(["Twice upon", "Once"], [SamplingParams(max_new_tokens=3), params])
    assert beside[1].text == first
    assert fast.generate("Once", SamplingParams(max_new_tokens=8, temperature=1.0)).text != first


def test_a_stream_that_is_left_gives_its_storage_back(fast):
    pool = fast.model.engine.pool
    gc.collect()
    before = len(pool.idle)
    stream = fast.stream("Once upon a time", SamplingParams(max_new_tokens=50))
    next(stream)
    assert len(pool.idle) < max(before, 1)
    stream.close()
    del stream
    assert len(pool.idle) == max(before, 1)


def test_a_model_that_was_joined_is_saved_as_before(llm, fast, tmp_path):
    saved = LLM.from_pretrained(fast.save(tmp_path / "copy"), device="cpu", dtype="float32")
    for name, weight in llm.model.state_dict().items():
        assert torch.equal(saved.model.state_dict()[name], weight), name
