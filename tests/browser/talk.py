"""One chat of an open notebook, as a reader uses it."""

from __future__ import annotations

from typing import Any

from tests.browser.page import Page

ANSWER_SECONDS = 180.0  # on a busy machine; it takes a few

# Notes every state of an element's text, as the page goes through them.
RECORD = """
const [chat, name] = arguments;
const part = chat.querySelector(`.minillm-chat-${name}`);
window.seen = [];
const note = () => {
  const text = part.innerText;
  if (text !== window.seen.at(-1)) window.seen.push(text);
};
window.recorder?.disconnect();
window.recorder = new MutationObserver(note);
window.recorder.observe(part, {childList: true, subtree: true, characterData: true});
note();"""


class Talk:
    """The n-th chat of a page, as a reader uses it."""

    def __init__(self, page: Page, number: int = 0) -> None:
        self.page, self.number = page, number

    def root(self) -> Any:
        return self.page.elements(".minillm-chat")[self.number]

    def part(self, name: str, inside: str = "") -> Any:
        """One element of the chat."""
        selector = f".minillm-chat-{name} {inside}"
        return self.page.script(
            "return arguments[0].querySelector(arguments[1])", self.root(), selector
        )

    def text(self, name: str) -> str:
        return str(self.page.script("return arguments[0].innerText", self.part(name)))

    def type(self, text: str) -> None:
        box = self.part("message", "textarea")
        self.page.script("arguments[0].focus()", box)
        box.send_keys(text)

    def send(self, text: str) -> None:
        from selenium.webdriver.common.keys import Keys

        before = self.text("log")
        self.type(text + Keys.ENTER)
        self.page.until(lambda: self.text("log") != before or self.text("note"), "nothing happens")

    def fill(self, label: str, text: str) -> None:
        """Types into the field with this label."""
        field = self.page.script(
            "const label = [...arguments[0].querySelectorAll('label')]"
            ".find(label => label.innerText.trim() === arguments[1]);"
            "return document.getElementById(label.htmlFor)",
            self.root(),
            label,
        )
        field.send_keys(text)

    def press(self, label: str) -> None:
        self.page.script(
            "[...arguments[0].querySelectorAll('button')]"
            ".find(button => button.innerText.trim() === arguments[1]).click()",
            self.root(),
            label,
        )

    def record(self, name: str) -> None:
        self.page.script(RECORD, self.root(), name)

    def recorded(self) -> list[str]:
        found: list[str] = self.page.script("return window.seen")
        return found

    def wait_for_words(self, count: int) -> None:
        """Waits until an answer that is being written has so many words."""
        self.page.until(
            lambda: len(self.text("live").split("Model")[-1].split()) >= count,
            f"no {count} words",
            ANSWER_SECONDS,
        )

    def wait_for_end(self) -> None:
        self.page.until(lambda: self.text("live") == "", "the answer did not end", ANSWER_SECONDS)
