"""How much a chat template may make, and how long it may take."""

import math
import time
from collections.abc import Iterable, Iterator
from types import GeneratorType
from typing import Any

from jinja2 import TemplateRuntimeError

MAX_SIZE = 1_000_000  # of a value, in characters, beyond twice what was given to the template
MAX_MADE = 16  # times as much in all
MAX_PRODUCT = 50_000_000
MAX_DEPTH = 100  # of lists in lists
MAX_BITS = 4_096  # of an integer
MAX_CALLS = 100  # of macros in macros, and loops that call themselves
SECONDS, PER_MESSAGE = 0.5, 0.001  # of processor time
ITEM = 16  # an item of a list takes the memory of so many characters, at four bytes each
STEP, LOOK = 500, 100_000  # the work of one operation, and how much lies between looks at the clock

# Operations whose result, or time, can be the product of the sizes of two of their operands.
PRODUCTS = (
    *("*", "replace", "join", "indent", "strip", "lstrip", "rstrip", "trim", "rsplit"),
    *("rpartition", "rfind", "rindex"),
)

_EMPTY: dict[str, str] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
CONTAINERS: tuple[type, ...] = (dict, list, tuple, *VIEWS)


class Budget:
    """Counts for one rendering; every method raises TemplateRuntimeError beyond a limit.

    given: all that the template is given. end: when the processor time of this thread ends.
    """

    def __init__(self, given: Any = (), end: float = 0.0) -> None:
        self._work, self._next_look, self._end, self._calls = 0, LOOK, end, 0
        # What is known of containers: size and depth. They are kept, so that ids stay theirs.
        self._known: dict[int, tuple[Any, int, int]] = {}
        self._max_size, self._made = 1 << 60, 0
        self._max_size, self._made = MAX_SIZE + 2 * self.size(given), 0

    def tick(self, work: int = STEP) -> None:
        """Count some work; now and then look at the clock."""
        self._work += work
        if self._work >= self._next_look:
            self._next_look = self._work + LOOK
            if time.thread_time() > self._end:
                raise TemplateRuntimeError("it takes too long")

    def size(self, value: Any) -> int:
        """How many characters a value has, with what stands in it twice counted twice."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, CONTAINERS):
            return self._contents(value)[0]
        if isinstance(value, range):
            return ITEM * len(value)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise TemplateRuntimeError(f"an integer has more than {MAX_BITS:,} bits")
        return 1

    def _contents(self, value: Any) -> tuple[int, int]:
        """Size and depth of a container. It is walked through once, since nothing can change it."""
        if known := self._known.get(id(value)):
            return known[1:]
        own, nested, depth = ITEM, 0, 0
        for items in (value, value.values()) if isinstance(value, dict) else (value,):
            for item in items:
                own += ITEM
                if isinstance(item, CONTAINERS):
                    size, levels = self._contents(item)
                    nested, depth = nested + size, max(depth, levels)
                else:
                    own += self.size(item)
        if depth >= MAX_DEPTH:
            raise TemplateRuntimeError(f"lists are nested more than {MAX_DEPTH} deep")
        self.count(own, own + nested)
        self._known[id(value)] = value, own + nested, depth + 1
        return own + nested, depth + 1

    def count(self, new: int, size: int = 0) -> None:
        """Characters that are made, and the size of the value they belong to."""
        self._made += new
        if max(new, size) > self._max_size or self._made > MAX_MADE * self._max_size:
            raise TemplateRuntimeError("it makes too much text, or too long lists")
        self.tick(new)

    def made(self, value: Any) -> Any:
        """The value that an operation gave, its size checked."""
        size = self.size(value)
        if isinstance(value, str):
            self.count(size)
        return value

    def admit(self, name: str, values: Iterable[Any]) -> tuple[Any, ...]:
        """What an operation is given, checked before it runs."""
        if name in PRODUCTS:  # what an iterator will yield has a size only as a list
            values = [list(v) if isinstance(v, Iterator) else v for v in values]
            if not all(isinstance(v, int | float) for v in values):
                sizes = sorted(abs(v) if isinstance(v, int) else self.size(v) for v in values)
                if math.prod(1 + size for size in sizes[-2:]) > MAX_PRODUCT:
                    raise TemplateRuntimeError(f"{name!r} would make something too long")
        values = tuple(values)
        work = sum(LOOK if isinstance(v, GeneratorType) else self.size(v) for v in values)
        self.tick(STEP + work)
        return values

    def enter(self) -> None:
        """A macro, a loop or a function begins."""
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TemplateRuntimeError(f"more than {MAX_CALLS} calls in calls")

    def leave(self) -> None:
        """It has ended."""
        self._calls -= 1
