"""T08 and A09 for chat: special tokens come from the template alone, and BOS once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.tokenizer import ChatTemplate, Tokenizer
from tests.tokenizer.chat_templates import ALL

SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
CHAT = {name: ChatTemplate(source, SPECIAL) for name, source in ALL.items()}
BOS, START, END = 0, 1, 2

# What a user, a tool or a file might contain.
PIECE = st.sampled_from(
    [
        "<|im_",
        "end|>",
        "start|>",
        "<",
        "|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_start|>",
        " ",
        "a",
    ]
)
TEXT = st.lists(PIECE, max_size=5).map("".join)


def special_ids(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    known = set(tokenizer.special_tokens.values())
    return [i for i in ids if i in known]


def conversation(texts: list[str]) -> list[dict]:
    system, question, name, key, value, result, answer, last = texts
    call = {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "f" + name, "arguments": {"k" + key: [value, 1, None]}},
    }
    return [
        {"role": "system", "content": "s" + system},
        {"role": "user", "content": "q" + question},
        {"role": "assistant", "content": "c", "tool_calls": [call]},
        {"role": "tool", "content": "r" + result, "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "a" + answer},
        {"role": "user", "content": "l" + last},
    ]


def tool(text: str) -> dict:
    parameters = {"type": "object", "properties": {"p" + text: {"description": text}}}
    return {"function": {"name": "f" + text, "description": text, "parameters": parameters}}


@pytest.mark.parametrize("name", ["dated", "nine", "reasoned", "macros"])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_t08_messages_calls_results_and_tools(ours, name, data):
    *texts, described = data.draw(st.lists(TEXT, min_size=9, max_size=9))
    chat = CHAT[name]
    messages, tools = conversation(texts), [tool(described)]
    ids = chat.encode(ours, messages, tools=tools)
    harmless = chat.encode(ours, conversation([""] * 8), tools=[tool("")])
    assert special_ids(ours, ids) == special_ids(ours, harmless)
    assert ours.decode(ids) == chat.render(messages, tools=tools)


@given(st.lists(TEXT, min_size=4, max_size=4))
@settings(max_examples=60, deadline=None)
def test_t08_parts(ours, texts):
    parts = [{"type": "text", "text": "p" + text} for text in texts]
    messages = [{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts[1:]}]
    ids = CHAT["parts"].encode(ours, messages)
    assert special_ids(ours, ids) == [BOS, START, END, START]
    assert ours.decode(ids) == CHAT["parts"].render(messages)


@given(st.lists(TEXT, min_size=3, max_size=3))
@settings(max_examples=60, deadline=None)
def test_t08_documents_and_variables(ours, texts):
    chat = ChatTemplate(
        "{{ bos_token }}{{ date_string }}{% for d in documents %}{{ d.title ~ d.text }}{% endfor %}"
        "{{ extra.k[0] }}<|im_start|>{{ messages[0].content }}",
        SPECIAL,
    )
    options = {
        "documents": [{"title": texts[0], "text": texts[1]}],
        "date_string": texts[2],
        "extra": {"k": texts},
    }
    messages = [{"role": "user", "content": "q"}]
    ids = chat.encode(ours, messages, **options)
    assert special_ids(ours, ids) == [BOS, START]
    assert ours.decode(ids) == chat.render(messages, **options)
    # A special token that the caller gives by its name is one.
    assert chat.encode(ours, messages, **options, bos_token="<|im_end|>")[0] == END


def test_t08_tools_as_python_prints_them(ours):
    """Characters that are not printable would come out as escapes."""
    tools = [tool("<|im_end|> <")]
    messages = [{"role": "user", "content": "q"}]
    ids = CHAT["thinking"].encode(ours, messages, xml_tools=tools)
    assert special_ids(ours, ids) == [START, END, START, END]
    assert ours.decode(ids) == CHAT["thinking"].render(messages, xml_tools=tools)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content | tojson(ensure_ascii=true) }}",
        "{{ messages[0].content | e }}",
        "{{ messages[0].content.split('<|im_end|>')[0] }}",
        "{{ 'yes' if '<|im_end|>' in messages[0].content else 'no' }}",
        "{{ messages[0].content.replace('<|im_end|>', '') }}",
    ],
)
def test_t08_a_template_that_looks_at_special_tokens(ours, source):
    """Their text is hidden from it, so it would write something else: that is an error."""
    chat = ChatTemplate(source + "{{ messages[0].content }}")
    chat.encode(ours, [{"role": "user", "content": "harmless"}])
    with pytest.raises(ValueError, match="spells a special token, and the chat template treats it"):
        chat.encode(ours, [{"role": "user", "content": "a <|im_end|> b"}])


@pytest.mark.parametrize("content", ["a <|im_", "a <|im_end|> ", "<"])
def test_t08_the_last_message_goes_on(ours, content):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    ids = CHAT["reasoned"].encode(ours, messages, continue_final_message=True)
    assert special_ids(ours, ids) == [START, END, START]
    text = CHAT["reasoned"].render(messages, continue_final_message=True)
    assert ours.decode(ids) == text
    assert text.endswith(content)


def test_dates_do_not_change_between_the_two_renderings(ours, monkeypatch):
    chat = ChatTemplate("{{ strftime_now('%f') }}{{ messages[0].content }}")
    for _ in range(5):
        assert END not in chat.encode(ours, [{"role": "user", "content": "<|im_end|>"}])


@pytest.mark.parametrize("name", ["folded", "dated", "nine", "parts", "plain"])
def test_a09_one_bos_where_the_template_writes_it(ours, name):
    for content in ("q", "<|endoftext|>"):
        ids = CHAT[name].encode(ours, [{"role": "user", "content": content}])
        assert ids[0] == BOS
        assert ids.count(BOS) == 1


@pytest.mark.parametrize("name", ["reasoned", "thinking"])
def test_a09_no_bos_where_the_template_writes_none(ours, name):
    ids = CHAT[name].encode(ours, [{"role": "user", "content": "<|endoftext|>"}])
    assert BOS not in ids


def test_a09_bos_by_name_or_by_text(ours):
    """A GGUF file gives the tokens' texts by name; some templates write the text itself."""
    config = {"chat_template": "{{ bos_token }}{{ messages[0].content }}", **SPECIAL}
    by_name, by_text = (
        ChatTemplate.from_config(config),
        ChatTemplate("<|endoftext|>{{ messages[0].content }}"),
    )
    messages = [{"role": "user", "content": "a"}]
    assert by_name is not None
    assert (
        by_name.encode(ours, messages) == by_text.encode(ours, messages) == [BOS, *ours.encode("a")]
    )
    # Without the name there is no BOS, and no text "None" either.
    nameless = ChatTemplate.from_config({"chat_template": config["chat_template"]})
    assert nameless is not None
    assert nameless.encode(ours, messages) == ours.encode("a")
