"""`chat`: the conversation's states, its HTML, the writing thread, and the widget over them."""

import html
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from minillm.course import chat, chat_session, chat_view, chat_widget, conversation, widgets
from minillm.course.chat_controls import chosen, page_html
from minillm.course.chat_session import Session
from minillm.course.chat_widget import SEND, Chat
from minillm.course.conversation import Conversation, Exchange, Figures
from minillm.sampling import SamplingParams
from minillm.streaming import GenerationOutput, GenerationStats, TextStream

PARAMS = SamplingParams()


class Scripted:
    """A model that says what the test hands it, piece by piece: a text, an error, or None (end)."""

    name = "scripted"

    def __init__(self, context: int | None = 100) -> None:
        self.config = SimpleNamespace(context=context)
        self.tokenizer = SimpleNamespace(encode=str.split)
        self.says: queue.Queue[str | Exception | None] = queue.Queue()
        self.asked: list[tuple[list[dict[str, str]], SamplingParams]] = []
        self.closed = threading.Event()

    def chat_ids(self, messages):
        return [0] * len(messages)

    def stream_chat(self, messages, params):
        self.asked.append((messages, params))
        stats = GenerationStats(prompt_tokens=10)
        output = GenerationOutput("", [], None, stats)

        def pieces():
            try:
                while (said := self.says.get()) is not None:
                    if isinstance(said, Exception):
                        raise said
                    if stats.output_tokens:
                        stats.itl_s.append(0.02 * stats.output_tokens)
                    else:
                        stats.ttft_s = 0.5
                    stats.output_tokens += 1
                    output.text += said
                    yield said
                output.finish_reason = "stop"
            finally:
                self.closed.set()

        return TextStream(output, pieces())

    def say(self, *pieces: str | Exception | None) -> None:
        for piece in pieces:
            self.says.put(piece)


def until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def written(session: Session) -> str:
    """What the thread has written, shown or not."""
    run = session._run
    return run.stream.output.text if run is not None and run.stream is not None else ""


def a_conversation(*pairs: tuple[str, str]) -> Conversation:
    return Conversation(tuple(Exchange(q, a, "stop") for q, a in pairs))


# The conversation ---------------------------------------------------------------------------------


def test_a_question_begins_an_exchange_and_empties_the_box():
    talk = conversation.ask(Conversation(draft="Hi"), " Hi\n")
    assert talk == Conversation((Exchange("Hi"),))
    assert talk.running
    assert not conversation.end(talk, "stop").running


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_blank_message_is_not_sent(text):
    talk = conversation.ask(a_conversation(("a", "b")), text)
    assert len(talk.exchanges) == 1
    assert talk.note == "Type a message first."


def test_a_second_message_is_refused_and_kept_while_one_is_answered():
    running = conversation.ask(Conversation(), "one")
    talk = conversation.ask(running, "two")
    assert (talk.exchanges, talk.draft) == (running.exchanges, "two")
    assert "stop it first" in talk.note
    assert conversation.retry(running).exchanges == running.exchanges


def test_retry_asks_the_last_question_again():
    talk = conversation.retry(a_conversation(("a", "b"), ("c", "d")))
    assert talk.exchanges == (Exchange("a", "b", "stop"), Exchange("c"))
    assert "no question" in conversation.retry(Conversation()).note


def test_what_came_before_a_stop_or_an_error_is_kept():
    running = conversation.ask(a_conversation(("a", "b")), "c")
    written = conversation.write(running, "half", COST)
    assert conversation.end(written, "stopped").last == Exchange("c", "half", "stopped", "", COST)
    failed = conversation.fail(written, "the logits are NaN")
    assert failed.last == Exchange("c", "half", "failed", "the logits are NaN", COST)
    assert len(failed.exchanges) == 2


def test_a_question_that_got_no_answer_goes_back_to_the_box():
    running = conversation.ask(a_conversation(("a", "b")), "a long one")
    talk = conversation.fail(running, "the prompt has 9 tokens; the context holds 8")
    assert (talk.exchanges, talk.draft) == (a_conversation(("a", "b")).exchanges, "a long one")
    assert "the context holds 8. " in talk.note
    assert "New conversation" in talk.note
    typed_on = conversation.fail(replace(running, draft="next"), "no")
    assert typed_on.draft == "a long one\nnext"
    assert "New conversation" not in conversation.fail(Conversation((Exchange("q"),)), "no").note


def test_a_new_conversation_keeps_what_stands_in_the_box():
    talk = conversation.fresh(replace(a_conversation(("a", "b")), draft="c", note="no"))
    assert talk == Conversation(draft="c")


