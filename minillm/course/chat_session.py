"""A model that answers a conversation on a thread of its own, so that it can be stopped at once."""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from minillm.course.conversation import (
    Conversation,
    ask,
    end,
    fail,
    figures,
    fresh,
    messages,
    retry,
    write,
)

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.sampling import SamplingParams
    from minillm.streaming import TextStream

# Twenty times per second is as smooth as text needs, and leaves the processor to the model.
SHOW_SECONDS = 0.05
# A thread that was told to stop ends after the step that it is in; a long prompt is one step.
END_SECONDS = 5.0

_one_step_at_a_time: weakref.WeakKeyDictionary[LLM, threading.Lock] = weakref.WeakKeyDictionary()


class Run:
    """One answer on its way: `cancelled` ends its thread after the step that it is in."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.stream: TextStream | None = None
        self.thread: threading.Thread | None = None


_running: set[Run] = set()  # every run whose thread has not ended


class Session:
    """A conversation, a model, and at most one thread that writes the model's answer.

    Every event, whichever thread it comes from, changes the conversation under one lock and shows
    the result. A stopped run may still be in the middle of a step; nothing of it counts any more.

    Args:
        llm: answers. Several sessions may share it: their steps alternate.
        show: called with the new conversation under the lock, also from the writing thread.
    """

    def __init__(self, llm: LLM, show: Callable[[Conversation], None]) -> None:
        self.llm, self.show = llm, show
        self.conversation = Conversation()
        self._lock = threading.RLock()
        self._run: Run | None = None

    def change(self, event: Callable[[Conversation], Conversation]) -> None:
        """The conversation after an event, shown."""
        with self._lock:
            self.conversation = event(self.conversation)
            self.show(self.conversation)

    def ask(self, text: str, params: SamplingParams, system: str = "") -> None:
        """Send a message; the answer comes by itself. Refused, with a note, while one comes."""
        self._begin(lambda conversation: ask(conversation, text), params, system)

    def retry(self, params: SamplingParams, system: str = "") -> None:
        """Ask the last question again."""
        self._begin(retry, params, system)

    def stop(self) -> None:
        """End the answer now, with what has come so far."""
        with self._lock:
            self._leave(lambda conversation: end(conversation, "stopped"))

    def fresh(self) -> None:
        """Start a new conversation, whatever goes on in this one."""
        with self._lock:
            self._leave(fresh)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the answer's end, at most so long; whether it has ended.

        Interrupting the wait, as the kernel's stop button does, stops the answer.
        """
        run = self._run
        if run is not None and run.thread is not None:
            try:
                run.thread.join(seconds)
            except KeyboardInterrupt:
                self.stop()
                raise
        return not self.conversation.running

    def _begin(
        self,
        event: Callable[[Conversation], Conversation],
        params: SamplingParams,
        system: str,
    ) -> None:
        with self._lock:
            was_running = self.conversation.running
            self.change(event)
            if self.conversation.running and not was_running:
                self._run = run = Run()
                asked = messages(self.conversation, system)
                run.thread = threading.Thread(
                    target=self._answer, args=(run, asked, params), name="chat", daemon=True
                )
                _running.add(run)
                run.thread.start()

    def _leave(self, event: Callable[[Conversation], Conversation]) -> None:
        """Give up the current run, with what it has written, and let an event follow."""
        if self._run is not None:
            self._run.cancelled.set()
            self._take(self._run)
            self._run = None
        self.change(event)

    def _answer(self, run: Run, asked: list[dict[str, str]], params: SamplingParams) -> None:
        """The thread: step after step until the answer is complete or the run is cancelled."""
        step = _one_step_at_a_time.setdefault(self.llm, threading.Lock())
        shown = -math.inf
        try:
            run.stream = self.llm.stream_chat(asked, params)
            with run.stream as stream:
                while not run.cancelled.is_set():
                    with step:
                        piece = None if run.cancelled.is_set() else next(stream, None)
                    if piece is None:
                        break
                    if time.monotonic() - shown >= SHOW_SECONDS:
                        self._event(run, lambda: self._take(run))
                        shown = time.monotonic()
            self._event(run, lambda: self._finish(run))
        except Exception as error:  # whatever it is, the reader sees it
            text = str(error)
            if not text or not isinstance(error, ValueError):  # those are written for the reader
                text = ": ".join(filter(None, [type(error).__name__, text]))
            self._event(run, lambda: self._fail(run, text))
        finally:
            _running.discard(run)

    def _event(self, run: Run, event: Callable[[], None]) -> None:
        """What a run does to the conversation, unless another run has taken its place."""
        with self._lock:
            if self._run is run:
                event()

    def _take(self, run: Run) -> None:
        """Show what the run has written and cost so far."""
        if run.stream is not None and run.stream.output.stats.output_tokens:
            output = run.stream.output
            cost = figures(output.stats, self.llm.config.context)
            self.change(lambda conversation: write(conversation, output.text, cost))

    def _finish(self, run: Run) -> None:
        self._take(run)
        assert run.stream is not None
        ending = run.stream.output.finish_reason or "stop"
        self.change(lambda conversation: end(conversation, ending))
        self._run = None

    def _fail(self, run: Run, error: str) -> None:
        self._take(run)
        self.change(lambda conversation: fail(conversation, error))
        self._run = None


@atexit.register
def _end_all() -> None:
    """No thread may run PyTorch while the interpreter goes away."""
    runs = list(_running)
    for run in runs:
        run.cancelled.set()
    for run in runs:
        if run.thread is not None:
            run.thread.join(END_SECONDS)
