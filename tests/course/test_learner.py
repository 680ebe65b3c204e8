"""Self-tests, guesses, widgets and figures."""

import asyncio
import importlib
import pkgutil
import sys
from types import SimpleNamespace

import pytest

from minillm.course import compare_guess, guess, plots, quiz, quizzes, same_as_cell, widgets
from minillm.course.quizzes.question import Question, Quiz

NUMBERS = [m.name[2:] for m in pkgutil.iter_modules(quizzes.__path__) if m.name.startswith("nb")]
TWO = Quiz(
    "99",
    (
        Question("What is `x < y`?", (("true", "No."), ("false", "Since `x` is larger.")), right=1),
        Question("And now?", (("this", "Because."), ("that", "It is not.")), right=0),
    ),
)


@pytest.mark.parametrize("number", NUMBERS)
def test_every_quiz_has_five_questions(number):
    assert len(quiz(number).questions) == 5
    module = importlib.import_module(f"minillm.course.quizzes.nb{number}")
    assert isinstance(module.QUESTIONS, tuple)


def test_an_unknown_quiz():
    with pytest.raises(ValueError, match="no quiz '77'"):
        quiz("77")


@pytest.mark.parametrize(
    ("choices", "right", "message"),
    [
        ((("a", "b"),), 0, "1 choices; 2 to 8 allowed"),
        ((("a", "b"), ("c", "")), 0, "every choice needs a text and an explanation"),
        ((("a", "b"), ("c", "d")), 2, "right=2; 0 to 1 allowed"),
    ],
)
def test_questions_are_validated(choices, right, message):
    with pytest.raises(ValueError, match=message):
        Question("Q", choices, right)


def test_a_quiz_without_a_kernel_holds_every_explanation():
    html = TWO.static_html()
    assert html.count("<details>") == 2
    assert "What is <code>x &lt; y</code>?" in html
    assert "b) ✓ Right. Since <code>x</code> is larger." in html
    assert "b) false: Since `x` is larger." in repr(TWO)


def test_a_quiz_answers_a_choice():
    forms = TWO._repr_mimebundle_()
    assert set(forms) == {"text/plain", "text/html", widgets.VIEW}
    box = TWO.widget()
    _, radio, answer = box.children[0].children
    assert radio.value is None
    radio.value = 0
    assert "✗ Not this one" in answer.value
    radio.value = 1
    assert "✓ Right" in answer.value


def test_guesses(capsys):
    guess("99.speed", ...)
    assert "no guess yet" in capsys.readouterr().out
    assert "You made no guess" in repr(compare_guess("99.speed", 5))
    guess("99.speed", 4)
    assert "your guess of 4 is noted" in capsys.readouterr().out
    text = repr(compare_guess("99.speed", 5.25, " ×"))
    assert text == (
        "99.speed: measured 5.25 ×, your guess was 4 ×. "
        "A factor of 1.3 too low: the right order of magnitude."
    )
    assert "your guess was" in compare_guess("99.speed", 5.25)._repr_html_()


@pytest.mark.parametrize(
    ("guessed", "measured", "words"),
    [
        (5, 5, "Exactly right"),
        (5, 5.5, "Close"),
        (100, 5, "A factor of 20 too high: a surprise"),
        (0, 5, "What made the difference"),
        (-1, 5, "What made the difference"),
    ],
)
def test_verdicts(guessed, measured, words):
    guess("99.other", guessed)
    assert words in repr(compare_guess("99.other", measured))


@pytest.mark.parametrize("value", ["four", True, [1]])
def test_a_guess_is_a_number(value):
    with pytest.raises(ValueError, match="a guess is a number"):
        guess("99.speed", value)


def test_an_explorer_shows_its_view_of_the_inputs():
    panel = widgets.explorer(
        lambda text, k: f"<b>{text[:k]}</b>",
        text=widgets.text_box("Text", "abcdef"),
        k=widgets.slider("k", 1, 6, 2),
    )
    forms = panel._repr_mimebundle_()
    assert forms["text/html"] == "<b>ab</b>"
    assert set(forms) == {"text/plain", "text/html", widgets.VIEW}
    box = panel.widget()
    text, k, output = box.children
    k.value = 4
    assert output.value == widgets.text_lines("<b>abcd</b>")
    text.value = "xyz"
    assert output.value == widgets.text_lines("<b>xyz</b>")


def test_a_panel_with_buttons():
    state: tuple[str, ...] = ("a",)
    panel = widgets.Panel(
        state,
        "".join,
        inputs=[(widgets.text_box("Prompt", "a", rows=2), lambda state, value: (value,))],
        actions={"Append": lambda state: (*state, "b"), "Undo": lambda state: state[:-1]},
    )
    box = panel.widget()
    field, row, output = box.children
    row.children[0].click()
    row.children[0].click()
    assert output.value == widgets.text_lines("abb")
    panel.click("Undo")
    assert panel.state == ("a", "b")
    assert output.value == widgets.text_lines("ab")
    field.value = "z"
    assert output.value == widgets.text_lines("z")


