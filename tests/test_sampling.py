"""The filters by hand, their order, the draw, and what is refused."""

import math

import pytest
import torch

from minillm.sampling import (
    SamplingParams,
    apply_min_p,
    apply_repetition_penalty,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    sample,
)

LOGITS = torch.tensor([0.5, 0.3, 0.2]).log()


def probabilities(logits):
    return [round(p, 4) for p in logits.softmax(-1).tolist()]


def kept(logits):
    return (logits > -math.inf).nonzero().flatten().tolist()


def test_s01_top_k_renormalises():
    assert probabilities(apply_top_k(LOGITS, 2)) == [0.625, 0.375, 0]
    assert kept(apply_top_k(LOGITS, 1)) == [0]


@pytest.mark.parametrize("k", [0, -1, 3, 4, 100_000])
def test_s01_top_k_off_or_above_the_vocabulary(k):
    assert torch.equal(apply_top_k(LOGITS, k), LOGITS)


@pytest.mark.parametrize("p", [0.0, 1e-8, 1e-3])
def test_s02_top_p_near_zero_keeps_the_most_likely(p):
    for dtype in (torch.float32, torch.bfloat16):
        assert kept(apply_top_p(LOGITS.to(dtype), p)) == [0]


def test_s02_top_p():
    assert kept(apply_top_p(LOGITS, 0.6)) == [0, 1]
    assert kept(apply_top_p(LOGITS, 1.0)) == [0, 1, 2]
    shuffled = LOGITS[[2, 0, 1]]
    assert kept(apply_top_p(shuffled, 0.6)) == [1, 2]


def test_s02_temperature_comes_first():
    # With temperature 0.5 the first of [3, 2, 1] holds 0.867: top_p 0.8 keeps it alone. With the
    # temperature last, top_p would see 0.665 and keep two.
    logits = torch.tensor([3.0, 2, 1])
    assert kept(apply_top_p(apply_temperature(logits, 0.5), 0.8)) == [0]
    assert kept(apply_top_p(logits, 0.8)) == [0, 1]
    params = SamplingParams(temperature=0.5, top_p=0.8)
    generator = torch.Generator().manual_seed(0)
    assert {sample(logits, params, generator=generator) for _ in range(100)} == {0}


def test_min_p_is_relative_to_the_most_likely():
    assert kept(apply_min_p(LOGITS, 0.5)) == [0, 1]
    assert kept(apply_min_p(LOGITS, 0.0)) == [0, 1, 2]
    assert kept(apply_min_p(LOGITS, 1.0)) == [0]


def test_s04_repetition_penalty():
    logits = torch.tensor([2.0, -2.0, 1.0])
    assert apply_repetition_penalty(logits, [0, 1, 1, 1], 2.0).tolist() == [1, -4, 1]
    assert apply_repetition_penalty(logits, [], 2.0).tolist() == [2, -2, 1]
    assert logits.tolist() == [2, -2, 1]  # the input is left alone


def test_greedy_is_temperature_zero_whatever_the_filters():
    params = SamplingParams(temperature=0, top_k=2, top_p=0.1)
    assert sample(torch.tensor([1.0, 5.0, 4.9]), params) == 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-5, 1.0, 1e6])
def test_any_temperature_is_finite(temperature):
    logits = torch.tensor([1e4, -1e4, 9_999.0])
    params = SamplingParams(temperature=temperature)
    token = sample(logits, params, generator=torch.Generator().manual_seed(3))
    assert token in (0, 1, 2)
    if temperature < 1e-3:
        assert token == 0


def test_draws_follow_the_distribution():
    generator = torch.Generator().manual_seed(7)
    params = SamplingParams(temperature=1.0)
    draws = [sample(LOGITS, params, generator=generator) for _ in range(4_000)]
    for token, p in enumerate((0.5, 0.3, 0.2)):
        # Five standard deviations of a binomial share.
        assert abs(draws.count(token) / 4_000 - p) < 5 * math.sqrt(p * (1 - p) / 4_000)


def test_seed_repeats():
    params = SamplingParams(temperature=1.0)
    runs = [
        [sample(LOGITS, params, generator=g) for _ in range(20)]
        for g in (torch.Generator().manual_seed(5), torch.Generator().manual_seed(5))
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("logits", "found"),
    [
        ([1.0, float("nan")], "NaN"),
        ([-math.inf, -math.inf], "all -inf"),
        ([1.0, math.inf], r"\+inf"),
    ],
)
def test_broken_logits_are_an_error(temperature, logits, found):
    with pytest.raises(ValueError, match=found):
        sample(torch.tensor(logits), SamplingParams(temperature=temperature))


def test_single_possible_token():
    logits = torch.tensor([-math.inf, 2.0, -math.inf])
    assert sample(logits, SamplingParams(temperature=1.0, top_p=0.5, min_p=0.5)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": -1},
        {"max_new_tokens": 2.5},
        {"max_new_tokens": True},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"top_k": -2},
        {"top_k": 1.5},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"repetition_penalty": -1},
        {"seed": 1.5},
        {"seed": 2**64},
        {"stop": ""},
        {"stop": ["a", ""]},
        {"stop": [3]},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": ["a"]},
        {"stop_token_ids": 3},
        {"stop": 3},
    ],
)
def test_values_out_of_range_are_refused(arguments):
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=name) as caught:
        SamplingParams(**arguments)
    shown = value[-1] if isinstance(value, list) else value
    assert repr(shown) in str(caught.value)


def test_a_refusal_says_the_limit():
    assert SamplingParams(temperature=1e9, repetition_penalty=1e9).temperature == 1e9
    with pytest.raises(
        ValueError, match=r"temperature is 10000000000\.0; a number from 0 .* to 1e9 is"
    ):
        SamplingParams(temperature=1e10)
    with pytest.raises(ValueError, match=r"_penalty is 10000000000\.0; from 1e-9 to 1e9 is needed"):
        SamplingParams(repetition_penalty=1e10)


def test_stop_spellings():
    assert SamplingParams(stop="x").stop == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop == ("x", "y")
    assert SamplingParams(stop=[]).stop == ()
