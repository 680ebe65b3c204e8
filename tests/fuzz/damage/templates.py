"""Damage to chat templates: others out of a grammar, bytes changed, values that are no template."""

import random
from pathlib import Path
from typing import Any

from tests.fuzz.damage.grammar import template
from tests.fuzz.damage.values import HOSTILE, read, read_json, show, write_json

OTHERS: list[Any] = [
    "",
    "\ud800",
    b"\xff\xfe".decode("latin-1"),
    None,
    7,
    ["x"],
    [{"name": "default"}],
    [{"name": "default", "template": 3}],
    [{"name": "default", "template": "{{ messages[0].content }}"}],
    [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}],
    [{"name": ["default"], "template": "x"}],
    {"default": "x"},
]


def changed(source: str, rng: random.Random) -> Any:
    """Another template in place of this one."""
    how = rng.choices(["grammar", "grown", "bytes", "other", "hostile"], [10, 3, 4, 1, 1])[0]
    if how == "grammar":
        return template(rng)
    if how == "grown":
        place = rng.choice([i for i in range(len(source) + 1) if source[i : i + 1] in ("{", "")])
        return source[:place] + template(rng) + source[place:]
    if how == "bytes":
        text = list(source) or [""]
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(len(text))
            text[place] = rng.choice(["", text[place] * 2, *"{}%'\"|.()[]-+~ \n\0", "🌶"])
        return "".join(text)
    return rng.choice(OTHERS if how == "other" else HOSTILE)


def chat_template(folder: Path, rng: random.Random) -> str:
    """Another template in chat_template.jinja or tokenizer_config.json."""
    path, jinja = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = read_json(path)
    config = config if isinstance(config, dict) else {}
    if jinja.is_file() and rng.random() < 0.7:
        new = changed(read(jinja).decode("utf-8", "replace"), rng)
        jinja.write_text(str(new), encoding="utf-8", errors="replace")
        return f"{jinja.name} = {show(new)}"
    if jinja.is_file() or jinja.is_symlink():
        jinja.unlink()
    config["chat_template"] = changed(str(config.get("chat_template", "")), rng)
    write_json(path, config, rng)
    return f"chat_template = {show(config['chat_template'])}"
