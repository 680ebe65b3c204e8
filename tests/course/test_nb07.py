"""What notebook 07 shows: its widget, its figures, and the facts its prose states."""

import re
from base64 import b64decode
from itertools import pairwise

import pytest
import torch

from minillm.course import check
from minillm.course.checks.nb07 import EIGHT, SPIKED, gptq_column, int8_rows, zero_point
from minillm.course.figures import nb07 as figures
from minillm.course.layer_inputs import keys_and_values
from minillm.course.precomputed import stored
from minillm.course.probes import doc_ids
from minillm.course.quantization_view import bits_per_weight, rounded, row_explorer, row_view
from minillm.course.trace import hidden_states
from minillm.quantization.gptq import gptq, inverse_factor
from minillm.quantization.int4 import quantize_groups
from minillm.quantization.int8 import quantize_absmax


@pytest.fixture
def row():
    return torch.randn(576, generator=torch.Generator().manual_seed(0))


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


# --- Widget


def test_the_widget_s_numbers_are_those_of_a_loop(row):
    shown = plain(row_view(row, 4, 64, False))
    total = worst = 0.0
    for start in range(0, 576, 64):
        group = row[start : start + 64].tolist()
        low, high = min(group), max(group)
        scale = (high - low) / 15
        grid = [(code - round(-low / scale)) * scale for code in range(16)]
        errors = [min(abs(w - value) for value in grid) for w in group]
        total += sum(error**2 for error in errors)
        worst = max(worst, *errors)
    relative = re.search(r"relative squared error (\S+) ;", shown)
    largest = re.search(r"largest error (\S+) ;", shown)
    assert relative is not None
    assert largest is not None
    # Scales are stored in 16 bits, rounded up.
    assert float(relative[1]) == pytest.approx(total / float(row.square().sum()), rel=0.02)
    assert float(largest[1]) == pytest.approx(worst, rel=0.03)
    assert "bits per weight 4.375" in shown
    assert "codes in use 16 of 16" in shown
    assert "576 weights, 4 bits, 9 × 64, asymmetric" in shown


def test_the_widget_lists_codes_and_what_they_stand_for():
    row = torch.tensor([-3.0, -1.2, 0.4, 4.5, 0.0, 1.0, 2.0, -0.6])
    shown = plain(row_view(row, 4, -1, False))  # from -3 to 4.5 in 15 steps of a half
    assert "weight -3.000 -1.200 0.400 4.500" in shown
    assert "code 0 4 7 15 6 8 10 5" in shown
    assert "comes back as -3.000 -1.000 0.500 4.500" in shown
    assert "error +0.000 +0.200 +0.100 +0.000" in shown
    assert "value = (code − 6) · 0.5000" in shown


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [False, True])
def test_the_widget_takes_all_its_settings(row, bits, symmetric):
    panel = row_explorer(row)
    panel.widget()
    (bits_slider, _), (group, _), (tick, _) = panel.inputs
    bits_slider.value, tick.value = bits, symmetric
    for option in group.options:
        group.value = option
        shown = panel.view(panel.state)
        assert "nan" not in shown
        picture = re.search(r"base64,([^\"]+)", shown)
        assert picture is not None
        svg = b64decode(picture[1]).decode()
        assert "nan" not in svg
        assert svg.count("<circle") == (576 if option == "whole row" else int(option))


def test_the_widget_offers_sizes_that_fit():
    _, (group, _), _ = row_explorer(torch.ones(96)).inputs
    assert list(group.options) == ["16", "32", "whole row"]
    assert "relative squared error 0 ;" in plain(row_view(torch.zeros(32), 4, -1, True))
    with pytest.raises(ValueError, match="128, which does not divide the width of 576"):
        rounded(torch.ones(576), 4, 128, False)


def test_more_bits_and_smaller_groups_are_nearer(row):
    def error(bits, size, symmetric=False):
        stored = rounded(row, bits, size, symmetric)
        return float((stored.dequantize()[0] - row).square().sum())

    assert error(3, 64) > error(4, 64) > error(5, 64)
    assert error(4, -1) > error(4, 64) > error(4, 16)
    assert error(4, 64, True) > error(4, 64)
    assert bits_per_weight(4, 16) > bits_per_weight(4, 64)


# --- Figures


def floats(dtype):
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).float()
    return patterns[patterns.isfinite()]


GRIDS = {
    "float16": floats(torch.float16),
    "bfloat16": floats(torch.bfloat16),
    "INT8": torch.arange(-127, 128) / 127,
    "INT4": torch.arange(-7, 8) / 7,
}


def test_how_many_numbers_each_format_has(words_of):
    said = words_of(lambda: figures.number_lines(GRIDS))
    # From 0.5 to 1 float16 has steps of 2⁻¹¹, bfloat16 of 2⁻⁸, float32 of 2⁻²⁴.
    assert f"float32 has 1,017,370,379 and {int(0.02 * 2**24) + 1:,}" in said
    assert f"float16 has 9,503 and {int(0.02 * 2**11) + 1}" in said
    assert f"bfloat16 has 15,524 and {int(0.02 * 2**8) + 1}" in said
    assert "INT8 has 3 and 3" in said
    assert "INT4 has 1 and 0" in said


