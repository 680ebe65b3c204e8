"""Chat templates: a conversation as the text, and the ids, that a model was trained on."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.config import read_json
from minillm.tokenizer.checks import check_text
from minillm.tokenizer.conversation import Rendering, checked, flattened
from minillm.tokenizer.disguise import disguise, map_texts
from minillm.tokenizer.hf_parts import field, show
from minillm.tokenizer.sentencepiece import AnyTokenizer

if TYPE_CHECKING:
    from minillm.tokenizer.sandbox import SandboxedTemplate

Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A model's own Jinja template, run in a sandbox.

    source: the template; or several by name, of which "tool_use" serves conversations with tools
        and "default" all others. ValueError where one does not parse.
    special_tokens: text of the `bos_token`, `eos_token` and so on that the template may write.
    """

    def __init__(
        self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None
    ) -> None:
        self.sources = dict(source) if isinstance(source, Mapping) else {"default": source}
        self.special_tokens = dict(special_tokens or {})
        self._templates = {name: _compile(text) for name, text in self.sources.items()}
        self._takes_parts: dict[SandboxedTemplate, bool] = {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template of a tokenizer_config.json, given its contents; None where it has none."""
        special: dict[str, str] = {}
        for name, token in config.items():
            text = token.get("content") if isinstance(token, Mapping) else token
            if name.endswith("_token") and isinstance(text, str):
                special[name] = text
        source = config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = {field(t, "chat_template", "name", str): t.get("template") for t in source}
            source = named or None
        return None if source is None else cls(source, special)

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a model folder.

        In this order: chat_template.jinja and additional_chat_templates/NAME.jinja;
        tokenizer_config.json; chat_template.json.
        """
        path, old = folder / "tokenizer_config.json", folder / "chat_template.json"
        config = read_json(path) if path.exists() else {}
        files = {"default": folder / "chat_template.jinja"}
        files |= {file.stem: file for file in sorted(folder.glob("additional_chat_templates/*"))}
        files = {name: file for name, file in files.items() if file.suffix == ".jinja"}
        try:
            if found := {name: file for name, file in files.items() if file.exists()}:
                path = next(iter(found.values()))
                sources = {name: file.read_text(encoding="utf-8") for name, file in found.items()}
                config |= {"chat_template": sources}
            elif config.get("chat_template") is None and old.exists():
                path = old
                config |= {"chat_template": read_json(old).get("chat_template")}
            return cls.from_config(config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """The conversation as text.

        messages: [{"role": "user", "content": "…"}, …]. The content is text, or a list of parts
            {"type": "text", "text": "…"} (joined by newlines for a template that takes only text);
            beside `tool_calls` it may be None. The role is system, user, assistant, tool or another
            that the template names. Keys whose value is None are left out.
        tools, documents: JSON schemas of functions, and texts to answer from.
        add_generation_prompt: end where the model's answer begins.
        continue_final_message: end with the last message, which the model then goes on with.
        now: the time that the template sees as the present.
        variables: what else the template may ask for, such as `enable_thinking=False`.

        Raises: ValueError that names the message at fault, says what the template objects to, or
        which message or variable it does not know; where it leaves out a message of a role that it
        knows, a warning.
        """
        return self._prepare(
            messages,
            {"tools": tools, "documents": documents, **variables},
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            now=now,
        ).run()

    def encode(
        self,
        tokenizer: AnyTokenizer,
        messages: Messages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        now: datetime | None = None,
        **options: Any,
    ) -> list[int]:
        """The conversation as token ids; the arguments are those of `render`.

        Only what the template itself writes becomes special tokens; a message, tool, document or
        variable that spells one is ordinary text. Nothing is added around the whole: a BOS comes
        from the template, once, or not at all. Otherwise the ids are those of the rendered text.

        Raises: ValueError as `render` does, and where the template treats text that spells a
        special token unlike other text, so that the two could not be kept apart.
        """
        task = self._prepare(
            messages,
            options,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            now=now,
        )
        text, values = task.run(), task.values
        own = (*self.sources.values(), *self.special_tokens.values())
        hide, reveal = disguise(tokenizer.special_tokens, own, values)
        hidden = values | {k: map_texts(v, hide) for k, v in values.items() if not self._own(k)}
        for message, shown in zip(hidden["messages"], values["messages"], strict=True):
            message["role"] = shown["role"]
        if hidden != values:
            plain, task.values = text, hidden
            text = task.run(check=False)
            if reveal(text) != plain:
                needed = "the chat template treats it unlike other text"
                raise ValueError(f"a message or variable spells a special token, and {needed}")
        ids: list[int] = []
        for place, (part, token_id) in enumerate(tokenizer.added.split(text, "all")):
            if token_id is None:
                ids += tokenizer.encode_part(reveal(part), first=place == 0)
            else:
                ids.append(token_id)
        return ids

    def _own(self, name: str) -> bool:
        return name in self.special_tokens or name.endswith("_token")

    def _prepare(
        self, messages: Messages, options: Mapping[str, Any], **settings: Any
    ) -> Rendering:
        """The template for this conversation, and a copy of all that it is given, checked."""
        name = "default" if options.get("tools") is None else "tool_use"
        template = self._templates.get(name) or self._templates.get("default")
        if template is None:
            raise ValueError(f"there is no default chat template, only {sorted(self.sources)}")
        conversation = checked(messages, template.words)
        values: dict[str, Any] = {"tools": None, "documents": None, **self.special_tokens}
        for key, value in options.items():
            try:
                values[key] = map_texts(value, str)
            except (RecursionError, ValueError) as error:
                raise ValueError(f"{key}: {error}") from error
            given = values[key] not in (None, [], ())
            if given and key not in template.names and not self._own(key):
                raise ValueError(f"{key} is {show(value)}, but the chat template never reads {key}")
        task = Rendering(template, values | {"messages": conversation}, **settings)
        if any(isinstance(message.get("content"), list) for message in conversation):
            if template not in self._takes_parts:
                self._takes_parts[template] = task.takes_parts()
            if not self._takes_parts[template]:
                task.values["messages"] = [flattened(message) for message in conversation]
        return task


def _compile(source: str) -> "SandboxedTemplate":
    from jinja2 import TemplateSyntaxError

    from minillm.tokenizer.sandbox import SandboxedTemplate

    try:
        check_text(source)
        return SandboxedTemplate(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"chat template, line {error.lineno}: {error.message}") from error
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"the chat template is {show(source)}, not valid: {error}") from error
