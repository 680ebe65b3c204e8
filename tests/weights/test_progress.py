"""When a bar is shown while a model loads."""

import io

import pytest

from minillm.weights.progress import LARGE, load_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "total", "shown"),
    [
        (Terminal(), LARGE, True),
        (Terminal(), LARGE - 1, False),
        (io.StringIO(), LARGE, False),
    ],
)
def test_a_bar_for_a_large_model_on_a_terminal(monkeypatch, stream, total, shown):
    monkeypatch.setattr("sys.stderr", stream)
    with load_progress(total) as loaded:
        loaded(total // 2)
    assert ("load" in stream.getvalue()) == shown