def test_an_event_after_the_end_changes_nothing():
    assert conversation.end(Conversation(), "stopped") == Conversation()
    ended = a_conversation(("a", "b"))
    assert conversation.end(ended, "stopped") == ended


def test_the_model_gets_all_that_was_answered():
    talk = Conversation((
        Exchange("a", "b", "stop"),
        Exchange("never mind", "", "stopped"),
        Exchange("c", "d", "stopped"),
        Exchange("e"),
    ))  # fmt: skip
    assert [(m["role"], m["content"]) for m in conversation.messages(talk, " Be brief. ")] == [
        ("system", "Be brief."),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
        ("assistant", "d"),
        ("user", "e"),
    ]
    assert conversation.messages(talk, " ")[0]["role"] == "user"


def test_figures_of_an_answer():
    stats = GenerationStats(10, output_tokens=4, ttft_s=0.5, itl_s=[0.01, 0.04, 0.03])
    assert conversation.figures(stats, 20) == Figures(
        ttft_s=0.5,
        median_itl_s=0.03,
        last_itl_s=0.03,
        tokens_per_s=3 / 0.08,
        output_tokens=4,
        context_used=14,
        context_left=6,
    )
    first = conversation.figures(GenerationStats(10, output_tokens=1, ttft_s=0.5), None)
    assert (first.tokens_per_s, first.last_itl_s, first.context_left) == (0.0, 0.0, None)


COST = conversation.figures(GenerationStats(10, 3, 0.5, [0.02, 0.03]), 8192)

# How it looks -------------------------------------------------------------------------------------

NASTY = '<img src=x onerror="alert(1)"> & </div><script>x</script> \'"`'


@pytest.mark.parametrize("fenced", [False, True])
def test_no_text_becomes_markup(fenced):
    text = f"```html\n{NASTY}\n```" if fenced else NASTY
    talk = Conversation((Exchange(text, text, "failed", NASTY), Exchange(text, text)), note=NASTY)
    shown = (
        chat_view.conversation_html(talk)
        + chat_view.exchange_html(talk.last)
        + chat_view.static_html(talk, NASTY)
    )
    assert "<img" not in shown
    assert "<script" not in shown
    assert shown.count("<div") == shown.count("</div>")
    assert html.escape(NASTY) in shown


def test_only_fenced_code_is_set_apart():
    shown = chat_view.text_html("**Look:**\n```python\nprint('<')\n```\nDone.")
    assert re.findall(r">([^<>]+)<", shown) == [
        "**Look:**\n",
        "print(&#x27;&lt;&#x27;)\n",
        "Done.",
    ]
    assert shown.count("<pre") == 1
    assert chat_view.text_html("```\nunfinished").count("<pre") == 1
    assert "<pre" not in chat_view.text_html("a ``` b")


@pytest.mark.parametrize(
    ("exchange", "remark"),
    [
        (Exchange("q", "a", "stopped"), "Stopped."),
        (Exchange("q", "", "stopped"), "Stopped before the first word."),
        (Exchange("q", "a", "failed", "NaN"), "✗ NaN"),
        (Exchange("q", "a", "length", figures=COST), "Cut off"),
        (Exchange("q", "a", "length", figures=replace(COST, context_left=0)), "context is full"),
        (Exchange("q", "a"), "Writing …"),
    ],
)
def test_an_answer_says_why_it_ended(exchange, remark):
    assert remark in chat_view.exchange_html(exchange)
    assert "<em>" not in chat_view.exchange_html(replace(exchange, ending="stop"))


def test_the_instant_form_shows_nothing_of_a_growing_answer():
    assert "half" not in chat_view.exchange_html(Exchange("q", "half"), instant=True)
    assert "half" in chat_view.exchange_html(Exchange("q", "half", "stop"), instant=True)


def test_figures_are_written_with_their_units():
    shown = re.sub(r"<[^>]*>", " ", chat_view.figures_html(COST)).split()
    text = " ".join(shown)
    assert "TTFT 500 ms" in text
    assert "ITL 25 ms median, 30 ms last" in text
    assert "40.0 tokens/s" in text
    assert "13 tokens used, 8,179 left" in text
    assert "no limit" in chat_view.figures_html(replace(COST, context_left=None))
    assert not re.search(r"\d", re.sub(r"<[^>]*>", "", chat_view.figures_html(None)))
    first = conversation.figures(GenerationStats(10, output_tokens=1, ttft_s=0.5), 8192)
    assert "ITL <strong>–</strong>" in chat_view.figures_html(first)


