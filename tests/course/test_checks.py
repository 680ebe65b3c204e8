"""The learner's `check`: its verdicts, its diagnoses, and every exercise of the course."""

import math
from contextlib import suppress
from typing import Any

import pytest

from minillm.course import check, checks, mistakes
from minillm.course.checks.compare import compare
from minillm.course.checks.kit import Exercise, Value
from minillm.course.checks.result import CheckResult

NAMED = [
    pytest.param(name, exercise, id=name)
    for number in checks.numbers()
    for name, exercise in checks.load(number).items()
]


def merge(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        if tuple(ids[i : i + 2]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def overlapping(ids, pair, new):
    return [new if tuple(ids[i : i + 2]) == pair else ids[i] for i in range(len(ids))]


def dropping(ids, pair, new):
    return [i for i in merge(ids, pair, new) if i == new]


MERGE = Exercise(
    merge,
    cases=[([1, 2, 1, 2], (1, 2), 9), ([1, 1, 1], (1, 1), 9), ([3], (1, 2), 9), ([], (1, 2), 9)],
    wrong=[
        ("it uses a token twice", overlapping),
        ("it drops what is not merged", dropping),
        ("it changes its input", lambda ids, pair, new: ids.append(ids.clear()) or ids),
    ],
)


def test_right():
    assert MERGE.check("a", merge).passed


@pytest.mark.parametrize(
    ("answer", "cause"), [(overlapping, "uses a token twice"), (dropping, "drops what is not me")]
)
def test_the_cause_is_named(answer, cause):
    result = MERGE.check("a", answer)
    assert result.status == "wrong"
    assert cause in result.message
    details = dict(result.details)
    assert details.keys() == {"input", "index", "expected", "found"}


def test_a_cause_is_not_named_by_guesswork():
    def both(ids, pair, new):
        return [*overlapping(ids, pair, new), 0]

    result = MERGE.check("a", both)
    assert result.message == ""
    assert dict(result.details) == {
        "input": "[1, 2, 1, 2], (1, 2), 9",
        "index": "[1]",
        "expected": "9",
        "found": "2",
    }


def test_of_two_faults_the_cause_of_the_first_mistake_is_named():
    """A fault that shows in a later case alone would not explain what the learner sees."""
    sign = Exercise(
        lambda x: (x > 0) - (x < 0),
        cases=[(3,), (-2,), (0,)],
        wrong=[
            ("nothing is left for zero", lambda x: 1 if x >= 0 else -1),
            ("it returns the number", lambda x: x),
        ],
    )
    both = sign.check("a", lambda x: 7 * x or 1)
    assert (both.message, dict(both.details)["input"]) == ("", "3")
    assert "left for zero" in sign.check("a", lambda x: 1 if x >= 0 else -1).message


def stub_dots(ids, pair, new):
    """Merges."""
    ...  # noqa: PIE790 (as a learner finds it)


def stub_pass(ids, pair, new):
    pass


def stub_raises(ids, pair, new):
    raise NotImplementedError


def stub_gap(ids, pair, new):
    out: Any = ...
    out.append(3)
    return out


def stub_returns_dots(ids, pair, new):
    found = ...
    return found


def stub_adds_to_dots(ids, pair, new):
    total: Any = ...
    return total + 1


@pytest.mark.parametrize(
    "stub",
    [stub_dots, stub_pass, stub_raises, stub_gap, stub_returns_dots, stub_adds_to_dots, ..., None],
)
def test_stubs_are_not_attempted(stub):
    result = MERGE.check("a", stub)
    assert result.status == "not attempted"


def endless(ids, pair, new):
    while True:
        with suppress(Exception):  # which does not swallow the time limit
            ids = list(ids)


def recursive(ids, pair, new):
    return recursive(ids, pair, new)


def leaving(ids, pair, new):
    raise SystemExit(3)


def failing(ids, pair, new):
    out = list(ids)
    return out[99]


def in_place(ids, pair, new):
    ids[:] = merge(ids, pair, new)
    return list(ids)


def forgets_return(ids, pair, new):
    list(ids)


@pytest.mark.parametrize(
    ("answer", "message", "detail"),
    [
        (recursive, "calls itself without end", ""),
        (leaving, "raised an error", "SystemExit: 3"),
        (failing, "raised an error", "IndexError: list index out of range"),
        (failing, "raised an error", "return out[99]"),
        (in_place, "changed its argument 0", ""),
        (forgets_return, "is a `return` missing", "None (NoneType)"),
        (lambda ids, pair, new: "abc", "", "'abc' (str)"),
        (lambda ids: ids, "raised an error", "TypeError"),
        (lambda ids, pair, new: [None], "is a `return` missing", "None (NoneType)"),
        ([1], "A function is asked for", "[1] (list)"),
    ],
)
def test_nothing_that_an_answer_does_raises(answer, message, detail):
    result = MERGE.check("a", answer)
    assert result.status == "wrong"
    assert message in result.message
    assert detail in " ".join(value for _, value in result.details)


def test_an_endless_loop_ends(monkeypatch):
    monkeypatch.setattr("minillm.course.checks.kit.SECONDS", 0.2)
    assert "does a loop never finish" in MERGE.check("a", endless).message


def test_a_keyboard_interrupt_is_the_readers():
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MERGE.check("a", interrupted)


def test_a_right_answer_that_raises():
    def strict(x):
        if x < 0:
            raise ValueError(x)
        return x

    exercise = Exercise(strict, cases=[(1,), (-1,)])
    assert exercise.check("a", strict).passed
    assert "must raise ValueError" in exercise.check("a", lambda x: x).message

    def other(x):
        return 1 / (x + 1)

    assert "must raise ValueError" in Exercise(strict, cases=[(-1,)]).check("a", other).message


def test_driving_a_class():
    class Counter:
        def __init__(self):
            self.n = 0

        def push(self, k):
            self.n += k
            return self.n

    class Forgets(Counter):
        def push(self, k):
            return k

    exercise = Exercise(
        Counter,
        cases=[([1, 2],)],
        wrong=[("it forgets", Forgets)],
        drive=lambda make, steps: [(c := make()), *map(c.push, steps)][1:],
    )
    assert exercise.check("a", Counter).passed
    assert "it forgets" in exercise.check("a", Forgets).message

    class Fails(Counter):
        def push(self, k):
            return [self.n][k + 9]

    assert "return [self.n][k + 9]" in repr(exercise.check("a", Fails))
    assert "A class is asked for" in exercise.check("a", Counter()).message

    class Stub:
        def push(self, k):
            raise NotImplementedError

    assert exercise.check("a", Stub).status == "not attempted"


def test_values():
    value = Value({"passes": 49, "ttft": 0.2}, wrong=[("n gaps", {"passes": 50, "ttft": 0.2})])
    assert value.check("a", {"passes": 49, "ttft": 0.2}).passed
    assert "n gaps" in value.check("a", {"passes": 50, "ttft": 0.2}).message
    unknown = value.check("a", {"passes": 3, "ttft": 0.2})
    assert unknown.status == "wrong"
    assert "49" not in repr(unknown)  # the right value is for the learner to find
    for stub in (..., None, {"passes": ..., "ttft": 0.2}, [1, (2, ...)]):
        assert value.check("a", stub).status == "not attempted"
    assert Value(0.78, tolerance=0.02).check("a", 0.7812).passed
    assert not Value(819_200).check("a", 819_201).passed
    assert (
        Value("ab", form=lambda x: x.lower() if isinstance(x, str) else x).check("a", "AB").passed
    )


@pytest.mark.parametrize(
    ("expected", "found", "index"),
    [
        ([1, 2], (1, 2), None),
        ([1, [2, 3]], [1, [2, 4]], "[1][1]"),
        ([1, 2], [1], "[1]"),
        ([1], [1, 2], "[1]"),
        ([1], "1", ""),
        ({"a": 1}, {"a": 2}, "['a']"),
        ({"a": 1}, {}, "['a']"),
        ({}, {"b": 1}, "['b']"),
        ({1, 2}, {2, 1}, None),
        ({1, 2}, {1}, ""),
        ("é", "e", ""),
        (b"a", "a", ""),
        (1, 1.0, None),
        (1.0, 1.0 + 1e-9, None),
        (1_000_000, 1_000_001, ""),
        (1, True, ""),
        (True, 1, ""),
        (math.nan, math.nan, None),
        (math.inf, -math.inf, ""),
        (math.inf, 1.0, ""),
        (10**400, 10**400, None),
        (None, 0, ""),
    ],
)
def test_compare(expected, found, index):
    difference = compare(expected, found)
    assert (difference and difference.index) == index if index is not None else difference is None


def test_compare_tensors():
    import torch

    ones = torch.ones(2, 3)
    wrong = ones.clone()
    wrong[1, 2] = 2
    infinite = torch.full((2,), -math.inf)
    for expected, found in [
        (ones, ones.double()),
        (ones, ones.tolist()),
        (ones.tolist(), ones),
        (3.0, torch.tensor(3.0)),
        (infinite, infinite),
    ]:
        assert compare(expected, found) is None
    for expected, found, index in [
        (ones, wrong, "[1, 2]"),
        (ones, torch.ones(3, 2), ".shape"),
        (ones.bool(), ones, ".dtype"),
        (ones, ones * math.nan, "[0, 0]"),
        (infinite, torch.zeros(2), "[0]"),
    ]:
        difference = compare(expected, found)
        assert difference is not None
        assert difference.index == index


def test_results_show_their_status_in_words_and_escape_html():
    result = CheckResult("01.a", "wrong", "a < b", (("found", "<unk>"),))
    assert repr(result) == "✗ 01.a: wrong. a < b\n    found     <unk>"
    html = result._repr_html_()
    assert "✗ 01.a: wrong" in html
    assert "a &lt; b" in html
    assert "&lt;unk&gt;" in html


def test_an_unknown_exercise_names_close_ones(monkeypatch):
    monkeypatch.setattr(checks, "numbers", lambda: ["01"])
    monkeypatch.setattr(checks, "load", lambda number: {"01.merge": MERGE, "01.encode": MERGE})
    assert check("01.merge", merge).passed
    with pytest.raises(ValueError, match=r"no exercise '01.mrege'; there are 01.merge"):
        check("01.mrege", merge)
    with pytest.raises(ValueError, match="no exercise 'xyz'"):
        check("xyz", merge)


@pytest.mark.parametrize(("name", "exercise"), NAMED)
def test_every_exercise_passes_its_right_answer(name, exercise):
    assert isinstance(exercise, Exercise | Value)
    assert check(name, exercise.right).passed


@pytest.mark.parametrize(("name", "exercise"), NAMED)
def test_every_exercise_names_the_cause_of_three_wrong_answers(name, exercise):
    assert len(exercise.wrong) >= 3
    for cause, answer in exercise.wrong:
        result = check(name, answer)
        assert (result.status, result.message) == ("wrong", f"Likely cause: {cause}.")


@pytest.mark.parametrize(("name", "exercise"), NAMED)
def test_every_exercise_knows_a_stub(name, exercise):
    def stub(*_args, **_kwargs):
        raise NotImplementedError

    assert check(name, ...).status == "not attempted"
    if isinstance(exercise, Exercise):
        assert check(name, stub).status == "not attempted"


def test_the_mistakes_of_a_notebook_are_listed():
    found = mistakes("01")
    assert "01.merge\n  - a run of equal tokens became a single one" in repr(found)
    html = found._repr_html_()
    assert html.startswith("<details>")
    assert "<code>a b c</code> could mean two merges" in html
    with pytest.raises(ValueError, match="no checks for notebook '77'"):
        mistakes("77")
