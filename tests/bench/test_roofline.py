"""The picture: it exists, it is a picture, and its title says what it shows."""

import builtins

import pytest

from minillm.bench import Ceilings, Cost, diagnose
from minillm.bench.roofline import Point, _labels, plot, takeaway

MACHINE = Ceilings(10e9, 100e9)


def points():
    decode = Cost(0.2e9, 0.4e9, 0.1e9)
    prefill = Cost(20e9, 0.4e9, 0.1e9)
    return [
        Point("prefill", "42 × 1", prefill, diagnose(prefill, 0.25, MACHINE, "prefill")),
        Point("decode", "42 × 1", decode, diagnose(decode, 0.08, MACHINE)),
        Point("decode", "42 × 4", decode, diagnose(decode, 0.0625, MACHINE)),
    ]


def test_the_title_is_the_takeaway():
    assert takeaway(points()) == (
        "Prefill waits for arithmetic, 80% of its ceiling at best;\n"
        "decode waits for memory, 80% of its ceiling at best"
    )
    slow = Point("decode", "", points()[1].cost, diagnose(points()[1].cost, 1.0, MACHINE))
    fast = Point("prefill", "", points()[0].cost, diagnose(points()[0].cost, 0.08, MACHINE))
    assert takeaway([fast]) == (
        "Prefill is beyond its ceiling, 2.5 times: products of whole numbers are faster"
    )
    assert takeaway([slow]) == "Decode is far from both ceilings, at 5% of the nearer one"


def test_points_that_lie_together_have_one_label():
    first, other = points()[1:]
    (together,) = _labels([first, other._replace(diagnosis=diagnose(first.cost, 0.075, MACHINE))])
    assert together[0] == "42 × 1 and 42 × 4: 62% to 67%"
    assert together[1] == pytest.approx((0.4, 2.5))
    slower, slow = (first._replace(diagnosis=diagnose(first.cost, s, MACHINE)) for s in (0.55, 0.5))
    (low,) = _labels([slow, slower])
    assert low[0].endswith(": 9% to 10%")
    apart = _labels([first, other])
    assert [text for text, _ in apart] == ["42 × 1: 62%", "42 × 4: 80%"]


def test_a_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    plot(points(), MACHINE, "a machine", tmp_path / "roofline.png")
    raw = (tmp_path / "roofline.png").read_bytes()
    assert raw.startswith(b"\x89PNG")
    assert len(raw) > 20_000


def test_all_points_are_in_the_picture(tmp_path, monkeypatch):
    """Even one that is a hundred times below the roof."""
    figure = pytest.importorskip("matplotlib.figure")
    collections = pytest.importorskip("matplotlib.collections")
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    cost = points()[1].cost
    slow = Point("decode", "42 × 2", cost, diagnose(cost, 10, MACHINE))
    plot([*points(), slow], MACHINE, "a machine", tmp_path / "roofline.png")
    (axes,) = drawn[0].axes
    marks = [x for x in axes.collections if isinstance(x, collections.PathCollection)]
    places = [tuple(map(float, place)) for mark in marks for place in mark.get_offsets()]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    assert len(places) == 4
    assert (0.4, 0.02) in places
    assert all(left < x < right and low < y < high for x, y in places)


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.png"):
        plot(points(), MACHINE, "a machine", tmp_path / "roofline.jpg")


def test_matplotlib_is_asked_for(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="--plot needs matplotlib"):
        plot(points(), MACHINE, "a machine", tmp_path / "roofline.png")
