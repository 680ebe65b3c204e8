"""Sampling on the device against `minillm.sampling`: what is kept, and how often it is drawn."""

import math

import pytest
import torch

from minillm import sampling as reference
from minillm.sampling import SamplingParams
from tests.kernels.triton_device import DEVICES, random

from minillm.kernels.triton.sampling import filtered, sample  # isort: skip - after the skip

pytestmark = pytest.mark.parametrize("device", DEVICES)
PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.3, top_k=5),
    SamplingParams(temperature=2.5, top_k=1),
    SamplingParams(temperature=0.7, top_k=10**6),
    SamplingParams(temperature=1.0, top_p=0.6),
    SamplingParams(temperature=1.5, top_p=0.0),
    SamplingParams(temperature=0.8, min_p=0.1),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=1e-9, top_p=0.9),
]


def settings(params, device):
    real = [[p.temperature, p.top_p, p.min_p] for p in params]
    temperature, top_p, min_p = torch.tensor(real, device=device).T
    top_k = torch.tensor([p.top_k for p in params], device=device)
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}


def distribution(logits, p):
    """Probabilities of the draw that `minillm.sampling.sample` makes."""
    logits = reference.apply_temperature(logits.float(), p.temperature)
    logits = reference.apply_top_p(reference.apply_top_k(logits, p.top_k), p.top_p)
    return reference.apply_min_p(logits, p.min_p).softmax(-1)


@pytest.mark.parametrize("V", [1, 2, 7, 500, 49_152])
def test_the_filters_keep_the_same_tokens(V, device):
    logits = random(len(PARAMS), V, seed=V, dtype=torch.float32, device=device) * 3
    ordered, ids = filtered(logits, **settings(PARAMS, device))
    found = torch.empty_like(logits).scatter(1, ids, ordered.softmax(-1)).cpu()
    for row, p in enumerate(PARAMS):
        expected = distribution(logits[row].cpu(), p)
        assert torch.equal(found[row] > 0, expected > 0), p
        assert torch.allclose(found[row], expected, rtol=1e-4, atol=1e-9), p


def test_equal_logits(device):
    """Of equal ones top-k keeps the first, as greedy does; and all of them are drawn by chance."""
    logits = torch.zeros(1, 6, device=device)
    ordered, ids = filtered(logits, **settings([SamplingParams(temperature=1.0, top_k=4)], device))
    assert ids[ordered > -math.inf].tolist() == [0, 1, 2, 3]
    greedy = settings([SamplingParams()], device)
    seed = torch.zeros(1, dtype=torch.int64, device=device)
    assert sample(logits, **greedy, seeds=seed, steps=seed).tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_greedy_rows_beside_drawn_ones(dtype, device):
    logits = random(6, 49_152, seed=0, dtype=dtype, device=device)
    logits[:, 77] = logits[:, 40_000] = 9.0
    params = [SamplingParams(temperature=t) for t in (0.0, 5.0) * 3]
    seeds = torch.arange(6, device=device)
    found = sample(logits, **settings(params, device), seeds=seeds, steps=seeds)
    assert found.dtype == torch.int64
    assert found[::2].tolist() == [77, 77, 77]
    assert (found[1::2] != 77).any()


def chi_square(counts, probabilities):
    """How improbable the counts are, in standard deviations of the statistic."""
    expected = probabilities * counts.sum()
    statistic = ((counts - expected) ** 2 / expected)[expected > 0].sum()
    freedom = max(int((expected > 0).sum()) - 1, 1)
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize(
    "p",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=6),
        SamplingParams(temperature=1.2, top_p=0.8, min_p=0.05),
    ],
    ids=["all", "top-k", "top-p and min-p"],
)
@pytest.mark.parametrize("varied", ["seeds", "steps"])
def test_frequencies(varied, p, device):
    """2,000 draws fall as the reference's distribution says, over seeds as well as over steps."""
    draws = 2000
    logits = random(20, seed=3, dtype=torch.float32, device=device)
    fixed, counted = torch.full((draws,), 12_345, device=device), torch.arange(draws, device=device)
    seeds, steps = (counted, fixed) if varied == "seeds" else (fixed, counted)
    found = sample(
        logits.expand(draws, 20), **settings([p] * draws, device), seeds=seeds, steps=steps
    )
    counts = torch.bincount(found.cpu(), minlength=20).double()
    probabilities = distribution(logits.cpu(), p).double()
    assert not counts[probabilities == 0].any()
    assert chi_square(counts, probabilities) < 4
    assert chi_square(counts, probabilities.flip(0) + 1e-3) > 10  # the test can fail


