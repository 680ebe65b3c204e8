"""What notebook 03 shows: scores of heads, the head explorer, tensor bytes, its figures."""

import re

import pytest
import torch

from minillm.course import heads, probes
from minillm.course.figures import nb03 as figures
from minillm.course.measurements import nb03 as measure
from minillm.course.precomputed import stored
from minillm.course.tensor_bytes import peak_bytes
from minillm.course.trace import attention_weights, hidden_states, without


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_previous_and_first_token_by_hand():
    weights = torch.zeros(1, 2, 3, 3)
    weights[0, 0] = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 0.5, 0.5]])
    weights[0, 1] = torch.eye(3)
    assert heads.previous_token(weights).tolist() == [[0.75, 0.0]]
    assert heads.first_token(weights, start=1).tolist() == [[0.5, 0.0]]
    named = heads.best(torch.tensor([[0.1, 0.3], [0.9, 0.2]]), 2)
    assert [name for name, _ in named] == ["1.0", "0.1"]
    assert named[0][1] == pytest.approx(0.9)


def test_weights_html_shows_numbers_and_escapes():
    html = heads.weights_html(["<b>", "is"], [[1.0, 0.0], [0.04, 0.96]])
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert plain(html).endswith("&lt;b&gt; 100 is 96")  # 4 % is not shown
    assert html.count("<tr>") == 3


def test_head_explorer_moves_with_buttons_and_sliders(llm):
    panel = heads.head_explorer(llm)
    panel.widget()
    assert "Layer 23, head 4." in panel.view(panel.state)
    assert re.search(r"gives 90 % of its attention to ␣France", plain(panel.view(panel.state)))
    for name, place in heads.BOOKMARKS.items():
        panel.click(name)
        assert (panel.state["layer"], panel.state["head"]) == place
    _, layer, head = (field for field, _ in panel.inputs)
    assert (layer.value, head.value) == place
    layer.value, head.value = 16, 0
    assert "Layer 16, head 0." in panel._output.value
    assert heads.head_html(llm, "", 0, 0) == "<p>Type a text.</p>"
    assert plain(heads.head_html(llm, "a b " * 50, 0, 0)).count("␣a") < 2 * heads.MOST_TOKENS


def test_peak_bytes_counts_what_lives_at_once():
    x = torch.randn(100)

    def two_then_one(x):
        y = x * 2  # 400 bytes
        z = y + 1  # 800
        del y
        return z.view(10, 10) + 1  # 800 again; a view costs nothing

    result, peak = peak_bytes(two_then_one, x)
    assert peak == 800
    torch.testing.assert_close(result, (x * 2 + 2).view(10, 10))
    assert peak_bytes(lambda x: x.mul_(1), x)[1] == 0
    assert peak_bytes(lambda: torch.zeros(3, dtype=torch.float64))[1] == 24


def test_heads_that_the_notebook_names(llm):
    text = attention_weights(llm, probes.doc_ids(llm, 100))
    assert heads.best(heads.previous_token(text), 1)[0][0] == "16.0"
    induction = dict(heads.best(heads.induction(llm), 6))
    assert {"18.6", "17.3", "17.4", "18.7"} <= set(induction)
    assert induction["18.6"] > 0.9
    capital = attention_weights(llm, probes.capital_ids(llm))
    assert heads.best(capital[:, :, -1, 3], 1)[0][0] == "23.4"


def test_the_circuit_is_causal_and_the_controls_are_not(llm):
    def copying(*chosen):
        with without(llm, heads=chosen):
            return probes.copy_loss(llm, range(2))

    full = probes.copy_loss(llm, range(2))
    assert copying((16, 0)) > full + 4
    assert copying((18, 6)) > full + 1.5
    six = copying((18, 6), (17, 3), (17, 4), (18, 7), (17, 5), (23, 2))
    assert six > full + 7
    assert copying((17, 0), (17, 6), (17, 7), (18, 0), (18, 1), (23, 3)) < full + 0.5


def test_who_writes_the_capital(llm):
    assert measure.swapped(llm, "self_attn", [23], -1) > 5
    assert measure.swapped(llm, "mlp", range(30), -1) < 0.5
    assert measure.swapped(llm, "self_attn", range(30), 3) < -6
    assert measure.swapped(llm, "mlp", [0], 3) > 5


def test_the_sink_and_its_channel(llm):
    states = hidden_states(llm, probes.doc_ids(llm, 100))
    assert int(states[12, 0].argmax()) == 507
    assert states[5, 0, 507] > 500
    assert states[11, 0, 507] < 100
    assert states[12, 0, 507] > 20_000


def test_layer_11_costs_only_at_the_first_token(llm):
    full = probes.doc_loss(llm)
    with without(llm, mlp=[11]):
        everywhere = probes.doc_loss(llm) - full
    with without(llm, mlp=[11], positions=range(1, 300)):
        elsewhere = probes.doc_loss(llm) - full
    assert everywhere > 1
    assert elsewhere < 0.1


def test_parts_left_out_come_back(llm):
    before = probes.doc_loss(llm, 60)
    with measure.without_output_projection(llm):
        assert probes.doc_loss(llm, 60) > before + 3
    with measure.without_residual(llm):
        assert probes.doc_loss(llm, 60) > before + 3
    assert probes.doc_loss(llm, 60) == before
    assert 11.09 < measure.largest_score(llm) < 88


def test_what_the_stored_measurements_say():
    edges = stored("03.cut_edges")
    assert [layer for layer, right in enumerate(edges["right"]) if right < 7] == [23]
    assert edges["right"][23] == 0
    patched = torch.tensor(stored("03.patching")["patched"])
    assert patched[:24, 3].min() > 5
    assert patched[24:, 3].max() < -7
    assert patched[24:, 4].min() > 5
    assert patched[:, :3].max() < -7
    found = stored("03.head_map")
    copy = torch.tensor(found["copy"])
    assert divmod(int(copy.argmax()), 9) == (16, 0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.scale((4, 16), {"by √D": [(1.0, 0.2), (1.0, 0.3)]}),
        lambda: figures.memory([256, 512], [600_000, 2_400_000], [400_000, 800_000]),
        lambda: figures.three_heads([("16.0 before", ["a", "b"], torch.eye(2))] * 3),
        lambda: figures.head_map(torch.rand(30, 9) + 2, 2.0, [(16, 0), (0, 8)]),
        lambda: figures.patching(torch.randn(30, 5), list("abcde")),
        lambda: figures.cut_edges([0.5, 0.1, 0.5], [7, 0, 7], 0.58),
        lambda: figures.sink([0.3] * 30, [800.0] * 30),
    ],
)
def test_figures_say_their_numbers_in_words(draw, words_of):
    assert re.search(r"\d", words_of(draw))


def test_the_table_lines_up(capsys):
    figures.table([("right", 3.5, "' Paris'"), ("wrong", 12.61, "'a'")], ("", "DOC", "goes on"))
    assert capsys.readouterr().out.splitlines() == [
        "         DOC  goes on",
        "right   3.50  ' Paris'",
        "wrong  12.61  'a'",
    ]
