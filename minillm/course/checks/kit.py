"""The kit that exercises are made of: a right answer, cases, and named wrong variants."""

from __future__ import annotations

import copy
import linecache
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from minillm.course.checks.compare import brief, changed, compare
from minillm.course.checks.result import CheckResult
from minillm.course.checks.stubs import does_nothing, has_ellipsis

SECONDS = 10


class _OutOfTime(BaseException):
    """Not an `Exception`, so that a learner's `except Exception` does not swallow it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call gave: a value or an error, and which arguments it changed."""

    value: Any = None
    error: BaseException | None = None
    changed: tuple[int, ...] = ()

    def same(self, other: Outcome, tolerance: float) -> bool:
        """Whether both calls came to the same, errors by their type."""
        if self.error is not None or other.error is not None:
            return type(self.error) is type(other.error)
        return self.changed == other.changed and not compare(self.value, other.value, tolerance)


def call(answer: Callable[..., Any], *case: Any) -> Any:
    """The default `drive`: the answer is a function of the case's values."""
    return answer(*case)


@dataclass(frozen=True, slots=True)
class Exercise:
    """A function to write. See the package's docstring for how to make one.

    Args:
        right: a right answer, as a rule the package's own function.
        cases: the arguments of each call.
        wrong: pairs of a cause (the end of "Likely cause: …") and a function with that fault.
        drive: uses an answer on one case and returns what is compared.
        mutates: the function may change its arguments.
        tolerance: relative, for numbers.
    """

    right: Callable[..., Any]
    cases: Sequence[tuple[Any, ...]]
    wrong: Sequence[tuple[str, Callable[..., Any]]] = ()
    drive: Callable[..., Any] = call
    mutates: bool = False
    tolerance: float = 1e-6

    def check(self, name: str, answer: Any) -> CheckResult:
        """Compares the answer with the right one on every case."""
        if answer is None or answer is ...:
            return _not_attempted(name)
        if not callable(answer):
            given = f"{brief(answer)} ({type(answer).__name__})"
            kind = "class" if isinstance(self.right, type) else "function"
            return CheckResult(name, "wrong", f"A {kind} is asked for.", (("found", given),))
        found: list[Outcome] = []
        for case in self.cases:
            outcome = self._outcome(answer, case)
            if _is_stub(answer, outcome):
                return _not_attempted(name)
            found.append(outcome)
            # One endless case is enough: the others would take as long.
            if isinstance(outcome.error, _OutOfTime):
                break
        right = [self._outcome(self.right, case) for case in self.cases[: len(found)]]
        for case, expected, outcome in zip(self.cases, right, found, strict=False):
            if not expected.same(outcome, self.tolerance):
                message, details = self._explain(answer, expected, outcome)
                if cause := self._cause(right, found):
                    message = f"Likely cause: {cause}."
                given = ", ".join(brief(value) for value in case)
                return CheckResult(name, "wrong", message, (("input", given), *details))
        many = f"All {len(self.cases)} cases agree." if len(self.cases) > 1 else ""
        return CheckResult(name, "passed", many)

    def _outcome(self, answer: Callable[..., Any], case: tuple[Any, ...]) -> Outcome:
        given = copy.deepcopy(case)
        try:
            with _time_limit():
                value = self.drive(answer, *given)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Outcome(error=error)
        pairs = enumerate(zip(case, given, strict=True))
        touched = tuple(i for i, (before, after) in pairs if changed(before, after))
        return Outcome(value, changed=() if self.mutates else touched)

    def _cause(self, right: list[Outcome], found: list[Outcome]) -> str:
        """The cause whose variant gives the found outcomes wherever it differs from right.

        A variant that agrees in these cases alone has to explain the first mistake: that is what
        the learner sees.
        """
        pairs = zip(right, found, strict=True)
        first = next(i for i, (a, b) in enumerate(pairs) if not a.same(b, self.tolerance))
        partial = ""
        for cause, variant in self.wrong:
            made = [self._outcome(variant, case) for case in self.cases[: len(found)]]
            agree = [a.same(b, self.tolerance) for a, b in zip(made, found, strict=True)]
            telling = [not a.same(b, self.tolerance) for a, b in zip(made, right, strict=True)]
            if any(telling) and all(agree):
                return cause
            if telling[first] and all(a for a, tells in zip(agree, telling, strict=True) if tells):
                partial = partial or cause
        return partial

    def _explain(
        self, answer: Any, expected: Outcome, found: Outcome
    ) -> tuple[str, list[tuple[str, str]]]:
        if expected.error is not None and found.error is None:
            want = type(expected.error).__name__
            return f"It must raise {want} here.", [("found", brief(found.value))]
        if found.error is not None:
            return _explain_error(answer, expected, found.error)
        difference = compare(expected.value, found.value, self.tolerance)
        if difference is None:
            which = " and ".join(str(index) for index in found.changed)
            return f"The result is right, but the call changed its argument {which}.", []
        message = ""
        if found.value is None or difference.found == "None (NoneType)":
            message = "It returned None: is a `return` missing?"
        elif found.changed:
            message = "It also changed its arguments."
        where = [("index", difference.index)] if difference.index else []
        return message, [*where, ("expected", difference.expected), ("found", difference.found)]