def test_outliers(words_of):
    said = words_of(lambda: figures.outliers([1, 800, 20_000], [2, 90, 100], [0.1, 1, 2]))
    assert "At block 2 the first token has 20,000 in channel 507" in said
    assert "all other tokens at most 100, the median is 2" in said


def test_group_scales(words_of, row):
    whole = quantize_groups(row[None], -1, symmetric=True)
    said = words_of(
        lambda: figures.group_scales(row, whole, quantize_groups(row[None], 64, symmetric=True))
    )
    assert f"steps of {float(row.abs().max()) / 7:.2g}" in said


def test_the_nearest_is_not_the_best(words_of):
    weights, hessian = torch.tensor([1.4, 0.45]), torch.tensor([[1, 0.9], [0.9, 1]])
    choices = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])
    said = words_of(lambda: figures.gptq_row(weights, hessian, *choices))
    assert "(1, 0) has an error of 0.69, GPTQ's choice (1, 1) 0.067" in said


def test_awq_search_is_relative_to_no_scaling(words_of):
    said = words_of(lambda: figures.awq_search([0, 0.5, 1], [4.0, 3.0, 5.0]))
    assert "1 without scaling, 0.75 at 0.50, 1.25 at 1" in said


def test_keys_have_stripes_and_values_none(words_of):
    values = torch.ones(128, 64)
    keys = values.clone()
    keys[:, 5] = 9
    assert figures.channel_spread(keys) == 9
    said = words_of(lambda: figures.key_statistics(keys, values))
    assert "9.0 times" in said
    assert "In the values it is 1.0 times" in said


def test_the_last_figure_shows_the_methods_for_weights(words_of):
    rows = [
        {"name": "float32", "title": "float32", "bits": 32, "kl": 0.0},
        {"name": "int8-channel", "title": "INT8 per channel", "bits": 8.04, "kl": 0.003},
        {"name": "int4-64", "title": "INT4 groups of 64", "bits": 4.375, "kl": 0.25},
        {"name": "gptq-64", "title": "GPTQ groups of 64", "bits": 4.375, "kl": 0.12},
        {"name": "gptq-64-order", "title": "GPTQ, act order", "bits": 4.4, "kl": 0.11},
        {"name": "kv-int8", "title": "KV cache INT8", "bits": 32, "kl": 0.001},
    ]
    said = words_of(lambda: figures.quality(rows))
    assert said.endswith(
        "INT8 per channel, 8.04 bits, 0.003; INT4 groups of 64, 4.38 bits, 0.25; GPTQ groups of "
        "64, 4.38 bits, 0.12; GPTQ, act order, 4.40 bits, 0.11."
    )


def test_labels_move_apart():
    moved = figures.apart([0.0, 0.01, 1.0, 0.02], 0.1)
    order = sorted(moved)
    assert [moved.index(place) for place in order] == [0, 1, 3, 2]
    assert all(b - a > 0.0999 for a, b in pairwise(order))
    assert figures.apart([], 0.1) == []


# --- Facts, from what is stored


@pytest.fixture
def rows():
    return {row["name"]: row for row in stored("07.quality")["rows"]}


def test_what_the_ledger_says_of_weights(rows):
    full = rows["float32"]["perplexity"]
    rises = [rows[name]["perplexity"] / full - 1 for name in ("int4-64", "gptq-64-order", "awq-64")]
    assert rises == pytest.approx([0.24, 0.12, 0.10], abs=0.006)
    changed = [1 - rows[name]["same_top"] for name in ("int4-64", "gptq-64-order", "awq-64")]
    assert changed == pytest.approx([0.3, 0.2, 0.2], abs=0.02)
    names = ("int4-64", "gptq-64", "gptq-64-order", "awq-64", "int8-channel", "bfloat16")
    divergences = [rows[name]["kl"] for name in names]
    assert divergences == pytest.approx([0.25, 0.17, 0.11, 0.10, 0.002, 0.001], abs=0.006)
    assert rows["int8-channel"]["same_top"] == pytest.approx(0.97, abs=0.005)
    assert rows["int8-activations"]["kl"] / rows["int8-channel"]["kl"] == pytest.approx(10, abs=1)


def test_what_the_ledger_says_of_the_cache(rows):
    full, int8, channel, token = (
        rows[name] for name in ("float32", "kv-int8", "kv-int4", "kv-int4-token")
    )
    rises = [100 * (row["perplexity"] / full["perplexity"] - 1) for row in (int8, channel, token)]
    assert rises == pytest.approx([0.02, 0.6, 4.6], abs=0.05)
    assert token["kl"] / channel["kl"] == pytest.approx(3.5, abs=0.05)
    assert channel["cache_bits"] == token["cache_bits"] == pytest.approx(5.5, abs=0.01)


