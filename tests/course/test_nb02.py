"""What notebook 02 shows and says: one pair's angles, its figures, its stored curves."""

import math
import re
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch

from minillm.course import plots
from minillm.course.figures import nb02 as figures
from minillm.course.measurements import nb02 as measured
from minillm.course.precomputed import stored
from minillm.course.probes import copy_loss, doc_loss
from minillm.course.rope_angles import (
    arrow,
    frequency,
    pair_explorer,
    pair_svg,
    pair_view,
    score,
    wavelength,
)
from minillm.course.trace import hidden_states, with_rope
from minillm.layers.embedding import embed
from minillm.layers.rope import rope_frequencies, rope_tables

NAMED = ("king", "queen", "python", "snake")


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


# --- the widget


def test_the_widgets_pairs_are_the_models(llm):
    assert [frequency(pair) for pair in range(32)] == pytest.approx(
        rope_frequencies(llm.config.layers[0].rope, llm.config.head_dim).tolist()
    )
    assert wavelength(0) == pytest.approx(2 * math.pi)


@pytest.mark.parametrize(("pair", "query", "key"), [(0, 3, 1), (8, 40, 28), (31, 400, 0)])
def test_the_score_is_the_dot_product_of_the_arrows(pair, query, key):
    (a, b), (c, d) = arrow(pair, query), arrow(pair, key)
    assert a * c + b * d == pytest.approx(score(pair, query - key))
    assert score(pair, query - key) == pytest.approx(score(pair, key - query))


def test_the_view_says_in_words_what_it_draws():
    shown = pair_view(8, 40, 28)
    assert "Pair 8: one full turn every 111.7 tokens." in plain(shown)
    assert f"Distance 12: score {score(8, 12):+.3f}." in plain(shown)
    assert plain(shown).startswith("Pair 8")  # nothing but the words where pictures are dropped
    assert 'stroke-dasharray="6 3"' in pair_svg(8, 40, 28)  # arrows differ without colour
    shifted = plain(pair_view(8, 240, 228))
    assert f"Distance 12: score {score(8, 12):+.3f}." in shifted
    assert shifted != plain(shown)


def test_the_explorer_follows_its_sliders():
    panel = pair_explorer()
    panel.widget()
    pair, query, key = (field for field, _ in panel.inputs)
    pair.value, query.value, key.value = 0, 10, 7
    assert panel.state == {"pair": 0, "query": 10, "key": 7}
    assert f"Distance 3: score {math.cos(3):+.3f}" in plain(panel._output.value)


# --- figures


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.cosines(
            _random(500) / 5 + 0.3, _random(500) / 8, {"a–b": (0.6, 0.5), "a–c": (0.2, -0.01)}
        ),
        lambda: figures.word_map(
            _random(4, 2), {"x": "a b", "y": "c d"}, torch.tensor([2.0, 1, 1])
        ),
        figures.one_pair,
        lambda: figures.wavelengths(torch.tensor([6.3, 600.0, 60_000.0]), 8_192, 1),
        lambda: figures.speeds_kept({"linear": torch.full((32,), 0.25), "b": torch.ones(32)}, 4),
        lambda: figures.gap_curves(
            measured.GAPS, {"none": [[1.0, 2.0]] * 12, "linear": [[11.0, 12.0]] * 12}
        ),
    ],
)
def test_figures_say_their_numbers_in_words(draw, monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "show", lambda fig, alt: shown.append((fig, alt)))
    plots.use_style()
    draw()
    [(figure, alt)] = shown
    assert re.search(r"\d", alt)
    assert "-0.00" not in alt
    assert len(alt) > 60
    plt.close(figure)


# --- what the prose says


def test_a_lookup_is_a_product_with_one_hot_vectors():
    table, ids = _random(7, 3), torch.tensor([[6, 0, 6]])
    one_hot = torch.nn.functional.one_hot(ids, 7).float()
    assert torch.equal(one_hot @ table, embed(ids, table))
    with pytest.raises(IndexError):
        embed(torch.tensor([[7]]), table)


