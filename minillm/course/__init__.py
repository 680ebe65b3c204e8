"""What only the notebooks need: checks, self-tests, guesses, figures, widgets, the notebook tool.

In a notebook:

```python
from minillm.course import check, compare_guess, guess, quiz, same_as_cell, use
from minillm.course import plots, widgets
```

In a terminal: `python -m minillm.course sync | check | build | run | clean`.
"""

from minillm.course.checks import check
from minillm.course.guesses import compare_guess, guess
from minillm.course.quizzes import quiz
from minillm.course.same import same_as_cell
from minillm.course.use import use

__all__ = ["check", "compare_guess", "guess", "quiz", "same_as_cell", "use"]