def test_a_draw_depends_on_seed_step_and_row_alone(device):
    logits = random(3, 500, seed=0, dtype=torch.float32, device=device)
    one = settings([SamplingParams(temperature=1.0)], device)
    many = {name: x.expand(3) for name, x in one.items()}
    seeds = torch.tensor([5, 2**62 + 1, -3], device=device)
    steps = torch.tensor([0, 7, 130_000], device=device)
    together = sample(logits, **many, seeds=seeds, steps=steps)
    assert torch.equal(together, sample(logits, **many, seeds=seeds, steps=steps))
    for row in range(3):
        at = slice(row, row + 1)
        assert torch.equal(
            sample(logits[at], **one, seeds=seeds[at], steps=steps[at]), together[at]
        )
    same = logits[:1].expand(64, 500)
    many = {name: x.expand(64) for name, x in one.items()}
    count, zero = torch.arange(64, device=device), torch.zeros(64, dtype=torch.int64, device=device)
    for seeds, steps in ((count, zero), (zero, count), (count * 2**32, zero)):
        assert len(set(sample(same, **many, seeds=seeds, steps=steps).tolist())) > 30


def test_broken_logits_are_flagged_in_their_row(device):
    logits = random(5, 100, seed=0, dtype=torch.float32, device=device)
    logits[1, 50] = float("nan")
    logits[2] = -math.inf
    logits[3, 3] = math.inf
    logits[4, :99] = -math.inf
    for temperature in (0.0, 1.0):
        params = settings([SamplingParams(temperature=temperature)] * 5, device)
        seeds = torch.arange(5, device=device)
        found = sample(logits, **params, seeds=seeds, steps=seeds).tolist()
        assert found[0] >= 0
        assert found[1:] == [-1, -1, -1, 99]
    for row in (1, 2, 3):
        with pytest.raises(ValueError, match="no token can be chosen"):
            reference.sample(logits[row].cpu(), SamplingParams())


def test_forbidden_ids_are_never_picked(device):
    logits = torch.zeros(50, 10, device=device)
    logits[:, 3] = 50.0
    forbidden = torch.zeros(50, 10, dtype=torch.bool, device=device)
    forbidden[:, [3, 0]] = True
    seeds = torch.arange(50, device=device)
    for temperature in (0.0, 1.0):
        params = settings([SamplingParams(temperature=temperature)] * 50, device)
        found = set(
            sample(logits, **params, seeds=seeds, steps=seeds, forbidden=forbidden).tolist()
        )
        assert not found & {0, 3}
        assert found == {1} if temperature == 0 else len(found) == 8


def test_no_dropped_token_is_drawn_where_the_running_sum_creeps_on(device, monkeypatch):
    """A GPU adds in parallel: behind the kept tokens the sum may still change in its last bits."""
    monkeypatch.setattr(torch.Tensor, "cumsum", creeping(torch.Tensor.cumsum))
    logits = torch.zeros(500, 40, device=device)
    params = settings([SamplingParams(temperature=1.0, top_k=4)] * 500, device)
    seeds = torch.arange(500, device=device)
    found = sample(logits, **params, seeds=seeds, steps=seeds)
    assert set(found.tolist()) == {0, 1, 2, 3}


def creeping(cumsum):
    """A running sum with an error that grows: here large enough to be drawn."""

    def changed(x, dim):
        return cumsum(x, dim) + torch.arange(x.shape[dim], device=x.device) * 0.05

    return changed


def test_top_p_keeps_the_first_tokens_whatever_the_running_sum(device, monkeypatch):
    """Where it falls back between two tokens, the second must not be kept without the first."""
    cumsum = torch.Tensor.cumsum

    def uneven(x, dim):
        return cumsum(x, dim) + torch.tensor([0.0, 0.0, 0.2, 0.0, 0.0, 0.0], device=x.device)

    monkeypatch.setattr(torch.Tensor, "cumsum", uneven)
    logits = torch.zeros(1, 6, device=device)
    ordered, _ = filtered(logits, **settings([SamplingParams(temperature=1.0, top_p=0.52)], device))
    assert (ordered > -math.inf)[0].tolist() == [True] * 3 + [False] * 3


def test_shapes_that_do_not_fit_are_refused(device):
    params = settings([SamplingParams()] * 2, device)
    seeds = torch.arange(3, device=device)
    with pytest.raises(ValueError, match=r"logits have shape \(3, 4\)"):
        sample(torch.zeros(3, 4, device=device), **params, seeds=seeds, steps=seeds)
