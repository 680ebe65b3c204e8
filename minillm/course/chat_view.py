"""How a conversation looks: HTML of its parts, all text escaped. Pure functions."""

from __future__ import annotations

import html
import re

from minillm.course.conversation import Conversation, Exchange, Figures
from minillm.sampling import SamplingParams

# Colours that stand out from a light and from a dark page; text keeps the theme's own colour.
_BOX = "background:rgba(128,128,128,.12);padding:.4em .8em;border-radius:.4em;margin:.3em 0"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere"
_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:^```[ \t]*$\n?|\Z)", re.DOTALL | re.MULTILINE)


def text_html(text: str) -> str:
    """Text as it stands, escaped; what stands between ``` fences in a box of its own.

    No other Markdown is read: what the model writes never becomes markup.
    """
    parts = []
    for place, part in enumerate(_FENCE.split(text)):  # text, code, text, code, …, text
        if place % 2:
            style = f"{_BOX};{_TEXT};font-family:monospace"
            parts.append(f'<pre style="{style}">{html.escape(part)}</pre>')
        elif part:
            parts.append(f'<div style="{_TEXT}">{html.escape(part)}</div>')
    return "".join(parts)


def exchange_html(exchange: Exchange, *, instant: bool = False) -> str:
    """A question with its answer, and why the answer ended where that is not plain.

    instant: while the answer is being written, only that is said.
    """
    writing = exchange.ending is None
    answer = "" if writing and instant else text_html(exchange.answer)
    if writing:
        answer += '<div style="opacity:.8">Writing …</div>'
    if remark := _remark(exchange):
        answer += f'<div style="opacity:.8"><em>{html.escape(remark)}</em></div>'
    return (
        f'<div style="{_BOX}"><strong>You</strong>{text_html(exchange.question)}</div>'
        f'<div style="padding:.2em .8em"><strong>Model</strong>{answer}</div>'
    )


def _remark(exchange: Exchange) -> str:
    if exchange.ending == "stopped":
        return "Stopped." if exchange.answer else "Stopped before the first word."
    if exchange.ending == "failed":
        return f"✗ {exchange.error}"
    if exchange.ending != "length":
        return ""
    full = exchange.figures is not None and exchange.figures.context_left == 0
    return "The context is full." if full else "Cut off at the most new tokens that are allowed."


def conversation_html(conversation: Conversation) -> str:
    """All exchanges that have ended, and a word of welcome where there are none."""
    ended = [exchange for exchange in conversation.exchanges if exchange.ending is not None]
    if not conversation.exchanges:
        return '<div style="opacity:.8;padding:.2em .8em">Type a message and press Enter.</div>'
    return "".join(map(exchange_html, ended))


def static_html(conversation: Conversation, name: str) -> str:
    """What is seen where no kernel runs. Without times: they differ from machine to machine."""
    said = "".join(map(exchange_html, conversation.exchanges))
    waiting = f"<p>A chat with {html.escape(name)}. Run the notebook to use it.</p>"
    return f'<div style="max-width:46em">{waiting}{said}</div>'


def figures_html(cost: Figures | None) -> str:
    """Latency and speed in one line, tokens of the answer and of the context in the next."""
    ttft = itl = speed = answer = context = "–"
    if cost is not None:
        ttft = seconds_text(cost.ttft_s)
        answer = f"{cost.output_tokens:,} tokens"
        left = "no limit" if cost.context_left is None else f"{cost.context_left:,} left"
        context = f"{cost.context_used:,} tokens used, {left}"
    if cost is not None and cost.tokens_per_s:
        median, last = seconds_text(cost.median_itl_s), seconds_text(cost.last_itl_s)
        itl, speed = f"{median} median, {last} last", f"{cost.tokens_per_s:.1f} tokens/s"
    times = (
        _figure("TTFT", ttft, "time to first token"),
        _figure("ITL", itl, "inter-token latency: the time from one token to the next"),
        _figure("Speed", speed, "after the first token"),
    )
    sizes = (_figure("Answer", answer), _figure("Context", context, "prompt and answer together"))
    style = "font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{" ".join(times)}<br>{" ".join(sizes)}</div>'


def _figure(name: str, value: str, meaning: str = "") -> str:
    style = "margin-right:1em;white-space:nowrap"
    return f'<span style="{style}" title="{meaning}">{name} <strong>{value}</strong></span>'


def seconds_text(seconds: float) -> str:
    """Seconds in the unit that a reader wants.

    >>> seconds_text(0.0213), seconds_text(1.42), seconds_text(0)
    ('21.3 ms', '1.42 s', '–')
    """
    if not seconds:
        return "–"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def settings_text(params: SamplingParams) -> str:
    """What the next answer will be drawn with."""
    if params.temperature == 0:
        drawn = "greedy, the most likely token each time"
    else:
        top_k = f"top-k {params.top_k}" if params.top_k > 0 else "top-k off"
        top_p = f"top-p {params.top_p:g}" if params.top_p < 1 else "top-p off"
        seed = "a fresh seed" if params.seed is None else f"seed {params.seed}"
        drawn = f"temperature {params.temperature:g}, {top_p}, {top_k}, {seed}"
    return f"{drawn}; at most {params.max_new_tokens:,} tokens"


def spoken(conversation: Conversation) -> str:
    """What a screen reader says: that the model writes, then the answer, never each piece."""
    if conversation.note:
        return conversation.note
    if conversation.running:
        return "The model is writing."
    if not conversation.exchanges:
        return ""
    last = conversation.last
    return " ".join(filter(None, ["Model:", last.answer, _remark(last)]))
