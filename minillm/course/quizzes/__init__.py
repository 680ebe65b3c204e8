"""Self-tests: one module `nbNN.py` per notebook, with a tuple named `QUESTIONS`.

```python
from minillm.course.quizzes.question import Question

QUESTIONS = (
    Question(
        "A 100-token prompt, 50 tokens out, with a cache. How many decode passes?",
        right=1,
        choices=(
            ("50", "The first token comes out of the prefill pass, so one fewer is needed."),
            ("49", "Prefill gives the first token; each of the other 49 takes one pass."),
            ("150", "That counts positions of both phases; prefill handles 100 of them at once."),
        ),
    ),
    ...  # five of them; at least one "which measurement would show this?"
)
```

Every choice carries its own explanation. Text may use `code` in backquotes, and no other markup.
"""

from __future__ import annotations

import importlib
import pkgutil

from minillm.course.quizzes.question import Quiz


def quiz(number: str) -> Quiz:
    """The self-test of a notebook, such as `quiz("01")`: buttons in a live notebook, else text.

    Raises:
        ValueError: that notebook has no self-test.
    """
    names = (module.name for module in pkgutil.iter_modules(__path__))
    known = sorted(name.removeprefix("nb") for name in names if name.startswith("nb"))
    if number not in known:
        raise ValueError(f"no quiz {number!r}; there are {', '.join(known) or 'none yet'}")
    return Quiz(number, importlib.import_module(f"{__name__}.nb{number}").QUESTIONS)
