"""What only the notebooks need: checks, self-tests, guesses, figures, widgets, the notebook tool.

In a notebook:

```python
from minillm.course import chat, check, compare_guess, guess, mistakes, quiz, same_as_cell, use
from minillm.course import plots, widgets
```

In a terminal: `python -m minillm.course sync | check | build | run | clean`.
"""

from typing import TYPE_CHECKING, Any

from minillm.course.checks import check, mistakes
from minillm.course.guesses import compare_guess, guess
from minillm.course.quizzes import quiz
from minillm.course.same import same_as_cell

if TYPE_CHECKING:
    from minillm.course.chat_widget import chat
    from minillm.course.live import use

__all__ = ["chat", "check", "compare_guess", "guess", "mistakes", "quiz", "same_as_cell", "use"]


def __getattr__(name: str) -> Any:
    """`chat` and `use` bring PyTorch with them, which the notebook tool can do without."""
    if name == "chat":
        from minillm.course.chat_widget import chat

        return chat
    if name == "use":
        from minillm.course.live import use

        return use
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
