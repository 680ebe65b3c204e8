"""`minillm.course.chat()` in JupyterLab: text arrives in pieces, and stop stops."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from minillm.course.tool import notebook as nb
from tests.browser import audit, drive
from tests.browser.page import Page
from tests.browser.talk import Talk

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NAME = "96_chat.ipynb"
IMPORTS = """
from minillm import LLM, SamplingParams
from minillm.course import chat

llm = LLM.from_pretrained("smollm2")
params = SamplingParams(600, temperature=0)"""
CELLS = [
    nbformat.v4.new_markdown_cell("# Chat"),
    nbformat.v4.new_code_cell(IMPORTS.strip()),
    nbformat.v4.new_code_cell("chat(llm, params=params)"),
    nbformat.v4.new_code_cell("chat(llm, params=params)"),
]
# Busy until the test says so.
WAITING = """
import time
from pathlib import Path

while not Path("go").exists():
    time.sleep(0.05)
"waited"
"""
STORY = "Write a long story about the sea."
SHORT = "What is the capital of France?"


def opened(driver: Any, server: Any, cells: list[Any]) -> Page:
    path: Path = server.root / "notebooks" / NAME
    (path.parent / "go").unlink(missing_ok=True)
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": nb.KERNEL})
    path.write_text(json.dumps(notebook))
    return Page(driver, server, NAME)


@pytest.fixture(scope="module")
def page(driver, server, smollm2) -> Iterator[Page]:
    shown = opened(driver, server, CELLS)
    shown.run_all()
    yield shown
    driver.get("about:blank")
    server.end_kernels()


@pytest.fixture
def talk(page: Page) -> Iterator[Talk]:
    made = Talk(page)
    yield made
    made.press("New conversation")
    page.until(lambda: "Type a message" in made.text("log"), "no new conversation")


def test_text_arrives_in_pieces_and_escape_stops_it(talk, page, record_property):
    from selenium.webdriver.common.keys import Keys

    talk.record("live")
    talk.send(STORY)
    talk.wait_for_words(12)
    talk.part("message", "textarea").send_keys(Keys.ESCAPE)
    pressed = time.monotonic()
    talk.wait_for_end()
    record_property("figure", f"chat: {time.monotonic() - pressed:.2f} s from Esc to the stop")
    answers = [
        text.split("Model\n")[1].split("Writing")[0].strip() for text in talk.recorded()[1:-1]
    ]
    assert len(answers) >= 8
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(answers))
    ended = talk.text("log")
    assert answers[-1] in ended
    assert ended.endswith("Stopped.")
    time.sleep(1)  # nothing comes after it
    assert talk.text("log") == ended
    assert talk.part("message", "textarea").get_attribute("value") == ""


def test_figures_move_while_it_writes(talk):
    talk.record("figures")
    talk.send(STORY)
    talk.wait_for_words(12)
    talk.press("Stop")
    talk.wait_for_end()
    assert len({text.split("Answer")[1] for text in talk.recorded()}) >= 5
    shown = talk.text("figures")
    assert all(f"{name} –" not in shown for name in ("TTFT", "ITL", "Speed", "Answer", "Context"))


def test_history_retry_and_a_new_conversation(talk, page):
    talk.send(SHORT)
    talk.wait_for_end()
    assert talk.text("log").count("Paris") == 1
    talk.press("Retry")
    page.until(lambda: "Writing" in talk.text("live"), "no retry")
    talk.wait_for_end()
    assert talk.text("log").count("Paris") == 1
    talk.send("And of Germany?")
    talk.wait_for_end()
    assert "Berlin" in talk.text("log")
    talk.press("New conversation")
    page.until(lambda: "Paris" not in talk.text("log"), "still there")


def test_a_second_message_is_refused_to_the_eye(talk, page):
    talk.send(STORY)
    talk.wait_for_words(2)
    talk.type("And a mountain")
    time.sleep(1)  # the kernel has heard every key, as a reader's does
    talk.send("")
    page.until(lambda: "stop it first" in talk.text("note"), "no note")
    assert talk.part("message", "textarea").get_attribute("value") == "And a mountain"
    assert "And a mountain" not in talk.text("log")
    talk.press("Stop")
    talk.wait_for_end()
    talk.press("Send")  # what was refused is still there to be sent
    page.until(lambda: "And a mountain" in talk.text("log"), "not sent")
    talk.press("Stop")


def test_shift_enter_is_a_new_line(talk, page):
    from selenium.webdriver.common.keys import Keys

    talk.type("one" + Keys.SHIFT + Keys.ENTER + Keys.NULL + "two")
    assert talk.part("message", "textarea").get_attribute("value") == "one\ntwo"
    assert "one" not in talk.text("log")
    page.until(lambda: "3 tokens" in page.text(), "tokens of the message are not counted")
    talk.part("message", "textarea").send_keys(Keys.CONTROL + "a" + Keys.NULL + Keys.BACKSPACE)


def test_text_is_never_markup(talk, page):
    talk.send("<img src=x onerror='window.taken = 1'> <b>bold</b>")
    talk.wait_for_words(1)
    talk.press("Stop")
    talk.wait_for_end()
    assert "<b>bold</b>" in talk.text("log")
    assert page.count(".minillm-chat-log img, .minillm-chat-log b") == 0
    assert page.script("return window.taken ?? null") is None


def test_chats_do_not_disturb_each_other(talk, page):
    other = Talk(page, 1)
    before = other.text("log")
    talk.send(STORY)
    other.type("a draft")
    talk.wait_for_words(5)
    assert other.text("log") == before
    other.send("")
    other.wait_for_words(2)
    talk.press("Stop")
    talk.wait_for_end()
    words = len(other.text("live").split())
    other.wait_for_words(words + 1)
    other.press("New conversation")


def test_it_is_accessible(talk, page, shots):
    talk.send(SHORT)
    talk.wait_for_end()
    assert talk.part("log").get_attribute("role") == "log"
    assert talk.part("log").get_attribute("aria-live") == "off"
    spoken = talk.part("spoken", "[role=status]")
    assert "Paris" in page.script("return arguments[0].innerText", spoken)
    assert audit.labels(page) == []
    assert audit.outputs(page, page.saved()) == []
    for theme in ("Dark", "Light"):
        page.theme(theme)
        page.pictures(shots, f"chat_{theme.lower()}")
        assert audit.contrast(page) == []


def test_every_control_shows_what_it_did(talk, page):
    found = [control for control in drive.controls(page) if control.cell == 3]
    assert {control.kind for control in found} >= {"number", "text", "text area", "tick box"}
    dead = [c for c in found if c.kind != "button" and not drive.moved(page, c)]
    assert [f"{c.kind} {c.element.get_attribute('outerHTML')}" for c in dead] == []


def test_it_is_heard_while_a_cell_runs(driver, server, page):
    """ipykernel 7 has a thread for widgets; the last cell runs until the test lets it end."""
    driver.get("about:blank")
    server.end_kernels()
    busy = opened(driver, server, [*CELLS[:3], nbformat.v4.new_code_cell(WAITING.strip())])
    busy.menu("Run", "Run All Cells")
    busy.until(lambda: busy.count(".minillm-chat-message textarea"), "no chat", 120)
    talk = Talk(busy)
    try:
        talk.send(STORY)
        talk.wait_for_words(5)
        talk.press("Stop")
        talk.wait_for_end()
        talk.send(STORY)  # and again, after the kernel has written to every part
        talk.wait_for_words(5)
        talk.press("Stop")
        talk.wait_for_end()
        assert talk.text("log").count("Stopped.") == 2
        assert busy.progress()["queued"] == 1
    finally:
        (server.root / "notebooks" / "go").touch()
    busy.until(lambda: "'waited'" in busy.text(), "the cell did not end")


def test_running_the_cell_again_makes_a_fresh_chat_and_ends_the_old_answer(driver, server, page):
    from selenium.webdriver.common.keys import Keys

    driver.get("about:blank")
    server.end_kernels()
    threads = "import threading\n\nsorted(thread.name for thread in threading.enumerate())"
    again = opened(driver, server, [*CELLS[:3], nbformat.v4.new_code_cell(threads)])
    again.run_all()
    Talk(again).send(STORY)
    Talk(again).wait_for_words(3)
    editors = again.elements(".jp-CodeCell .cm-content")
    editors[1].click()
    editors[1].send_keys(Keys.CONTROL + Keys.ENTER)
    again.until(lambda: "Type a message" in again.text(), "no fresh chat")
    editors[2].click()
    editors[2].send_keys(Keys.CONTROL + Keys.ENTER)
    again.until(
        lambda: "MainThread" in again.text() and "'chat'" not in again.text(), "the thread goes on"
    )


def test_reduced_motion_shows_answers_when_they_are_finished(driver, server, page):
    driver.get("about:blank")
    server.end_kernels()
    features = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        still = opened(driver, server, CELLS[:3])
        still.run_all()
        talk = Talk(still)
        assert still.script("return arguments[0].checked", talk.part("instant", "input"))
        talk.record("live")
        talk.send("Write one sentence about the sea.")
        still.until(lambda: talk.text("live"), "no answer begins")
        talk.wait_for_end()
        seen = talk.recorded()
        assert len(seen) == 3  # nothing, "Writing", nothing
        assert "sea" in talk.text("log").split("Model")[1]
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