def test_a_screen_reader_hears_the_answer_once():
    running = conversation.write(conversation.ask(Conversation(), "q"), "half", COST)
    assert chat_view.spoken(running) == "The model is writing."
    assert chat_view.spoken(conversation.end(running, "stopped")) == "Model: half Stopped."
    assert chat_view.spoken(conversation.ask(running, "more")) == conversation.BUSY


def test_settings_in_words():
    params = SamplingParams(256, temperature=0.7, top_p=0.9, top_k=40, seed=3)
    assert "temperature 0.7, top-p 0.9, top-k 40, seed 3" in chat_view.settings_text(params)
    assert "greedy" in chat_view.settings_text(SamplingParams())


def test_settings_of_fields():
    fields: dict[str, Any] = {"temperature": 0.5, "top_p": 0.8, "top_k": 7}
    fields |= {"max_new_tokens": 9}
    base = SamplingParams(min_p=0.1)
    assert chosen(base, **fields, seed=" ") == SamplingParams(9, 0.5, 7, 0.8, 0.1)
    assert chosen(base, **fields, seed=" 12 ").seed == 12
    with pytest.raises(ValueError, match="seed is 'x'"):
        chosen(base, **fields, seed="x")


# The thread ---------------------------------------------------------------------------------------


@pytest.fixture
def model():
    made = Scripted()
    yield made
    made.say(None)  # lets a thread that still waits come to its end
    until(lambda: not chat_session._running)


@pytest.fixture
def session(model, monkeypatch):
    monkeypatch.setattr(chat_session, "SHOW_SECONDS", 0.0)
    return Session(model, lambda talk: None)


def test_an_answer_arrives_in_pieces(session, model):
    seen = []
    session.show = lambda talk: seen.append((talk.last.answer, talk.running))
    session.ask("Hi", PARAMS, "Be brief.")
    for piece, whole in (("The", "The"), (" sea", "The sea")):
        model.say(piece)
        until(lambda whole=whole: session.conversation.last.answer == whole)
        assert session.conversation.running
    model.say(None)
    assert session.wait(20)
    assert list(dict.fromkeys(seen)) == [
        ("", True),
        ("The", True),
        ("The sea", True),
        ("The sea", False),
    ]
    assert session.conversation.last.ending == "stop"
    assert session.conversation.last.figures.output_tokens == 2
    assert model.asked == [
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], PARAMS)
    ]


def test_stop_keeps_what_came_and_the_thread_ends(session, model):
    session.ask("Hi", PARAMS)
    model.say("The")
    until(lambda: session.conversation.last.answer)
    session.stop()  # the thread waits for the next piece: it is in the middle of a step
    assert session.conversation.last.answer == "The"
    assert session.conversation.last.ending == "stopped"
    stopped = session.conversation
    model.say(" late")
    assert model.closed.wait(20)
    until(lambda: not chat_session._running)
    assert session.conversation == stopped


def test_a_stop_takes_pieces_that_were_not_shown_yet(model, monkeypatch):
    monkeypatch.setattr(chat_session, "SHOW_SECONDS", 1000.0)
    session = Session(model, lambda talk: None)
    session.ask("Hi", PARAMS)
    model.say("The", " sea")
    until(lambda: written(session) == "The sea")
    assert session.conversation.last.answer in ("", "The")
    session.stop()
    assert session.conversation.last.answer == "The sea"


def test_pieces_that_come_too_fast_are_shown_together(model, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)  # no time passes
    seen = []
    session = Session(model, lambda talk: seen.append(talk.last.answer))
    model.say(*"abcdefgh", None)
    session.ask("Hi", PARAMS)
    session.wait()
    assert sorted(set(seen), key=len) == ["", "a", "abcdefgh"]


def test_a_late_answer_does_not_reach_the_next_conversation(session, model):
    session.ask("one", PARAMS)
    model.say("old")
    until(lambda: session.conversation.last.answer == "old")
    session.fresh()
    assert session.conversation == Conversation()
    session.ask("two", PARAMS)
    model.say(" older", "new", None)
    assert session.wait(20)
    assert session.conversation.last.answer in ("new", " oldernew")  # whoever took the first piece
    assert [exchange.question for exchange in session.conversation.exchanges] == ["two"]


def test_errors_are_shown(session, model):
    model.say(ValueError("the logits are NaN"))
    session.ask("Hi", PARAMS)
    assert session.wait(20)
    assert session.conversation == Conversation((), "Hi", "✗ the logits are NaN.")
    model.say("half", RuntimeError("out of memory"))
    session.ask("Hi", PARAMS)
    assert session.wait(20)
    assert session.conversation.last.answer == "half"
    assert session.conversation.last.error == "RuntimeError: out of memory"
    model.say("whole", None)
    session.retry(PARAMS)
    assert session.wait(20)
    assert replace(session.conversation.last, figures=None) == Exchange("Hi", "whole", "stop")


