"""Stop strings: nothing of them comes out, and nothing else is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.tokenizer import StopStrings


def run(stops, pieces):
    stop = StopStrings(stops)
    return [*map(stop.push, pieces), stop.flush()], stop.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "out", "stopped"),
    [
        (["DEFGHIJ"], ["DEF", "G", "HI", "J"], ["", "", "", "", ""], True),
        (["DEFX"], ["DEF", "G", "HI", "J"], ["", "DEFG", "HI", "J", ""], False),
        (["b", "abc"], ["x", "abc"], ["x", "", ""], True),
        (["b", "abc"], ["xabc"], ["x", ""], True),
        (["b", "abc"], ["xab", "c"], ["xa", "", ""], True),
        (["stop"], ["go on stop here", "more"], ["go on ", "", ""], True),
        (["ab"], ["a"], ["", "a"], False),
        (["aab"], ["a", "a", "a", "b", "c"], ["", "", "a", "", "", ""], True),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", "", ""], True),
        ([], ["a", "b"], ["a", "b", ""], False),
        ("ab", ["xa", "b"], ["x", "", ""], True),
        (["🌶️"], ["🌶", "x"], ["", "🌶x", ""], False),
    ],
)
def test_s06_over_the_borders_of_tokens(stops, pieces, out, stopped):
    assert run(stops, pieces) == (out, stopped)


@pytest.mark.parametrize("stops", ["", [""], ["a", ""], [None], [3], [b"x"]])
def test_s06_an_empty_stop_string_is_refused(stops):
    with pytest.raises(ValueError, match="texts that are not empty are needed"):
        StopStrings(stops)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_s06_the_pieces_are_the_text_up_to_a_stop_string(stops, pieces):
    out, stopped = run(stops, pieces)
    whole, text = "".join(pieces), "".join(out)
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    assert stopped == any(stop in whole for stop in stops)
    if stopped:
        assert any(whole.startswith(stop, len(text)) for stop in stops)
    else:
        assert text == whole
    # Nothing is held back that is final: what is held could still become a stop string.
    given_out = 0
    for i in range(len(pieces)):
        given_out += len(out[i])
        held = "".join(pieces[: i + 1])[given_out:]
        assert stopped or not held or any(stop.startswith(held) for stop in stops)
