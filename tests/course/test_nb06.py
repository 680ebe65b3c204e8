"""What notebook 06 shows: its widgets, its figures, and the facts its prose states."""

import re

import matplotlib.pyplot as plt
import pytest
import torch

from minillm.config import LayerConfig, ModelConfig
from minillm.course import check, plots
from minillm.course.checks.nb06 import chunk_step, run_chunks
from minillm.course.figures import nb06 as figures
from minillm.course.measurements import nb06 as measure
from minillm.course.precomputed import stored
from minillm.course.probes import capitals, copy_loss, doc_ids, forward, losses
from minillm.course.window_view import (
    cache_bytes,
    growth_explorer,
    growth_html,
    kind_of,
    mask_explorer,
    mask_html,
)
from minillm.gqa import pool_kv_heads, repeat_kv_heads
from minillm.kv_cache import new_cache

CONFIG = ModelConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1_536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8_192,
    layers=(LayerConfig(),) * 30,
    tie_word_embeddings=True,
)


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# --- Widgets


def test_m05_the_mask_table_counts_the_token_itself():
    shown = plain(mask_html(6, 4))
    counts = re.findall(r"[●·◆] (\d) ", shown.split("seen", 2)[-1])
    assert [int(count) for count in counts[:6]] == [1, 2, 3, 4, 4, 4]
    assert "Seen: 18 of the 21 pairs" in shown
    assert "holds, place by place: 4 5 2 3" in shown


def test_a_sink_has_a_sign_of_its_own():
    assert kind_of(5, 0, 4) == "forgotten"
    assert kind_of(5, 0, 4, sinks=1) == "sink"
    assert kind_of(3, 0, 4, sinks=1) == "window"
    assert kind_of(0, 1, 4, sinks=4) == "later"
    assert "holds, place by place: 0 5 2 3 4" in plain(mask_html(6, 4, 1))
    assert "0 1 – – –" in plain(mask_html(2, 4, 1))


def test_the_mask_follows_the_sliders():
    panel = mask_explorer(8)
    panel.widget()
    before = panel.view(panel.state)
    panel.inputs[0][0].value = 2
    assert panel.state["window"] == 2
    assert panel.view(panel.state) != before


@pytest.mark.parametrize("every", [None, 6, 2])
@pytest.mark.parametrize("tokens", [10, 20, 500])
def test_cache_bytes_are_those_of_a_real_cache(every, tokens):
    config = CONFIG.with_window(16, sinks=4, global_every=every)
    if tokens >= 20:
        assert cache_bytes(config, tokens, 4) == new_cache(config, 1, tokens).nbytes
    assert cache_bytes(CONFIG, tokens, 4) == new_cache(CONFIG, 1, tokens).nbytes


def test_growth_says_what_the_notebook_says():
    shown = plain(growth_html(CONFIG, 10_000, 256))
    assert "691.2 MB 100.0%" in shown
    assert "230.4 MB 33.3%" in shown
    assert "6.0 MB 0.9%" in shown
    panel = growth_explorer(CONFIG)
    panel.widget()
    panel.inputs[2][0].value = "every 6th"
    assert "43.4 MB" in plain(panel.view(panel.state)) or "43." in plain(panel.view(panel.state))


# --- Figures


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.pooling(stored("06.pooling")),
        lambda: figures.masks(10, 4),
        lambda: figures.windows(stored("06.window")),
        lambda: figures.copies(stored("06.copy"), 140),
        lambda: figures.memory(CONFIG, 256, 4),
        lambda: figures.stream(stored("06.stream"), 2_228, 8_192),
    ],
)
def test_figures_can_be_drawn(draw, monkeypatch):
    described = []
    monkeypatch.setattr(plots, "show", lambda figure, alt: described.append(alt))
    draw()
    plt.close("all")
    assert len(described) == 1
    assert "nan" not in described[0]


# --- Facts, from what is stored