def test_an_error_in_a_view_is_shown():
    panel = widgets.Panel(1, lambda state: f"{1 / state:.0f}", actions={"Zero": lambda state: 0})
    panel.widget()
    panel.click("Zero")
    assert "ZeroDivisionError" in panel._output.value


def test_typing_is_debounced():
    calls: list[str] = []

    async def typing():
        later = widgets.debounced(calls.append, seconds=0.01)
        for letter in "abc":
            later(letter)
        assert calls == []
        await asyncio.sleep(0.05)

    asyncio.run(typing())
    assert calls == ["c"]
    widgets.debounced(calls.append)("d")
    assert calls == ["c", "d"]


def test_choices_and_ticks():
    assert widgets.choice("Layer", ["a", "b"]).value == "a"
    assert widgets.tick("On", True).value is True
    assert widgets.slider("T", 0.0, 2.0, 1.0, 0.1).value == 1.0


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", plots.COLOURS)
def test_colours_stand_out_from_the_paper(colour):
    # WCAG 2.1 asks for a contrast of 3 between graphics and what surrounds them.
    assert (luminance(plots.PAPER) + 0.05) / (luminance(colour) + 0.05) >= 3


def test_lines_differ_without_colour():
    counts = (len(plots.COLOURS), len(plots.LINES), len(plots.MARKERS), len(plots.HATCHES))
    assert set(counts) == {7}
    assert len(set(plots.LINES)) == len(set(plots.MARKERS)) == len(set(plots.HATCHES)) == 7


def test_a_figure_needs_a_description():
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plots.use_style()
    figure, _ = plt.subplots()
    assert figure.get_size_inches().tolist() == pytest.approx([7.2, 3.6])
    with pytest.raises(ValueError, match="describe what the figure shows"):
        plots.show(figure, alt="A figure.")
    plt.close(figure)


def test_a_figure_carries_its_description(monkeypatch):
    import matplotlib as mpl

    mpl.use("agg")
    import IPython
    import matplotlib.pyplot as plt

    shown = []
    monkeypatch.setattr(IPython, "get_ipython", object)
    monkeypatch.setattr("IPython.display.display", lambda data, **rest: shown.append((data, rest)))
    figure, axes = plt.subplots()
    axes.plot([1, 2])
    plots.show(figure, alt="A line that rises\nfrom 1 to 2 & ends.")
    (picture, rest), (words, _) = shown
    assert picture["image/png"].startswith(b"\x89PNG")
    assert picture["text/plain"] == "Figure: A line that rises from 1 to 2 & ends."
    assert rest["metadata"]["image/png"]["alt"] == "A line that rises from 1 to 2 & ends."
    assert "rises from 1 to 2 &amp; ends." in words["text/html"]
    assert not plt.get_fignums()


def test_same_as_cell_outside_ipython(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    same_as_cell(compare_guess)
    monkeypatch.delitem(sys.modules, "IPython")
    same_as_cell(compare_guess)
    assert capsys.readouterr().out == ""


def ran(monkeypatch, *cells: str) -> None:
    shell = SimpleNamespace(user_ns={"In": ["", *cells]}, transform_cell=lambda text: text)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("minillm.course.same._is_stale", lambda file: False)


def test_same_as_cell_takes_the_last_definition(monkeypatch, capsys):
    import inspect

    text = inspect.getsource(compare_guess)
    ran(monkeypatch, "def compare_guess(): ...", "1 +", text, "compare_guess")
    same_as_cell(compare_guess)
    assert capsys.readouterr().out == ""
    ran(monkeypatch, text, "x = 1\n\ndef compare_guess(): ...")
    same_as_cell(compare_guess)
    assert "Your cell's `compare_guess` differs" in capsys.readouterr().out
    ran(monkeypatch, "x = 1")  # nothing to compare with
    same_as_cell(compare_guess)
    assert capsys.readouterr().out == ""


def test_same_as_cell_takes_symbols_of_the_package(monkeypatch):
    ran(monkeypatch, "x = 1")
    for symbol in (pytest.fixture, "".join, 3):
        with pytest.raises(TypeError, match="same_as_cell takes a function or class of minillm"):
            same_as_cell(symbol)


def test_same_as_cell_for_a_constant(monkeypatch, capsys):
    ran(monkeypatch, 'HEAT = "viridis"')
    same_as_cell("minillm/course/plots.py::HEAT")
    assert "python -m minillm.course build" in capsys.readouterr().out


def test_same_as_cell_names_a_stale_kernel(monkeypatch, capsys):
    import inspect

    ran(monkeypatch, inspect.getsource(compare_guess))
    monkeypatch.setattr("minillm.course.same._is_stale", lambda file: True)
    same_as_cell(compare_guess)
    assert "restart the kernel" in capsys.readouterr().out