@pytest.mark.parametrize("error", [ValueError(), NotImplementedError()])
def test_an_error_without_words_is_named(session, model, error):
    model.say(error)
    session.ask("Hi", PARAMS)
    assert session.wait(20)
    assert session.conversation.note == f"✗ {type(error).__name__}."


def test_an_interrupt_of_a_waiting_cell_stops_the_answer(session, model):
    """A signal, as the kernel gets it; Python raises KeyboardInterrupt in the main thread."""
    session.ask("Hi", PARAMS)
    model.say("The")
    until(lambda: session.conversation.last.answer)
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert session.conversation.last.answer == "The"
    assert session.conversation.last.ending == "stopped"


def test_a_failure_to_begin_is_an_error_like_others(session, model):
    def too_long(messages, params):
        raise ValueError("the prompt has 101 tokens; the context holds 100")

    model.stream_chat = too_long
    session.ask("Hi", PARAMS)
    assert session.wait(20)
    assert "101 tokens" in session.conversation.note
    assert session.conversation.draft == "Hi"


def test_two_sessions_take_turns(model, monkeypatch):
    inside = threading.Semaphore(1)
    original = model.stream_chat

    def one_at_a_time(messages, params):
        stream = original(messages, params)

        def pieces():
            while True:
                assert inside.acquire(blocking=False), "two steps at once"
                piece = next(stream, None)
                time.sleep(0.001)
                inside.release()
                if piece is None:
                    return
                yield piece

        return TextStream(stream.output, pieces())

    model.stream_chat = one_at_a_time
    sessions = [Session(model, lambda talk: None) for _ in range(2)]
    model.say(*["x"] * 40, None, None)
    for session in sessions:
        session.ask("Hi", PARAMS)
    assert all(session.wait(20) for session in sessions)
    assert [session.conversation.note for session in sessions] == ["", ""]
    assert sum(len(session.conversation.last.answer) for session in sessions) == 40


# The widget ---------------------------------------------------------------------------------------


@pytest.fixture
def talk(model, monkeypatch) -> Chat:
    monkeypatch.setattr(chat_session, "SHOW_SECONDS", 0.0)
    return Chat(model)


def type_and_send(talk: Chat, text: str) -> None:
    """What data/chat.js does on Enter."""
    talk.controls.message.value = text + SEND


def test_enter_sends_and_the_answer_is_shown(talk, model):
    controls = talk.controls
    assert controls.buttons["Stop"].disabled
    controls.message.value = "Hi"
    assert controls.cost.value == "1 token"
    type_and_send(talk, "Hi there")
    assert controls.message.value == ""
    assert not controls.buttons["Stop"].disabled
    model.say("The")
    until(lambda: "The" in controls.live.value)
    assert "TTFT" in controls.figures.value
    model.say(" sea", None)
    assert talk.wait(20)
    assert controls.live.value == ""
    assert "The sea" in controls.ended.value
    assert controls.spoken.value == "Model: The sea"
    assert controls.buttons["Stop"].disabled


def test_buttons_do_what_they_say(talk, model):
    buttons = talk.controls.buttons
    talk.controls.message.value = "Hi"
    buttons["Send"].click()
    model.say("The")
    until(lambda: talk.conversation.last.answer == "The")
    buttons["Stop"].click()
    assert "Stopped." in talk.controls.ended.value
    model.say("x")
    until(lambda: not chat_session._running)
    model.say("again", None)
    buttons["Retry"].click()
    assert talk.wait(20)
    assert [exchange.answer for exchange in talk.conversation.exchanges] == ["again"]
    buttons["New conversation"].click()
    assert talk.conversation == Conversation()


def test_a_second_message_stays_in_the_box_with_a_note(talk, model):
    type_and_send(talk, "one")
    type_and_send(talk, "two")
    assert talk.controls.message.value == "two"
    assert "stop it first" in talk.controls.note.value


def test_what_was_typed_key_by_key_and_refused_can_be_sent_later(talk, model):
    type_and_send(talk, "one")
    for typed in ("t", "tw", "two"):
        talk.controls.message.value = typed
    type_and_send(talk, "two")
    assert talk.controls.message.value == "two"  # or the next Enter would change nothing here
    model.say("The", None)
    assert talk.wait(20)
    type_and_send(talk, "two")
    assert [exchange.question for exchange in talk.conversation.exchanges] == ["one", "two"]


