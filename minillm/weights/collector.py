"""Python's garbage collector, held back while a model is read."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside.

    A tokenizer is some 200,000 objects, none of which is garbage. Made with the collector on, which
    looks through them again and again, they take about twice as long. What was made goes straight
    to the oldest generation, or the next collections would look through it after all: 0.1 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # what the program has frozen stays so
            gc.freeze()
            gc.unfreeze()
        if was_on:
            gc.enable()