def test_what_is_stored_can_be_drawn(words_of, rows):
    said = words_of(lambda: figures.quality(list(rows.values())))
    assert "INT4 groups of 64, 4.38 bits, 0.25" in said
    assert "KV" not in said
    assert "float" not in said


# --- Facts, measured


def test_seven_billion_weights():
    sizes = [7e9 * (4 + 24 / size) / 8e9 for size in (128, 32)]
    assert sizes == pytest.approx([3.66, 4.16], abs=0.01)


def test_one_scale_for_the_residual_stream_loses_the_text(llm):
    x = hidden_states(llm, doc_ids(llm, 300))[12]
    assert float(x[0, 507].abs()) == pytest.approx(22_552, rel=1e-3)
    assert float(x[1:].abs().max()) == pytest.approx(108, abs=1)
    assert float(x[1:].abs().median()) == pytest.approx(1.5, abs=0.05)
    codes, scale = quantize_absmax(x)
    assert float(scale) == pytest.approx(178, abs=1)
    assert float((codes[1:] != 0).float().mean()) < 1e-4
    assert float((quantize_absmax(x, -1)[0][1:] != 0).float().mean()) > 0.7


def test_groups_and_a_zero_point_leave_two_fifths_of_the_error(llm):
    weight = llm.model.get_submodule("layers.4.self_attn.q_proj").weight

    def error(size, symmetric):
        change = quantize_groups(weight, size, symmetric=symmetric).dequantize() - weight
        return float(change.square().sum())

    row, group, zero = error(-1, True), error(64, True), error(64, False)
    assert row > group > zero
    assert zero / row == pytest.approx(0.39, abs=0.01)


def test_the_keys_of_layer_19_have_a_stripe(llm):
    keys, values = keys_and_values(llm, doc_ids(llm, 128))
    assert figures.channel_spread(keys[19, 0]) == pytest.approx(19, abs=0.5)
    assert figures.channel_spread(values[19, 0]) < 2


def test_the_weights_lie_on_a_grid_of_32_already(llm):
    weight = llm.model.get_submodule("layers.4.self_attn.q_proj").weight
    groups = weight.view(len(weight), -1, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    steps = (groups - low) / (high - low) * 15
    # Where least and largest are both in use, all others are whole steps away.
    whole = ((steps - steps.round()).abs() < 0.01).all(-1)
    assert float(whole.float().mean()) > 0.5


# --- Exercises


def test_absmax_by_hand():
    codes, scale = quantize_absmax(torch.tensor(EIGHT))
    assert float(scale) == pytest.approx(0.03)
    assert codes.tolist() == [13, -40, 2, 77, -127, 27, -17, 43]
    codes, scale = quantize_absmax(torch.tensor(SPIKED))
    assert float(scale) == pytest.approx(0.3)
    assert codes.tolist() == [1, -4, 0, 127, -13, 3, -2, 4]


def test_the_zero_point_is_the_library_s():
    for low, high in ((-0.4, 1.1), (0.2, 0.8), (-0.9, -0.3)):
        stored = quantize_groups(torch.tensor([[low, high]]), -1)
        scale, zero = zero_point(low, high)
        assert int(stored.zeros) == zero
        assert float(stored.scales) == pytest.approx(scale, rel=1e-3)


def test_column_after_column_is_gptq():
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(4, 6, generator=generator)
    x = torch.randn(50, 6, generator=generator) @ torch.randn(6, 6, generator=generator)
    hessian = x.T @ x / 50
    stored = gptq(weight, hessian, 6)
    factor, left = inverse_factor(hessian), weight.clone()
    for j in range(6):
        left = gptq_column(left, factor, j, stored.dequantize()[:, j])
        codes = (left[:, j] / stored.scales[:, 0].float()).round() + stored.zeros[:, 0]
        assert torch.equal(codes.clamp(0, 15).to(torch.uint8), stored.codes[:, j])
    torch.testing.assert_close(left, stored.dequantize())


def test_a_zero_row_may_have_any_positive_scale():
    def tiny(weight):
        scales = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127
        return (weight / scales).round().to(torch.int8), scales

    def nan(weight):
        scales = weight.abs().amax(dim=1, keepdim=True) / 127
        return (weight / scales).round().to(torch.int8), scales

    assert check("07.int8", tiny).passed
    assert check("07.int8", lambda weight: quantize_absmax(weight, dim=-1)).passed
    assert "a row of zeros" in check("07.int8", nan).message


def test_codes_in_another_type_are_not_int8():
    def floats_left(weight):
        codes, scales = int8_rows(weight)
        return codes.float(), scales

    found = check("07.int8", floats_left)
    assert found.status == "wrong"
    assert dict(found.details)["index"] == "['codes.dtype']"


def test_how_many_layers_a_group_of_128_leaves_out(llm):
    widths = [
        each.in_features for each in llm.model.layers.modules() if hasattr(each, "in_features")
    ]
    assert len(widths) == 210
    assert sum(width % 128 != 0 for width in widths) == 180
    assert set(widths) == {576, 1_536}