def test_an_answer_does_not_overwrite_what_is_typed(talk, model):
    type_and_send(talk, "one")
    talk.controls.message.value = "next"
    model.say("The")
    until(lambda: "The" in talk.controls.live.value)
    assert talk.controls.message.value == "next"


def test_settings_reach_the_model(talk, model):
    settings = talk.controls.settings
    settings["temperature"].value = 0.0
    settings["seed"].value = "5"
    talk.controls.system.value = "Be brief."
    assert "greedy" in talk.controls.choice.value
    assert "after 2 tokens of system message" in talk.controls.choice.value
    model.say(None)
    talk.ask("Hi")
    talk.wait(20)
    [(asked, params)] = model.asked
    assert asked[0] == {"role": "system", "content": "Be brief."}
    assert params == replace(chat_widget.PARAMS, temperature=0.0, seed=5)
    settings["seed"].value = "five"
    assert "seed is &#x27;five&#x27;" in talk.controls.choice.value
    type_and_send(talk, "Hi")
    assert talk.controls.message.value == "Hi"
    assert len(model.asked) == 1


def test_the_instant_form_stands_still(talk, model):
    talk.controls.instant.value = True
    talk.ask("Hi")
    before = talk.controls.live.value, talk.controls.figures.value
    model.say("The")
    until(lambda: talk.conversation.last.answer == "The")
    assert (talk.controls.live.value, talk.controls.figures.value) == before
    model.say(None)
    talk.wait(20)
    assert "The" in talk.controls.ended.value
    assert "500 ms" in talk.controls.figures.value


def test_the_stored_form_is_the_conversation_without_times(talk, model):
    model.say("The sea <b>", None)
    talk.ask("Hi")
    talk.wait(20)
    forms = talk._repr_mimebundle_()
    assert set(forms) == {"text/plain", "text/html", widgets.VIEW}
    assert forms["text/plain"] == "A chat with scripted; run the notebook to use it."
    assert "The sea &lt;b&gt;" in forms["text/html"]
    assert " ms" not in forms["text/html"]


def test_chats_do_not_share_what_they_hold(model):
    one, two = Chat(model), Chat(model)
    model.say("The", None)
    one.ask("Hi")
    one.wait(20)
    assert two.conversation == Conversation()
    assert one.controls.message is not two.controls.message


def test_a_model_without_a_template_is_refused(model):
    def none(messages):
        raise ValueError("scripted has no chat template; use generate or stream")

    model.chat_ids = none
    with pytest.raises(ValueError, match="no chat template"):
        Chat(model)


def test_the_page_gets_its_script_in_one_attribute():
    page = page_html()
    parts = re.fullmatch(r'<style onload="([^"]*)">(.*)</style>', page, re.DOTALL)
    assert parts is not None
    script, style = parts.groups()
    assert "MutationObserver" in html.unescape(script)
    assert "\\u0004" in script  # the same character as SEND
    assert SEND == "\u0004"
    assert ".minillm-chat-log" in style


def test_outside_of_a_notebook_it_names_the_command(monkeypatch):
    with pytest.raises(RuntimeError, match="minillm chat"):
        chat()
    monkeypatch.setattr(chat_widget, "_in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    scripted: Any = Scripted()
    with pytest.raises(ImportError, match=r"pip install ipywidgets.*minillm chat"):
        chat(scripted)


LEAVES_WHILE_WRITING = """
from minillm import LLM
from minillm.course.chat_session import Session
from minillm.sampling import SamplingParams

session = Session(LLM.from_pretrained("smollm2"), lambda talk: None)
session.ask("Write a long story.", SamplingParams(2000))
while not session.conversation.last.answer:
    pass
print("leaving")
"""


@pytest.mark.slow
def test_the_process_ends_while_an_answer_is_written(smollm2):
    command = [sys.executable, "-c", LEAVES_WHILE_WRITING]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "leaving\n", "")


def test_the_real_model_answers(llm):
    talk = Chat(llm, params=SamplingParams(12))
    talk.ask("What is the capital of France?")
    assert talk.wait(60)
    assert talk.conversation.last.answer == "The capital of France is Paris."
    assert talk.conversation.last.ending == "stop"
    with pytest.raises(ValueError, match="holds 8192"):
        llm.generate([1] * 8193)
    talk.ask("word " * 9000)
    assert talk.wait(60)
    assert "the context holds 8192" in talk.conversation.note
    assert talk.controls.message.value == ("word " * 9000).strip()
    assert len(talk.conversation.exchanges) == 1
