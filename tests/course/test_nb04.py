"""What notebook 04 shows: its sliders, its figures, and the facts that its prose states."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from minillm import Tokenizer
from minillm.course import passes
from minillm.course.figures import nb04 as figures
from minillm.course.measurements.nb04 import ranks
from minillm.course.precomputed import stored
from minillm.course.probes import capital_ids, doc_ids
from minillm.course.sampler import about, filtered, kept, sampling_explorer, sampling_html
from minillm.course.trace import cut_edge
from minillm.kv_cache.one_pass import OnePass
from minillm.sampling import apply_temperature, apply_top_p

REFERENCE = Path(__file__).parents[2] / "data" / "reference" / "transformers_logits.json"
PROMPT = "The best thing about living in the city is"
WORK = [(1e9, 3e9, 1e6, 5e7), (4e9, 12e9, 1.6e7, 5e7)]
PARTS = ("projections", "MLP", "tokens with tokens", "head")


def plain(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def flops(config, T, head_rows=1):
    C, q = config.hidden_size, config.num_attention_heads * config.head_dim
    kv, L = config.num_key_value_heads * config.head_dim, config.num_hidden_layers
    counts = (
        2 * T * L * (C * (q + 2 * kv) + q * C),
        2 * T * L * 3 * C * config.intermediate_size,
        4 * T * T * L * q,
        2 * head_rows * C * config.vocab_size,
    )
    return dict(zip(PARTS, counts, strict=True))


def norm_before(x, attend, mlp, norm1, norm2):
    x = x + attend(norm1(x))
    return x + mlp(norm2(x))


@pytest.fixture(scope="module")
def scores(llm):
    return llm.logits(llm.tokenizer.encode(PROMPT))[-1]


def test_the_count_by_hand_is_pytorchs(llm):
    ids = doc_ids(llm, 20)
    assert passes.counted_flops(llm, ids) == sum(flops(llm.config, 20).values())


def test_the_shares_of_the_work(llm):
    counts = flops(llm.config, 300, 300)
    assert counts["head"] / sum(counts.values()) == pytest.approx(0.2, abs=0.01)
    one = flops(llm.config, 1)
    assert (one["projections"] + one["MLP"]) / 1e6 == pytest.approx(212, abs=0.5)
    assert (one["projections"] + one["MLP"]) / one["tokens with tokens"] == 3072


def test_the_right_wiring_is_the_model(llm):
    ids = doc_ids(llm, 20)
    logits, sizes = passes.run_wired(llm, norm_before, ids)
    right = llm.logits(ids)
    assert (logits - right).abs().max() < 1e-5 * right.abs().max()
    assert len(sizes) == 30


def test_what_the_article_leaves_out_breaks_the_model(llm):
    ids = doc_ids(llm, 300)

    def loss(wire, **change):
        return passes.wired_loss(llm, ids, wire, **change)

    assert math.isnan(loss(passes.no_norm))
    assert loss(norm_before, add_positions=True) == pytest.approx(15.5, abs=0.1)
    assert loss(norm_before, last_norm=False) == pytest.approx(716, abs=1)


def test_reference_logits_are_ours(llm):
    for case in json.loads(REFERENCE.read_text("utf-8"))["cases"]:
        assert llm.tokenizer.encode(case["text"]) == case["ids"]
        row = llm.logits(case["ids"])[-1]
        gap = (row[case["entries"]] - torch.tensor(case["logits"])).abs().max()
        assert gap < 1e-5 * row.abs().max()
        assert row.topk(8).indices.tolist() == case["entries"][:8]


@pytest.mark.slow
def test_reference_logits_are_those_of_transformers(smollm2):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    for case in json.loads(REFERENCE.read_text("utf-8"))["cases"]:
        with torch.inference_mode():
            row = model(torch.tensor([case["ids"]])).logits[0, -1]
        gap = (row[case["entries"]] - torch.tensor(case["logits"])).abs().max()
        assert gap < 1e-5 * row.abs().max()


def test_paris_rises_after_layer_23_and_not_with_the_edge_cut(llm):
    found = ranks(llm, capital_ids(llm), " Paris")
    assert found.index(0) == 30
    assert found[23] > 10 * found[25]
    with cut_edge(llm, 23, -1, 3):
        cut = ranks(llm, capital_ids(llm), " Paris")
    assert cut[24] > found[23] / 2


def test_the_lens_is_worse_than_a_blind_guess_up_to_layer_24():
    losses = stored("04.lens_losses")
    assert [value < math.log(49_152) for value in losses] == [False] * 25 + [True] * 6


def test_what_the_filters_keep(scores):
    kept_by = {
        T: (kept(filtered(scores, T, top_p=0.9)), kept(filtered(scores, T, min_p=0.1)))
        for T in (0.7, 1, 1.5, 2)
    }
    assert [about(n) for n, _ in kept_by.values()] == ["3", "50", "3,000", "12,000"]
    assert [n for _, n in kept_by.values()] == [2, 3, 8, 25]
    assert kept(apply_temperature(apply_top_p(scores, 0.9), 2)) == 50
    assert kept(filtered(scores, 0)) == 1


def test_most_of_the_tail(scores):
    assert 1 - float(scores.softmax(-1).topk(8).values.sum()) == pytest.approx(0.24, abs=0.01)


def test_left_padding_without_a_mask_loses_paris(llm):
    short, long = capital_ids(llm), llm.tokenizer.encode(PROMPT)
    gap = len(long) - len(short)
    padded = torch.tensor([[0] * gap + short, long])

    def best(positions):
        hidden = forward_at(llm, padded, positions)
        return [int(token) for token in llm.model.logits(hidden[:, -1]).argmax(-1)]

    paris, the = (llm.tokenizer.encode(text)[0] for text in (" Paris", " the"))
    columns = torch.arange(len(long)).expand(2, -1)
    assert best(columns)[0] != paris
    assert best(columns)[1] == the
    right = torch.stack([torch.tensor([-1] * gap + list(range(len(short)))), columns[1]])
    assert best(right) == [paris, the]


@torch.inference_mode()
def forward_at(llm, ids, positions):
    return llm.model(ids, OnePass(positions))


def test_doubling():
    assert passes.doubling([1, 2, 4, 8], [1.0, 1.5, 1.5, 3.5]) == 5
    assert passes.doubling([1, 2, 4], [1.0, 1.0, 1.0]) == 4


def test_the_machine_is_measured(llm):
    assert passes.measured_bandwidth(llm) > 1e7
    assert passes.measured_peak(64) > 1e6


def test_about():
    assert [about(n) for n in (0, 7, 50, 99, 3_028, 12_179)] == [
        "0",
        "7",
        "50",
        "99",
        "3,000",
        "12,000",
    ]


def test_the_table_strikes_out_what_cannot_come():
    tokenizer = Tokenizer.train(["the cat sat on the mat"], vocab_size=260)
    logits = torch.full((260,), -10.0)
    logits[[97, 60]] = torch.tensor([3.0, 1.0])
    html = sampling_html(tokenizer, logits, top_k=1, count=2)
    assert plain(html).startswith("1 of 260 tokens can be drawn")
    assert "<s>" in html
    assert "never" in html
    assert "&lt;" in html  # token 60
    assert "1 of 260" in plain(sampling_html(tokenizer, logits, temperature=0))


def test_the_sliders_move_the_table(llm):
    panel = sampling_explorer(llm, PROMPT)
    assert plain(panel.view(panel.state)).startswith("50 of 49,152 tokens")
    panel.widget()
    fields = dict(zip(panel.state, (field for field, _ in panel.inputs), strict=True))
    fields["temperature"].value = 2.0
    assert "12,000" in panel._output.value
    fields["top_p"].value = 1.0
    fields["min_p"].value = 0.1
    assert plain(panel._output.value).startswith("25 of")


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.work([16, 64], [dict(zip(PARTS, n, strict=True)) for n in WORK]),
        lambda: figures.lens_ranks({" Paris": [999] * 30 + [0]}, [900] * 31, " Paris", 23),
        lambda: figures.lens_losses([100.0, 15.0, 20.0, 9.0, 3.5], 10.8),
        lambda: figures.sampling(torch.linspace(10, -10, 200), (0.7, 2), 0.9, 0.1),
        lambda: figures.time_and_roofline(
            [1, 2, 4], [0.05, 0.06, 0.1], [3e8, 6e8, 12e8], 538e6, 20e9, 100e9
        ),
    ],
)
def test_figures_say_their_numbers_in_words(draw, words_of):
    assert re.search(r"\d", words_of(draw))
