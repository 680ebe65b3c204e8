"""Where the files of a model keep its chat templates, and which of several is taken."""

import json
import shutil

import pytest
import transformers

from minillm.tokenizer import ChatTemplate

HI = [{"role": "user", "content": "hi"}]
CONTENT = "{{ messages[0].content }}"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
DEFAULT, WITH_TOOLS = "default " + CONTENT, "tools {{ tools | length }} " + CONTENT


def from_folder(folder) -> ChatTemplate:
    found = ChatTemplate.from_folder(folder)
    assert found is not None
    return found


def from_config(config) -> ChatTemplate:
    found = ChatTemplate.from_config(config)
    assert found is not None
    return found


def test_where_a_folder_keeps_its_template(tmp_path):
    assert ChatTemplate.from_folder(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text("{}")
    assert ChatTemplate.from_folder(tmp_path) is None
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "O" + CONTENT}))
    assert from_folder(tmp_path).render(HI) == "Ohi"
    source = "A{{ bos_token }}{{ eos_token }}" + CONTENT
    config.write_text(json.dumps({"chat_template": source, "bos_token": "<s>"}))
    assert from_folder(tmp_path).render(HI) == "A<s>hi"
    (tmp_path / "chat_template.jinja").write_text("J\n" + CONTENT)
    assert from_folder(tmp_path).sources == {"default": "J\n" + CONTENT}
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: chat template, line 1"):
        ChatTemplate.from_folder(tmp_path)
    config.write_text("[")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        ChatTemplate.from_folder(tmp_path)


def test_special_tokens_are_text_or_described():
    config = {
        "chat_template": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}" + CONTENT,
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "image_token": "<image>",
        "pad_token": None,
        "add_bos_token": True,
    }
    assert from_config(config).render(HI) == "<s></s><image>hi"
    assert ChatTemplate.from_config({"chat_template": None}) is None
    assert ChatTemplate.from_config({"chat_template": []}) is None


@pytest.fixture(params=["list in the config", "dict in the config", "files"])
def folder(request, smollm2, tmp_path):
    """A folder with two templates, as transformers has written it over the years."""
    config = json.loads((smollm2 / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = {"default": DEFAULT, "tool_use": WITH_TOOLS}
    shutil.copy(smollm2 / "tokenizer.json", tmp_path)
    config.pop("chat_template", None)
    if request.param == "files":
        (tmp_path / "chat_template.jinja").write_text(DEFAULT)
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(WITH_TOOLS)
        (tmp_path / "additional_chat_templates" / "notes.txt").write_text("{% if %}")
        config["chat_template"] = "{% if %}"  # files go first
    elif request.param == "dict in the config":
        config["chat_template"] = named
    else:
        config["chat_template"] = [{"name": k, "template": v} for k, v in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_template_for_tools(folder):
    chat = from_folder(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert chat.sources == {"default": DEFAULT, "tool_use": WITH_TOOLS}
    for tools, text in ((None, "default hi"), (TOOLS, "tools 1 hi"), ([], "tools 0 hi")):
        assert chat.render(HI, tools=tools) == text
        assert theirs.apply_chat_template(HI, tools=tools, tokenize=False) == text


def test_one_of_several_may_be_missing():
    rag = ChatTemplate({"rag": CONTENT, "tool_use": WITH_TOOLS})
    assert rag.render(HI, tools=TOOLS) == "tools 1 hi"
    with pytest.raises(ValueError, match=r"no default chat template, only \['rag', 'tool_use'\]"):
        rag.render(HI)
    # Without one for tools the default serves, if it reads them.
    assert ChatTemplate({"default": WITH_TOOLS}).render(HI, tools=TOOLS) == "tools 1 hi"
    with pytest.raises(ValueError, match="never reads tools"):
        ChatTemplate({"default": DEFAULT}).render(HI, tools=TOOLS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (7, "the chat template is 7, not valid"),
        ([{"name": "default", "template": None}], "the chat template is None, not valid"),
        ([{"name": "default", "template": "{% if %}"}], "chat template, line 1"),
        ({"default": ["a"]}, r"the chat template is \['a'\], not valid"),
        ([7], "chat_template is 7; an object is needed"),
        ([{"template": "a"}], r"chat_template\.name is None; str is needed"),
    ],
)
def test_damaged_settings_are_clear_errors(source, message):
    with pytest.raises(ValueError, match=message):
        ChatTemplate.from_config({"chat_template": source})