def _as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True, slots=True)
class Value:
    """A number, text or small structure to work out by hand.

    Args:
        right: the right value.
        wrong: pairs of a likely cause and the value it leads to.
        tolerance: relative; wide enough for the rounding that the question asks for.
        form: brings an answer into the form of `right`, where it may be written in several ways.
            It leaves what it does not know as it is, and what has that form already.
    """

    right: Any
    wrong: Sequence[tuple[str, Any]] = ()
    tolerance: float = 1e-6
    form: Callable[[Any], Any] = _as_it_is

    def check(self, name: str, answer: Any) -> CheckResult:
        """Compares the answer with the right value, then with those of known mistakes."""
        if answer is None or has_ellipsis(answer):
            return _not_attempted(name)
        formed = self.form(answer)
        difference = compare(self.right, formed, self.tolerance)
        if difference is None:
            return CheckResult(name, "passed")
        for cause, value in self.wrong:
            if compare(value, formed, self.tolerance) is None:
                return CheckResult(
                    name, "wrong", f"Likely cause: {cause}.", (("found", brief(answer)),)
                )
        # The right value is not told: the learner is to find it.
        where = (("index", difference.index),) if difference.index else ()
        return CheckResult(name, "wrong", "", (*where, ("found", difference.found)))


def _not_attempted(name: str) -> CheckResult:
    return CheckResult(name, "not attempted", "Fill in the stub above and run this cell again.")


def _is_stub(answer: Any, outcome: Outcome) -> bool:
    if isinstance(outcome.error, NotImplementedError):
        return True
    if outcome.error is not None:
        # A stub with a gap in the middle, `total = ...`, fails where the gap is used.
        return isinstance(outcome.error, AttributeError | TypeError) and "ellipsis" in str(
            outcome.error
        )
    return has_ellipsis(outcome.value) or (outcome.value is None and does_nothing(answer))


def _explain_error(
    answer: Any, expected: Outcome, error: BaseException
) -> tuple[str, list[tuple[str, str]]]:
    if isinstance(error, _OutOfTime):
        return f"It did not end within {SECONDS} seconds: does a loop never finish?", []
    if isinstance(error, RecursionError):
        return "It calls itself without end: which call stops the recursion?", []
    details = [("raised", f"{type(error).__name__}: {error}".rstrip(": "))]
    file = _source_file(answer)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file and frame.lineno:
            source = linecache.getline(frame.filename, frame.lineno).strip()
            details.append(("line", f"{frame.lineno}: {source}"))
            break
    if expected.error is not None:
        return f"It must raise {type(expected.error).__name__} here.", details
    details.append(("expected", brief(expected.value)))
    return "It raised an error.", details


def _source_file(answer: Any) -> str | None:
    """Where an answer was written: a function, or a class by its methods."""
    functions = vars(answer).values() if isinstance(answer, type) else [answer]
    codes = (getattr(function, "__code__", None) for function in functions)
    return next((code.co_filename for code in codes if code is not None), None)


@contextmanager
def _time_limit() -> Iterator[None]:
    """Stops an endless loop, where the system has an alarm signal (not on Windows)."""
    if not hasattr(signal, "setitimer") or (
        threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise _OutOfTime

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
