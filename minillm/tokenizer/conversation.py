"""A conversation as a chat template is given it, and what the template makes of it."""

import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from minillm.tokenizer.disguise import map_texts
from minillm.tokenizer.hf_parts import one_of, show

if TYPE_CHECKING:
    from minillm.tokenizer.sandbox import SandboxedTemplate

ROLES = ("system", "user", "assistant", "tool")
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one field
MAX_TRIED = 8
END = "⟦end of the last message⟧ "  # with a space, which shows whether the template cuts spaces

Conversation = Sequence[dict[str, Any]]


def checked(messages: object, words: Collection[Any]) -> list[dict[str, Any]]:
    """A copy of the messages without what is None; ValueError that names the one at fault.

    words: texts in the template. One that can be a name may be a role.
    """
    if not isinstance(messages, list | tuple) or not messages:
        needed = "a list of {'role': …, 'content': …} is needed"
        raise ValueError(f"messages is {show(messages)}; {needed}")
    return [_checked(message, f"messages[{i}]", words) for i, message in enumerate(messages)]


def _checked(message: object, where: str, words: Collection[Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not message.keys() >= {"role"}:
        needed = "a dict with 'role' and 'content' is needed"
        raise ValueError(f"{where} is {show(message)}; {needed}")
    role, content, calls = (message.get(key) for key in ("role", "content", "tool_calls"))
    if not (isinstance(role, str) and role.isidentifier() and role in words):
        one_of(role, f"{where}['role']", *ROLES)
    if calls is not None and not isinstance(calls, list | tuple):
        raise ValueError(f"{where}['tool_calls'] is {show(calls)}; a list is needed")
    if isinstance(content, list | tuple) and content:
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text" or not isinstance(part.get("text"), str):
                needed = "{'type': 'text', 'text': …} is needed"
                raise ValueError(f"{where}['content'][{i}] is {show(part)}; {needed}")
    elif not isinstance(content, str) and not (content is None and calls):
        needed = "text, a list of parts, or None beside tool calls is needed"
        raise ValueError(f"{where}['content'] is {show(content)}; {needed}")
    copy = {key: value for key, value in message.items() if value is not None}
    if (thought := next((copy[key] for key in REASONING if key in copy), None)) is not None:
        copy = {"thinking": thought} | copy | {"reasoning_content": thought}
    try:
        return dict(map_texts(copy, str))
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content."""
    content = message.get("content", "")
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def flattened(message: dict[str, Any]) -> dict[str, Any]:
    """The message with one text in place of a list of parts."""
    if "content" not in message:
        return message
    return message | {"content": "\n".join(texts_of(message))}


def append(message: dict[str, Any], text: str) -> dict[str, Any]:
    """The message with more text at its end."""
    content = message.get("content", "")
    if isinstance(content, str):
        return message | {"content": content + text}
    last = content[-1] | {"text": content[-1]["text"] + text}
    return message | {"content": [*content[:-1], last]}


def check_dropped(
    messages: Conversation,
    text: str,
    words: Collection[Any],
    render: Callable[[Conversation], str],
) -> None:
    """Raise or warn where the template left a message out.

    ValueError where the template does not name the role: many say nothing then. A warning where it
    does, and still left the message out, as Mistral's do with the system message when the last
    message is not the user's.

    Suspect is a message whose text does not occur in what was rendered, in its turn and as it is
    or as JSON, or stands in such a text. It was left out if other text in it would have made no
    difference, which is tried for so many (`MAX_TRIED`). The assistant's messages are not looked
    at: templates cut what it thought, and some the text beside its tool calls.
    """
    end = 0
    found: list[tuple[int, str]] = []
    lost: list[tuple[int, str]] = []
    asked = [(i, message) for i, message in enumerate(messages) if message["role"] != "assistant"]
    parts = [(i, part.strip()) for i, message in asked for part in texts_of(message)]
    for i, part in parts:
        if not part:
            continue
        spellings = (part, json.dumps(part, ensure_ascii=False)[1:-1])
        ends = [at + len(spelt) for spelt in spellings if (at := text.find(spelt, end)) >= 0]
        end = min(ends, default=end)
        (found if ends else lost).append((i, part))
    suspects = lost + [(i, part) for i, part in found if any(part in whole for _, whole in lost)]
    for i in list(dict.fromkeys(i for i, _ in suspects))[:MAX_TRIED]:
        try:
            other = render([*messages[:i], append(messages[i], " (more)"), *messages[i + 1 :]])
        except ValueError:
            continue
        if other == text:
            problem = f"messages[{i}] is {show(messages[i])}; the chat template leaves it out"
            if messages[i]["role"] not in words:
                raise ValueError(problem)
            warnings.warn(problem, stacklevel=4)


class Rendering:
    """One conversation, and the template that it is given to."""

    def __init__(
        self,
        template: "SandboxedTemplate",
        values: dict[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
        now: datetime | None,
    ) -> None:
        self.template, self.values, self.to_continue = template, values, continue_final_message
        values["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        self.now = now or datetime.now()
        self.end = template.deadline(len(values["messages"]))

    def run(self, check: bool = True) -> str:
        """The text; `check` that no message is left out."""
        messages = self.values["messages"]
        if self.to_continue:
            messages = [*messages[:-1], append(messages[-1], END)]
        text = self._render(messages)
        if check:
            check_dropped(messages, text, self.template.words, self._render)
        return _cut(text) if self.to_continue else text

    def takes_parts(self) -> bool:
        """Whether the template makes the same of a text and of a list with that text."""
        contents = ("a", [{"type": "text", "text": "a"}])
        try:
            text, same = (self._render([{"role": "user", "content": c}]) for c in contents)
        except ValueError:
            return False
        return text == same

    def _render(self, messages: Conversation) -> str:
        values = self.values | {"messages": messages}
        try:
            return self.template.render(values, self.now, self.end)
        except Exception as error:  # the template is foreign code, it may fail in any way
            text = f"{type(error).__name__}: {error}"
            raise ValueError(f"chat template: {text[:1000]}") from error


def _cut(text: str) -> str:
    """The text up to the end of the last message."""
    at = text.rfind(END.strip())
    if at < 0:
        raise ValueError("the chat template does not show the end of the last message")
    return text[:at] if text.startswith(END, at) else text[:at].rstrip()
