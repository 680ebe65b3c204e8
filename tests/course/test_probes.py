"""The probes and instruments that the notebooks measure with."""

import pytest
import torch

from minillm.course import probes, trace


def test_losses_equal_those_of_the_logits(llm):
    ids = probes.doc_ids(llm, 40)
    expected = torch.nn.functional.cross_entropy(
        llm.logits(ids)[:-1], torch.tensor(ids[1:]), reduction="none"
    )
    for chunk in (7, 256):
        found = probes.losses(llm, ids, chunk=chunk)
        assert torch.allclose(found, expected, atol=1e-4)


def test_only_distances_count_so_a_gap_before_all_tokens_changes_nothing(llm):
    ids = probes.copy_ids(0)
    plain = probes.losses(llm, ids)
    shifted = probes.losses(llm, ids, torch.arange(len(ids)) + 5_000)
    assert torch.allclose(plain, shifted, atol=1e-3)


def test_probes_of_the_intact_model(llm):
    assert probes.doc_loss(llm) == pytest.approx(3.50, abs=0.02)
    assert probes.copy_loss(llm) == pytest.approx(1.94, abs=0.02)
    assert probes.copy_loss(llm, seeds=[0], gap=8_000) > 10
    right, probability = probes.capitals(llm)
    assert right == 7
    assert probability == pytest.approx(0.58, abs=0.02)


def test_attention_weights_are_those_that_the_model_uses(llm):
    ids = probes.capital_ids(llm)
    weights = trace.attention_weights(llm, ids)
    assert weights.shape == (30, 9, 5, 5)
    assert torch.allclose(weights.sum(-1), torch.ones(30, 9, 5), atol=1e-5)
    assert float(weights.triu(1).abs().max()) == 0
    assert float(weights[23, 4, -1, 3]) > 0.85  # the head that fetches the country


def test_the_last_hidden_state_becomes_the_logits(llm):
    ids = probes.capital_ids(llm)
    states = trace.hidden_states(llm, ids)
    assert states.shape == (31, 5, 576)
    norm = llm.model.norm
    last = llm.model.ops.rms_norm(states[-1], norm.weight, llm.config.rms_norm_eps)
    assert torch.allclose(last, probes.forward(llm, ids), atol=1e-4)
    assert torch.equal(states[0], llm.model.embed_tokens.weight[ids])


CHANGES = {
    "an op": lambda llm: trace.replaced(llm, rope=lambda x, cos, sin: x),
    "an op in one layer": lambda llm: trace.replaced(
        llm, layers=[0], swiglu=lambda gate, up: 0 * gate
    ),
    "a head": lambda llm: trace.without(llm, heads=[(16, 0)]),
    "an attention layer": lambda llm: trace.without(llm, attention=[1]),
    "an mlp": lambda llm: trace.without(llm, mlp=[11], positions=[0]),
    "an edge": lambda llm: trace.cut_edge(llm, 18, 60, 0),
    "a hidden state": lambda llm: trace.patched(llm, 10, 3, torch.zeros(576)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_lasts_as_long_as_its_block(llm, change):
    ids = probes.copy_ids(1)
    before = probes.losses(llm, ids)
    with change(llm):
        assert not torch.equal(probes.losses(llm, ids), before)
    assert torch.equal(probes.losses(llm, ids), before)
    with pytest.raises(KeyboardInterrupt), change(llm):
        raise KeyboardInterrupt
    assert torch.equal(probes.losses(llm, ids), before)


def test_cutting_the_edge_that_fetches_the_country_loses_the_capital(llm):
    with trace.cut_edge(llm, 23, -1, 3):
        assert probes.capitals(llm)[0] == 0
    with trace.cut_edge(llm, 22, -1, 3):
        assert probes.capitals(llm)[0] == 7


def test_a_patched_hidden_state_carries_the_country(llm):
    rome, paris = (llm.tokenizer.encode(text)[0] for text in (" Rome", " Paris"))
    italy = trace.hidden_states(llm, probes.capital_ids(llm, " Italy"))

    def difference() -> float:
        logits = llm.model.logits(probes.forward(llm, probes.capital_ids(llm))[-1])
        return float(logits[rome] - logits[paris])

    assert difference() < -5
    with trace.patched(llm, 10, 3, italy[10, 3]):
        assert difference() > 5
    with trace.patched(llm, 26, 3, italy[26, 3]):
        assert difference() < -5
