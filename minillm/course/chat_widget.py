"""`chat`: talk to a model in a notebook, and watch what its answers cost.

What happens is in `minillm.course.conversation` and `chat_session`, what is seen in `chat_view`;
here they are tied to the widgets of `chat_controls`.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from minillm.course import chat_view as view
from minillm.course.chat_controls import chosen, make_controls
from minillm.course.chat_session import Session
from minillm.course.conversation import Conversation
from minillm.course.widgets import bundle, debounced
from minillm.llm import LLM
from minillm.sampling import SamplingParams

# What the makers of SmolLM2 advise: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
PARAMS = SamplingParams(max_new_tokens=256, temperature=0.2, top_p=0.9)
SEND = "\x04"  # the page ends a text with it that is to be sent, see data/chat.js


def chat(
    llm: LLM | str | Path | None = None,
    *,
    system: str = "",
    params: SamplingParams = PARAMS,
    instant: bool = False,
) -> Chat:
    """A conversation with a model in a notebook: `chat()` as the last line of a cell.

    The answer arrives in pieces; Esc stops it at once, Enter sends, Shift+Enter starts a new line.
    Below it stand time to first token, inter-token latency (median and last), tokens per second,
    and how much of the context is used and left.

    Args:
        llm: a model, or the name or path of one; the default is "smollm2".
            A name is opened on the fastest backend that runs here.
        system: a first message that sets the tone. The reader can change it.
        params: how tokens are drawn at first. The reader can change temperature, top-p, top-k,
            max_new_tokens and seed; the other fields stay as given.
        instant: show answers when they are finished, without movement; on by itself where the
            reader's system asks for reduced motion.

    Raises:
        RuntimeError: no notebook's kernel runs here.
        ImportError: ipywidgets is missing.
        ValueError: the model has no chat template.
    """
    if not _in_notebook():
        raise RuntimeError("chat() needs a notebook; in a terminal run: minillm chat")
    if llm is None or isinstance(llm, str | Path):
        llm = _opened(llm or "smollm2")
    return Chat(llm, system=system, params=params, instant=instant)


def _in_notebook() -> bool:
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


@lru_cache(maxsize=1)
def _opened(name: str | Path) -> LLM:
    """A model by name: running the cell again does not read the weights again."""
    return LLM.from_pretrained(name, backend="auto")


class Chat:
    """What `chat` returns: a live conversation where a kernel runs, a static one elsewhere.

    A program may talk as well, with `ask`, `stop` and `wait`; `conversation` holds what was said.
    """

    def __init__(
        self, llm: LLM, *, system: str = "", params: SamplingParams = PARAMS, instant: bool = False
    ) -> None:
        llm.chat_ids([{"role": "user", "content": "?"}])  # without a template it fails here
        self.llm, self.params = llm, params
        self.controls = make_controls(params, system, instant)
        self._session = Session(llm, self._show)
        self._shown_draft = ""
        self._connect()
        self._show_settings()
        self._show(self.conversation)

    @property
    def conversation(self) -> Conversation:
        """What was said so far."""
        return self._session.conversation

    def ask(self, text: str) -> None:
        """Send a message; the answer comes by itself. Refused, with a note, while one comes."""
        system = self.controls.system.value
        self._with_settings(text, lambda params: self._session.ask(text, params, system))

    def retry(self) -> None:
        """Ask the last question again, with the settings as they are now."""
        draft, system = self.conversation.draft, self.controls.system.value
        self._with_settings(draft, lambda params: self._session.retry(params, system))

    def stop(self) -> None:
        """End the answer now, with what has come so far."""
        self._session.stop()

    def fresh(self) -> None:
        """Start a new conversation."""
        self._session.fresh()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the answer, at most so long; whether it has ended. An interrupt stops it."""
        return self._session.wait(seconds)

    def settings(self) -> SamplingParams:
        """How the next answer will be drawn; ValueError for a seed that is no whole number."""
        values = {name: field.value for name, field in self.controls.settings.items()}
        return chosen(self.params, **values)

    def _with_settings(self, draft: str, act: Callable[[SamplingParams], None]) -> None:
        try:
            params = self.settings()
        except ValueError as error:
            note = str(error)
            self._session.change(lambda talk: replace(talk, draft=draft, note=note))
        else:
            act(params)

    # From the page to the conversation --------------------------------------------------------

    def _connect(self) -> None:
        controls = self.controls
        actions = {
            "Send": lambda: self.ask(controls.message.value),
            "Stop": self.stop,
            "Retry": self.retry,
            "New conversation": self.fresh,
        }
        for label, act in actions.items():
            controls.buttons[label].on_click(lambda _, act=act: act())
        controls.root.observe(self._views, names="_view_count")
        controls.message.observe(self._typed, names="value")
        controls.message.observe(debounced(lambda _: self._show_cost()), names="value")
        for field in (*controls.settings.values(), controls.instant, controls.system):
            field.observe(debounced(lambda _: self._show_settings()), names="value")

    def _views(self, change: Any) -> None:
        """The cell was run again, or its output cleared: nobody waits for this answer any more."""
        if change["old"] and not change["new"]:
            self.stop()

    def _typed(self, change: Any) -> None:
        text = change["new"]
        if text.endswith(SEND):
            self.ask(text.removesuffix(SEND))
        else:
            self._session.change(lambda talk: replace(talk, draft=text))

    # From the conversation to the page --------------------------------------------------------

    def _show(self, talk: Conversation) -> None:
        """Called at every event; a widget whose value stays the same sends nothing."""
        controls, instant = self.controls, self.controls.instant.value
        controls.ended.value = view.conversation_html(talk)
        controls.live.value = view.exchange_html(talk.last, instant=instant) if talk.running else ""
        if not (talk.running and instant):
            cost = talk.last.figures if talk.exchanges else None
            controls.figures.value = view.figures_html(cost)
        controls.note.value = html.escape(talk.note)
        sent = controls.message.value.endswith(SEND)
        if sent or talk.draft != self._shown_draft:  # else the reader may be typing right now
            controls.message.value = self._shown_draft = talk.draft
        controls.spoken.value = html.escape(view.spoken(talk))
        controls.buttons["Stop"].disabled = not talk.running
        controls.leave_routes_open()

    def _show_settings(self) -> None:
        controls = self.controls
        try:
            drawn = view.settings_text(self.settings())
        except ValueError as error:
            drawn = f"✗ {error}"
        shown = "when finished" if controls.instant.value else "as it is written"
        system = self._tokens(controls.system.value)
        after = f"; after {system} of system message" if system else ""
        controls.choice.value = html.escape(f"Next answer: {drawn}; shown {shown}{after}.")

    def _show_cost(self) -> None:
        self.controls.cost.value = self._tokens(self.conversation.draft)

    def _tokens(self, text: str) -> str:
        """How many tokens a text has, in words; nothing for a blank one."""
        many = len(self.llm.tokenizer.encode(text.strip()))
        return f"{many:,} token{'s' * (many > 1)}" if many else ""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        static = view.static_html(self.conversation, self.llm.name)
        return bundle(self.controls.root, static, repr(self))

    def __repr__(self) -> str:
        return f"A chat with {self.llm.name}; run the notebook to use it."