def test_pooling_one_layer_is_cheap_and_many_are_not():
    values = stored("06.pooling")
    added = [loss - values["full"] for loss in values["one"]]
    assert values["full"] == pytest.approx(3.50, abs=0.01)
    assert values["all"] == pytest.approx(9.40, abs=0.02)
    assert values["last ten"] == pytest.approx(5.11, abs=0.02)
    assert min(added[:2]) > 0.5
    assert max(added[2:]) < 0.2


def test_one_kept_token_beats_a_larger_window():
    values = stored("06.window")
    none, one, four = (values["perplexity"][name] for name in ("0", "1", "4"))
    sizes = values["windows"]
    assert one[sizes.index(64)] < none[sizes.index(256)]
    assert one[sizes.index(128)] < none[sizes.index(512)]
    assert none[sizes.index(512)] == pytest.approx(31, abs=0.5)
    assert one[sizes.index(64)] == pytest.approx(31, abs=0.5)
    assert all(a > b > values["full"] for a, b in zip(none, one, strict=True))
    assert all(abs(a - b) / a < 0.07 for a, b in zip(one, four, strict=True))


def test_depth_does_not_carry_a_copy():
    values = stored("06.copy")
    for window, loss in zip(values["windows"], values["loss"], strict=True):
        assert loss > 12.5 if window < 140 else loss < 5
        assert window != 141 or loss < 2.1


def test_global_layers_do_not_replace_the_sink():
    rows = {(row["global_every"], row["sinks"]): row["perplexity"] for row in stored("06.mixed")}
    for every in (None, 6, 2):
        assert rows[every, 0] > 1.5 * rows[every, 1]


def test_the_stream_stays_level():
    values = stored("06.stream")
    late = int(8_192 / values["bucket"]) + 1
    without, with_sinks, dense = (values[name] for name in ("sinks 0", "sinks 4", "dense"))
    assert all(a > b + 0.2 for a, b in zip(without[2:], with_sinks[2:], strict=True))
    assert max(with_sinks[late:]) < 3.5
    assert max(dense[10:]) < 0.5


# --- Facts, measured


def test_repeated_heads_are_the_same_model(llm):
    ids = doc_ids(llm, 60)
    mha = measure.grouped(llm, 9)
    expected = forward(llm, ids)
    assert (forward(mha, ids) - expected).abs().max() < 1e-5 * expected.abs().max()
    for layer in llm.model.layers:
        for weight in (layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight):
            assert torch.equal(pool_kv_heads(repeat_kv_heads(weight, 3, 9), 9, 3), weight)


def test_windows_share_the_weights(llm):
    model = measure.windowed(llm, 16, 2)
    assert model.model.embed_tokens.weight is not None
    assert model.model.embed_tokens.weight.data_ptr() == llm.model.embed_tokens.weight.data_ptr()
    assert llm.config.layers[0].sliding_window is None


def test_a_layer_that_looks_spare_is_needed_for_copying(llm):
    assert copy_loss(measure.grouped(llm, 1, [16]), [0]) > copy_loss(llm, [0]) + 3
    assert capitals(measure.grouped(llm, 1))[0] == 0


@pytest.mark.parametrize("chunk", [7, 16, 80])
def test_the_ring_equals_one_pass(llm, chunk):
    model, ids = measure.windowed(llm, 16, 2), doc_ids(llm, 80)
    found = measure.stream_losses(model, ids, model.new_cache(1, 80), chunk)
    torch.testing.assert_close(found, losses(model, ids), atol=1e-3, rtol=0)


def test_a_distant_copy_is_as_far_as_it_says(llm):
    ids = measure.distant_copy_ids(llm, 0)
    assert ids[:40] == ids[140:]
    assert len(ids) == 180


# --- Exercises


def test_every_query_of_the_right_answer_sees_its_window():
    for row in run_chunks(chunk_step, [3, 9, 1, 5], 4):
        if row[0] == "query":
            assert row[3] == list(range(max(0, row[1] - 3), row[1] + 1))


def test_the_notebook_s_own_broken_ring_is_recognised():
    def writes_first(ring, chunk):
        for position in chunk:
            ring[position % len(ring)] = position
        return [position for position in ring if position >= 0], ring

    assert "written first" in check("06.chunk", writes_first).message
