"""A conversation as a value: what was asked and answered, and what each event makes of it.

Everything here is pure. `minillm.course.chat_session` lets a model write into a conversation,
`minillm.course.chat_view` shows one.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from minillm.streaming import GenerationStats

# Why an answer ended. "stop" and "length" are the model's own, see `GenerationOutput`; "stopped":
# by the reader; "failed": by an error. While it is being written there is none yet.
Ending = Literal["stop", "length", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Figures:
    """What an answer has cost so far, on the machine that writes it. Times are in seconds.

    ttft_s: time to first token. median_itl_s, last_itl_s: inter-token latency, 0 before the second
    token. tokens_per_s: after the first token. context_used: tokens of prompt and answer together.
    context_left: how many more the context holds; None where windows make it unlimited.
    """

    ttft_s: float
    median_itl_s: float
    last_itl_s: float
    tokens_per_s: float
    output_tokens: int
    context_used: int
    context_left: int | None


def figures(stats: GenerationStats, context: int | None) -> Figures:
    """The figures of one answer, which may still be growing. context: tokens, None: unlimited."""
    gaps = list(stats.itl_s)  # the thread that writes the answer may append to it meanwhile
    used = stats.prompt_tokens + stats.output_tokens
    return Figures(
        ttft_s=stats.ttft_s,
        median_itl_s=statistics.median(gaps) if gaps else 0.0,
        last_itl_s=gaps[-1] if gaps else 0.0,
        tokens_per_s=len(gaps) / sum(gaps) if sum(gaps) else 0.0,
        output_tokens=stats.output_tokens,
        context_used=used,
        context_left=None if context is None else max(context - used, 0),
    )


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question with its answer. ending is None while the answer is being written."""

    question: str
    answer: str = ""
    ending: Ending | None = None
    error: str = ""
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Exchanges, oldest first; at most the last one is being written.

    draft: what stands in the reader's text box. note: one sentence for the reader, or nothing.
    """

    exchanges: tuple[Exchange, ...] = ()
    draft: str = ""
    note: str = ""

    @property
    def running(self) -> bool:
        """Whether an answer is being written."""
        return bool(self.exchanges) and self.exchanges[-1].ending is None

    @property
    def last(self) -> Exchange:
        """The newest exchange."""
        return self.exchanges[-1]


BUSY = "An answer is still being written: stop it first (Esc), or wait until it ends."
TRY_AGAIN = "“Send” tries again; “New conversation” keeps your message and forgets the rest."


def ask(conversation: Conversation, text: str) -> Conversation:
    """The reader sends a message: an exchange begins. Refused while another one is written."""
    if conversation.running:
        return replace(conversation, draft=text, note=BUSY)
    if not text.strip():
        return replace(conversation, draft=text, note="Type a message first.")
    exchanges = (*conversation.exchanges, Exchange(text.strip()))
    return Conversation(exchanges)


def retry(conversation: Conversation) -> Conversation:
    """The last question again, its answer dropped."""
    if conversation.running:
        return replace(conversation, note=BUSY)
    if not conversation.exchanges:
        return replace(conversation, note="There is no question yet to ask again.")
    *before, last = conversation.exchanges
    return replace(conversation, exchanges=(*before, Exchange(last.question)), note="")


def write(conversation: Conversation, answer: str, cost: Figures) -> Conversation:
    """The answer has grown to this text, at this cost."""
    return _with_last(conversation, answer=answer, figures=cost)


def end(conversation: Conversation, ending: Ending) -> Conversation:
    """The answer ends with what has come so far. Without a running answer nothing changes."""
    return _with_last(conversation, ending=ending) if conversation.running else conversation


def fail(conversation: Conversation, error: str) -> Conversation:
    """An error ends the answer. What came stays; a question without any answer becomes a draft."""
    if conversation.last.answer:
        return _with_last(conversation, ending="failed", error=error)
    *before, last = conversation.exchanges
    draft = "\n".join(filter(None, [last.question, conversation.draft]))
    note = f"✗ {error}. {TRY_AGAIN}" if before else f"✗ {error}."
    return Conversation(tuple(before), draft, note)


def fresh(conversation: Conversation) -> Conversation:
    """A new conversation. What stands in the text box is not part of the old one."""
    return Conversation(draft=conversation.draft)


def messages(conversation: Conversation, system: str = "") -> list[dict[str, str]]:
    """What the chat template gets. system: a first message that sets the tone; none if blank.

    An exchange that was stopped before its first word is left out.
    """
    listed = [("system", system.strip())] if system.strip() else []
    for exchange in conversation.exchanges:
        if exchange.answer and exchange.ending is not None:
            listed += [("user", exchange.question), ("assistant", exchange.answer)]
        elif exchange.ending is None:
            listed.append(("user", exchange.question))
    return [{"role": role, "content": content} for role, content in listed]


def _with_last(conversation: Conversation, **changes: object) -> Conversation:
    *before, last = conversation.exchanges
    return replace(conversation, exchanges=(*before, replace(last, **changes)))  # type: ignore[arg-type]