def test_the_neighbours_that_the_text_names(llm):
    table = llm.model.embed_tokens.weight.detach()
    encode = llm.tokenizer.encode
    king, queen, python, snake = (encode(f" {w}")[0] for w in NAMED)
    unit = table / table.norm(dim=1, keepdim=True)
    assert float(unit[king] @ unit[queen]) == pytest.approx(0.62, abs=0.005)
    similar = unit @ unit[python]
    rank = int((similar > similar[snake]).sum())
    assert rank == 3_319  # the word itself is number 0
    assert len(encode(" javascript")) == 4
    good, bad, excellent = (encode(f" {w}")[0] for w in ("good", "bad", "excellent"))
    assert unit[good] @ unit[bad] > unit[good] @ unit[excellent]


def test_the_position_is_not_in_the_vector(llm):
    ids = llm.tokenizer.encode("The dog bit the man because the")
    h = hidden_states(llm, ids)
    assert ids[3] == ids[6] == 260
    assert torch.equal(h[0, 3], h[0, 6])


def test_twelve_pairs_never_turn_in_training(llm):
    trained = llm.config.max_position_embeddings
    assert trained == 8_192
    assert sum(wavelength(pair) > trained for pair in range(32)) == 12


def test_the_loss_is_blind_to_the_wrong_base_and_the_gap_is_not(llm):
    own = llm.config.layers[0].rope
    right = doc_loss(llm), copy_loss(llm, [0, 1])
    with with_rope(llm, replace(own, rope_theta=10_000.0)):
        wrong = doc_loss(llm), copy_loss(llm, [0, 1])
        assert copy_loss(llm, [0], 4_000) > 10
    assert wrong[0] - right[0] < 0.3
    assert wrong[1] < right[1]
    assert (doc_loss(llm), copy_loss(llm, [0, 1])) == right  # all is as before


def test_ntk_aware_slows_the_slowest_pair_by_the_factor(llm):
    ways = measured.stretched(llm)
    plain_speeds = rope_frequencies(ways["none"], 64)
    changed = {name: rope_frequencies(rope, 64) / plain_speeds for name, rope in ways.items()}
    for name in ("linear", "NTK-aware", "Llama 3", "YaRN"):
        assert float(changed[name][-1]) == pytest.approx(1 / measured.FACTOR)
    for name in ("NTK-aware", "Llama 3", "YaRN"):
        assert float(changed[name][0]) == pytest.approx(1)
    cos, _ = rope_tables(torch.tensor([[0]]), ways["YaRN"], 64)
    assert float(cos[0, 0, 0, 0]) == pytest.approx(0.1 * math.log(4) + 1)


# --- the stored curves


def test_no_gap_straddles_the_trained_length():
    for gap in measured.GAPS:
        gaps = [float(measured.gap_of(seed, gap)) for seed in measured.SEEDS]
        assert mean(gaps) == pytest.approx(gap, abs=1)
        assert max(gaps) + 80 <= 8_192 or min(gaps) > 8_192


def test_what_the_text_says_about_the_curves():
    values = stored("02.gap_curves")
    assert values["gaps"] == list(measured.GAPS)
    assert all(len(losses) == 12 for losses in values["copy"]["none"])

    def at(name: str, gap: int) -> float:
        return mean(values["copy"][name][values["gaps"].index(gap)])

    assert at("none", 10_000) > 12 > 10 > at("none", 7_000)
    assert at("linear", 0) > 10
    assert values["doc"]["linear"] - values["doc"]["none"] > 1
    for name in ("NTK-aware", "Llama 3", "YaRN"):
        assert at(name, 10_000) < 9
        assert values["doc"][name] - values["doc"]["none"] < 0.15
    assert at("base 10,000", 2_000) > 10
