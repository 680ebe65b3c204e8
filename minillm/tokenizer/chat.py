"""Chat templates: a conversation as the text, and the ids, that a model was trained on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from minillm.config import read_json
from minillm.tokenizer.bpe import Tokenizer
from minillm.tokenizer.checks import check_text
from minillm.tokenizer.hf_parts import one_of, show

ROLES = ("system", "user", "assistant", "tool")

Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A model's own Jinja template, run in a sandbox.

    source: the template; ValueError where it does not parse.
    special_tokens: text of the `bos_token`, `eos_token` and so on that the template may write.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        self.source, self.special_tokens = source, dict(special_tokens or {})
        self._template = _compile(source)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a model folder, in chat_template.jinja or tokenizer_config.json."""
        path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config = read_json(path) if path.exists() else {}
        source = config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = (item for item in source if isinstance(item, dict))
            source = next((t.get("template") for t in named if t.get("name") == "default"), None)
        special = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                special[name] = text
        try:
            if jinja.exists():
                path, source = jinja, jinja.read_text(encoding="utf-8")
            return None if source is None else cls(source, special)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def render(
        self, messages: Messages, *, add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The conversation as text.

        messages: [{"role": "user", "content": "…"}, …].
        add_generation_prompt: end where the model's answer begins.
        variables: what else the template may ask for, such as `enable_thinking=False`.
        Raises: ValueError that names the message at fault, or says what the template objects to.
        """
        _check(messages)
        values = {"tools": None, "documents": None, **self.special_tokens, **variables}
        values |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            self._template.environment.passes = 0  # of loops, which are limited
            return str(self._template.render(values))
        except Exception as error:  # the template is foreign code, it may fail in any way
            raise ValueError(f"chat template: {type(error).__name__}: {error}") from error

    def encode(
        self, tokenizer: Tokenizer, messages: Messages, *, add_generation_prompt: bool = True
    ) -> list[int]:
        """The conversation as token ids.

        Only what the template itself writes becomes special tokens; a message that spells one is
        ordinary text. Nothing is added around the whole: a BOS comes from the template, once, or
        not at all. For other messages the ids are those of the rendered text.
        """
        _check(messages)
        hide, reveal = _disguise(tokenizer.special_tokens, self.source, messages)
        hidden = [_map_texts(message, hide) | {"role": message["role"]} for message in messages]
        text = self.render(hidden, add_generation_prompt=add_generation_prompt)
        ids: list[int] = []
        for part, token_id in tokenizer.added.split(text, "all"):
            if token_id is None:
                ids += tokenizer.encode(reveal(part), add_special_tokens=False)
            else:
                ids.append(token_id)
        return ids


def _compile(source: str) -> Any:
    from jinja2 import TemplateSyntaxError

    from minillm.tokenizer.sandbox import Sandbox

    try:
        check_text(source)
        return Sandbox().compile_template(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"the chat template is {show(source)}, not valid: {error}") from error


def _check(messages: object) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        needed = "a list of {'role': …, 'content': …} is needed"
        raise ValueError(f"messages is {show(messages)}; {needed}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not message.keys() >= {"role", "content"}:
            needed = "a dict with 'role' and 'content' is needed"
            raise ValueError(f"messages[{i}] is {show(message)}; {needed}")
        one_of(message["role"], f"messages[{i}]['role']", *ROLES)
        if not isinstance(content := message["content"], str):
            raise ValueError(f"messages[{i}]['content'] is {show(content)}; a str is needed")


def _map_texts(value: Any, change: Callable[[str], Any]) -> Any:
    """The value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_texts(k, change): _map_texts(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value


def _disguise(
    special_tokens: Iterable[str], template: str, messages: Messages
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """A function that makes special tokens in a text unrecognizable, and one that undoes it.

    It swaps their first character for a private one that occurs nowhere else. The text keeps its
    length and its ends, so what a template does with it (`trim`, a slice) comes to the same.
    """
    tokens = tuple(special_tokens)
    longest = max(map(len, tokens), default=0)
    taken = set(template)
    _map_texts(messages, taken.update)
    free = (char for char in map(chr, range(0xF0000, 0x10FFFE)) if char not in taken)
    first = sorted({token[0] for token in tokens})
    swap = dict(zip(first, islice(free, len(first)), strict=True))
    swap_back = {ord(char): original for original, char in swap.items()}

    def hide(text: str) -> str:
        chars = list(text)
        for i, char in enumerate(text):
            if char in swap:
                # A token, or the beginning of one that goes on in what the template writes next.
                rest = text[i : i + longest].rstrip()
                begun = len(rest) < longest and any(token.startswith(rest) for token in tokens)
                if begun or rest.startswith(tokens):
                    chars[i] = swap[char]
        return "".join(chars)

    return hide, lambda text: text.translate(swap_back)
