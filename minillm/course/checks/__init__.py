'''Exercises and their checks: one module `nbNN.py` per notebook.

How to write one. `nb01.py` holds a dict named `EXERCISES`, with the exercise's name as key, spelled
out as a literal (`python -m minillm.course check` reads the keys without importing the module):

```python
from minillm.course.checks.kit import Exercise, Value
from minillm.tokenizer.bpe import merge


def _overlapping(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """A wrong variant, written as a learner would."""
    ...


EXERCISES = {
    # A number by hand. `wrong` pairs a cause with the value that it leads to.
    "01.crossover": Value(30, wrong=[("multiplies by n: there are n − 1 gaps", 29)]),
    # A function. Each case is the tuple of its arguments; the right function gives the outcome.
    "01.merge": Exercise(
        merge,
        cases=[([1, 2, 1, 2], (1, 2), 9), ([1, 1, 1], (1, 1), 9), ([], (1, 2), 9)],
        wrong=[("it looks again at a token it has just used", _overlapping)],
    ),
}
```

- On some case each wrong variant must differ from the right answer, and from the other variants.
  The diagnosis names the variant that gives the learner's outcomes on all those cases.
- What `compare` covers: numbers within a relative `tolerance` (whole ones exactly, unless it is
  above 1e-6), text, bytes, sequences (a list equals a tuple), dicts, sets, NumPy arrays and
  tensors (shape, then the first index that differs).
- Right may raise: the learner's function must then raise the same type of error.
- A class, a generator, or several calls: give `drive(answer, *case)`, which uses the learner's
  answer on one case and returns what is compared, such as
  `drive=lambda make, chunks: [make().push(chunk) for chunk in chunks]`.
- Arguments are copied for each call. A changed argument is a mistake unless `mutates=True`.
- Anything else: a function `(answer) -> CheckResult` may stand in the dict.

A stub raises `NotImplementedError`, or its body is `...`; a number's stub is `answer = ...`. All of
these give "not attempted". `check` never raises for what the learner's code does.
'''

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minillm.course.checks.kit import Exercise, Value
from minillm.course.checks.result import CheckResult
from minillm.course.inline import inline_html

AnyExercise = Exercise | Value | Callable[[object], CheckResult]


def check(exercise: str, answer: object) -> CheckResult:
    """Checks a learner's answer, and names the first failing index and the likely cause.

    Args:
        exercise: the exercise's name, such as `"01.merge"`.
        answer: the learner's function, class or value; a stub is reported as not attempted.

    Returns:
        A result that a notebook displays; `result.passed` says whether the answer is right.

    Raises:
        ValueError: no exercise has that name. Nothing the answer does makes `check` raise.
    """
    number = exercise.partition(".")[0]
    exercises = load(number) if number in numbers() else {}
    if exercise not in exercises:
        known = [name for each in numbers() for name in load(each)]
        near = difflib.get_close_matches(exercise, known, n=3, cutoff=0.4) or known
        raise ValueError(f"no exercise {exercise!r}; there are {', '.join(near) or 'none yet'}")
    found = exercises[exercise]
    if isinstance(found, Exercise | Value):
        return found.check(exercise, answer)
    return found(answer)


@dataclass(frozen=True, slots=True)
class Mistakes:
    """The mistakes that the checks of a notebook know by name; a notebook displays them folded."""

    causes: Mapping[str, list[str]]

    def __repr__(self) -> str:
        return "\n".join("\n  - ".join([name, *each]) for name, each in self.causes.items() if each)

    def _repr_html_(self) -> str:
        lists = "".join(
            f"<p><code>{name}</code></p><ul>"
            + "".join(f"<li>{inline_html(cause)}</li>" for cause in each)
            + "</ul>"
            for name, each in self.causes.items()
            if each
        )
        title = "What the checks look for (it gives some answers away)"
        return f"<details><summary>{title}</summary>{lists}</details>"


def mistakes(number: str) -> Mistakes:
    """What the checks of one notebook look for, such as `mistakes("03")`; for those who only read.

    Raises:
        ValueError: that notebook has no checks.
    """
    if number not in numbers():
        raise ValueError(f"no checks for notebook {number!r}; there are {', '.join(numbers())}")
    return Mistakes(
        {
            name: list(dict.fromkeys(cause for cause, _ in getattr(exercise, "wrong", ())))
            for name, exercise in load(number).items()
        }
    )


def numbers() -> list[str]:
    """The numbers of the notebooks that have checks."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.removeprefix("nb") for name in names if name.startswith("nb"))


def load(number: str) -> Mapping[str, AnyExercise]:
    """The exercises of one notebook, by name."""
    exercises: Mapping[str, AnyExercise] = importlib.import_module(
        f"{__name__}.nb{number}"
    ).EXERCISES
    return exercises
