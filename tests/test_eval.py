"""Perplexity and KL divergence: by hand, against a plain transformers loop, and what is refused."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm import LLM, Tokenizer
from minillm.eval import (
    LOGITS_AT_A_TIME,
    Perplexity,
    Reading,
    compare,
    kl_divergence,
    perplexity,
    read,
    windows,
)
from tests.checkout import ROOT
from tests.parity import measure
from tests.parity.models import RICHEST, saved, theirs, token_ids

LN2 = math.log(2)
TEXT = (ROOT / "data" / "corpus.txt").read_text(encoding="utf-8")[:700]


def reading(probabilities, targets, start=1):
    """A reading whose hidden states are the log-probabilities themselves, off by a constant."""
    hidden = torch.tensor(probabilities).log() + 3
    return Reading(hidden, torch.tensor(targets), start, lambda h: h, hidden.shape[1])


def test_windows_by_hand():
    # Tokens 0 … 6; the scored ones: 1 2 3 | 4 5 | 6.
    assert windows(7, 4, 2) == [(0, 1, 4), (2, 4, 6), (4, 6, 7)]
    # Without overlap the first token of a window has no context: 1 2 3 | 5 6.
    assert windows(7, 4, 4) == [(0, 1, 4), (4, 5, 7)]
    assert windows(5, 4, 4) == [(0, 1, 4)]  # token 4 would stand alone
    assert windows(4, 9, 9) == [(0, 1, 4)]
    assert windows(2, 2, 1) == [(0, 1, 2)]


@settings(deadline=None)
@given(st.integers(2, 60), st.integers(2, 20), st.data())
def test_each_token_is_scored_once_with_enough_context(num_tokens, context, data):
    stride = data.draw(st.integers(1, context))
    found = windows(num_tokens, context, stride)
    scored = [token for window in found for token in range(window.first, window.stop)]
    alone = {window.start for window in found} if stride == context else {0}
    alone |= {num_tokens - 1} if stride == context and num_tokens % context == 1 else set()
    assert scored == [token for token in range(num_tokens) if token not in alone]
    for start, first, stop in found:
        assert start < first < stop <= start + context
        assert start == 0 or first - start >= min(max(context - stride, 1), num_tokens - stride)


def test_perplexity_by_hand():
    # p = 1/2 and 3/4: the mean of ln 2 and ln 4/3 is ½ ln 8/3.
    found = perplexity([reading([[0.5, 0.5]], [0]), reading([[0.75, 0.25]], [0], start=2)])
    assert found.tokens == 2
    assert found.nll == pytest.approx(0.5 * math.log(8 / 3), rel=1e-6)
    assert found.perplexity == pytest.approx(math.sqrt(8 / 3), rel=1e-6)
    # A fair coin takes one bit; four bytes to a token make that a quarter of a bit per byte.
    assert Perplexity(5, LN2).bits_per_byte(1 / 4) == pytest.approx(0.25)
    assert Perplexity(5, 1e4).perplexity == math.inf


def test_divergence_by_hand():
    fair, biased = [[0.5, 0.5]], [[0.25, 0.75]]
    to_biased = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)  # 0.1438
    to_fair = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)  # 0.1308
    for p, q, expected in ((fair, biased, to_biased), (biased, fair, to_fair)):
        found = compare([reading(p, [0])], [reading(q, [0])])
        assert found.mean == found.median == found.maximum == pytest.approx(expected, abs=1e-6)
    # 100 positions, of which 75 agree; among them one far outlier.
    p = [[0.9, 0.1]] * 100
    q = [[0.9, 0.1]] * 75 + [[0.4, 0.6]] * 24 + [[0.01, 0.99]]
    found = compare([reading(p, [0] * 100)], [reading(q, [0] * 100)])
    middle = 0.9 * math.log(0.9 / 0.4) + 0.1 * math.log(0.1 / 0.6)
    most = 0.9 * math.log(0.9 / 0.01) + 0.1 * math.log(0.1 / 0.99)
    assert found.same_top == 0.75
    assert found.same_top_error == pytest.approx(math.sqrt(0.75 * 0.25 / 100))
    assert found.mean == pytest.approx((24 * middle + most) / 100, abs=1e-6)
    assert found.median == pytest.approx(0, abs=1e-6)
    assert found.percentile_99 == found.maximum == pytest.approx(most, abs=1e-5)
    assert found.reference.nll == pytest.approx(-math.log(0.9), rel=1e-5)
    assert found.other.tokens == 100


@settings(deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1.0, 10.0, 100.0]))
def test_divergence_equals_pytorchs_and_is_never_negative(seed, scale):
    logits = torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(seed)) * scale
    log_p, log_q = logits.log_softmax(-1)
    expected = torch.nn.functional.kl_div(
        log_q.double(), log_p.double(), reduction="none", log_target=True
    ).sum(-1)
    found = kl_divergence(log_p, log_q)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert (found >= 0).all()
    assert (kl_divergence(log_p, log_p) == 0).all()


@pytest.fixture(scope="module")
def peer(smollm2):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()


@torch.no_grad()
def transformers_nll(model, ids, context, stride):
    """The loop of transformers' documentation; a window's loss counts once per scored token."""
    ids, total, count, previous_end = torch.tensor([ids]), 0.0, 0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + context, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : previous_end - end] = -100  # scored before
        scored = int((labels[:, 1:] != -100).sum())  # transformers shifts the labels by one
        if scored:
            total += scored * float(model(ids[:, begin:end], labels=labels).loss)
        count, previous_end = count + scored, end
        if end == ids.shape[1]:
            break
    return total / count, count


@pytest.mark.parametrize(("context", "stride"), [(64, 32), (64, 64), (2_048, 512)])
def test_equals_a_plain_transformers_loop(llm, peer, context, stride, record_property):
    ids = llm.tokenizer.encode(TEXT)
    expected, count = transformers_nll(peer, ids, context, stride)
    found = perplexity(read(llm, TEXT, context=context, stride=stride))
    assert found.tokens == count
    assert found.perplexity == pytest.approx(math.exp(expected), rel=1e-5)
    record_property(
        "figure",
        f"perplexity of {count} tokens, context {context}, stride {stride}: {found.perplexity:.4f},"
        f" transformers {math.exp(expected):.4f}",
    )


@pytest.mark.parametrize("name", [*RICHEST.values(), "phi3-longrope"])
def test_every_family_equals_the_plain_loop(name):
    """Windows past the sliding window (9), and past the original RoPE length (16) by one or more.

    The last token of a window is not run, but counts where RoPE depends on the window's length.
    """
    folder, no_tokenizer = saved(name), cast(Any, SimpleNamespace(ids_without_token=lambda n: []))
    llm = LLM(measure.ours(folder), no_tokenizer)
    model, (ids,) = theirs(folder), token_ids(1, 60).tolist()
    for context, stride in ((40, 15), (17, 17)):
        expected, count = transformers_nll(model, ids, context, stride)
        found = perplexity(read(llm, ids, context=context, stride=stride))
        assert found.tokens == count
        assert found.nll == pytest.approx(expected, rel=1e-5)


def test_a_token_that_the_tokenizer_puts_first_is_not_scored(llm):
    """With it the first token of the text has something to be predicted from."""
    with_bos = Tokenizer(replace(llm.tokenizer.data, prefix=(1,)))
    (found,) = read(LLM(llm.model, with_bos), "The sea")
    assert found.targets.tolist() == llm.tokenizer.encode("The sea")


def test_windowed_layers_make_the_context_unlimited(llm, smollm2):
    windowed = LLM.from_pretrained(smollm2, device="cpu", dtype="float32", window=8)
    ids = llm.tokenizer.encode(TEXT)
    whole = perplexity(read(windowed, ids, context=len(ids), stride=len(ids)))
    assert whole.tokens == len(ids) - 1
    full = perplexity(read(llm, ids, context=len(ids), stride=len(ids)))
    assert whole.nll > full.nll + 0.1
    next(read(windowed, ids, context=100_000))


def test_a_model_and_itself_in_bfloat16(llm, smollm2, record_property):
    """The readings of one model can wait while its weights are exchanged for others."""
    ids = llm.tokenizer.encode(TEXT)
    before = list(read(llm, ids, context=64))
    assert sum(r.hidden.untyped_storage().nbytes() for r in before) == (len(ids) - 1) * 576 * 4
    same = compare(before, read(llm, ids, context=64))
    assert (same.mean, same.maximum, same.same_top) == (0, 0, 1)
    half = LLM.from_pretrained(smollm2, device="cpu", dtype="bfloat16")
    found = compare(before, read(half, ids, context=64))
    assert found.reference == same.reference == perplexity(before)
    assert 0 < found.median < found.mean < found.percentile_99 < found.maximum < 0.1
    assert 0.9 < found.same_top <= 1
    record_property(
        "figure",
        f"float32 to bfloat16 over {found.reference.tokens} tokens: KL {found.mean:.6f} nats, same "
        f"top token {found.same_top:.1%} ± {found.same_top_error:.1%}, perplexity "
        f"{found.reference.perplexity:.4f} and {found.other.perplexity:.4f}",
    )


def test_logits_stay_small():
    rows = []

    def head(hidden):
        rows.append(len(hidden))
        return torch.zeros(len(hidden), vocab)

    vocab = LOGITS_AT_A_TIME // 3
    hidden, targets = torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)
    found = perplexity([Reading(hidden, targets, 1, head, vocab)])
    assert rows == [3, 3, 2]
    assert found.nll == pytest.approx(math.log(vocab))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the text has 0 tokens"),
        ("a", {}, "the text has 1 tokens"),
        ("one two", {"context": 1}, "context is 1; at least 2"),
        ("one two", {"context": 4, "stride": 5}, "stride is 5"),
        ("one two", {"stride": 0}, "stride is 0"),
        ("one two", {"context": 8_193}, "context is 8193; the model's holds 8192"),
        ([1, 49_152], {}, "from 1 to 49152; allowed are whole numbers from 0 to 49151"),
        ([1.5, 2.5], {}, "from 1.5 to 2.5; allowed are whole numbers"),
        ([-1, 1], {}, "from -1 to 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(llm, text, options, message):
    with pytest.raises(ValueError, match=message):
        read(llm, text, **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_an_error(bad):
    broken = Reading(torch.tensor([[0.0, bad]]), torch.tensor([0]), 7, lambda h: h, 2)
    with pytest.raises(ValueError, match=r"NaN or infinite scores within the window .* number 7"):
        perplexity([broken])
    with pytest.raises(ValueError, match="NaN or infinite"):
        compare([reading([[0.5, 0.5]], [0], start=7)], [broken])


def test_readings_that_do_not_fit_are_an_error():
    two, three = reading([[0.5, 0.5]], [0]), reading([[0.5, 0.25, 0.25]], [0])
    with pytest.raises(ValueError, match="have 2 and 3 entries"):
        compare([two], [three])
    with pytest.raises(ValueError, match="different tokens"):
        compare([two], [reading([[0.5, 0.5]], [1])])
    with pytest.raises(ValueError, match="shorter"):
        compare([two, two], [two])
    with pytest.raises(ValueError, match="nothing to score"):
        compare([], [])
    with pytest.raises(ValueError, match="nothing to score"):
        perplexity([])
