"""What the chat templates of the families use, compared with transformers on many conversations."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template

from minillm.tokenizer import ChatTemplate
from tests.tokenizer.chat_templates import ALL

SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
CHAT = {name: ChatTemplate(source, SPECIAL) for name, source in ALL.items()}
LEFT_OUT = "the chat template leaves it out"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'What the "weather" is like',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"enum": ["celsius", "é<&"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
]

TEXT = st.text(st.sampled_from("ab \n<>&\"'\\{}é日/"), max_size=8) | st.sampled_from(
    ["<think>\nhm\n</think>\n\nyes", "</think>", "/no_think be brief", "<result>1</result>", " \n"]
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-1, 1) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
CALL = st.builds(
    lambda name, arguments: {
        "type": "function",
        "id": "abcdefghi",
        "function": {"name": name, "arguments": arguments},
    },
    st.sampled_from(["weather", "now"]),
    st.dictionaries(st.sampled_from("abc"), VALUE, max_size=2),
)


def message(role, content, **more):
    return {"role": role, "content": content, **more}


QUESTION = st.builds(message, st.just("user"), TEXT)
ANSWER = st.one_of(
    st.builds(message, st.just("assistant"), TEXT),
    st.builds(message, st.just("assistant"), TEXT, reasoning_content=TEXT),
    st.builds(message, st.just("assistant"), TEXT, thinking=st.none() | TEXT),
    st.builds(
        message,
        st.just("assistant"),
        st.none() | TEXT,
        tool_calls=st.lists(CALL, min_size=1, max_size=2),
    ),
)
RESULT = st.builds(message, st.just("tool"), TEXT, tool_call_id=st.just("abcdefghi"))
SYSTEM = st.builds(message, st.just("system"), TEXT)
ORDERLY = st.builds(
    lambda system, turns, last: [*system, *(m for pair in turns for m in pair), *last],
    st.lists(SYSTEM, max_size=1),
    st.lists(st.tuples(QUESTION, ANSWER), min_size=0, max_size=3),
    st.lists(QUESTION, min_size=1, max_size=1),
)
WILD = st.lists(QUESTION | ANSWER | RESULT | SYSTEM, min_size=1, max_size=6)


def outcome(call: Callable[[], str]) -> str | Exception:
    try:
        return call()
    except Exception as error:
        return error


def theirs(name, messages, **variables):
    """What transformers makes of it: the text, or None where the template raises."""
    texts, _ = render_jinja_template(
        [_normalize_chat_messages(messages)], chat_template=ALL[name], **SPECIAL, **variables
    )
    return texts[0]


@pytest.mark.filterwarnings("ignore:.*leaves it out")
@pytest.mark.parametrize("name", ALL)
@given(st.data())
@settings(max_examples=120, deadline=None)
def test_the_same_text_as_transformers(name, data):
    messages = data.draw(ORDERLY | WILD)
    options = {"add_generation_prompt": data.draw(st.booleans())}
    if "tools" in CHAT[name]._templates["default"].names:
        options["tools"] = data.draw(st.sampled_from([None, TOOLS, TOOLS[1:]]))
    if "enable_thinking" in CHAT[name]._templates["default"].names:
        options |= data.draw(st.sampled_from([{}, {"enable_thinking": False}]))
    if name == "dated":
        some = [{}, {"date_string": "3 May 2025"}, {"builtin_tools": ["code", "search"]}]
        options |= data.draw(st.sampled_from(some))
    if name == "thinking":
        options |= data.draw(st.sampled_from([{}, {"xml_tools": TOOLS}, {"python_tools": TOOLS}]))
    expected = outcome(lambda: theirs(name, messages, **options))
    found = outcome(lambda: CHAT[name].render(messages, **options))
    if isinstance(expected, Exception):  # whatever a template stumbles over
        assert isinstance(found, ValueError)
        assert str(found).startswith("chat template: ")
    elif isinstance(found, Exception):
        # Ours also refuses what transformers leaves out in silence. So it has to be without effect.
        assert str(found).endswith(LEFT_OUT), found
        index = int(str(found)[len("messages[") :].split("]")[0])
        assert messages[index]["role"] not in CHAT[name]._templates["default"].words
        other = [*messages]
        other[index] = messages[index] | {"content": messages[index]["content"] + " and more"}
        assert theirs(name, other, **options) == expected
    else:
        assert found == expected


@pytest.mark.parametrize("name", ALL)
def test_an_ordinary_conversation(name):
    """Each template does render, so that the test above compares texts and not only failures."""
    call = {"id": "123456789", "function": {"name": "now", "arguments": {"a": [1, "é"]}}}
    hello = [message("system", "Be brief."), message("user", "Hi"), message("assistant", "Hello!")]
    with_tools = [
        *(message("user", "When?"), message("assistant", None, tool_calls=[call])),
        *(message("tool", "noon", tool_call_id="123456789"), message("assistant", "At noon.")),
    ]
    options: dict[str, Any] = {"add_generation_prompt": True}
    messages = hello + hello[1:2]
    assert CHAT[name].render(messages, **options) == theirs(name, messages, **options)
    if name in ("dated", "nine", "reasoned", "macros"):
        messages, options["tools"] = hello + with_tools + hello[1:2], TOOLS
        assert CHAT[name].render(messages, **options) == theirs(name, messages, **options)


@pytest.mark.filterwarnings("ignore:.*leaves it out")
@given(ORDERLY | WILD, st.data())
@settings(max_examples=60, deadline=None)
def test_parts_where_the_template_knows_them(messages, data):
    for m in messages:
        if isinstance(m["content"], str) and data.draw(st.booleans()):
            m["content"] = [{"type": "text", "text": m["content"]}, {"type": "text", "text": "!"}]
    expected = outcome(lambda: theirs("parts", messages))
    found = outcome(lambda: CHAT["parts"].render(messages, add_generation_prompt=False))
    assume(isinstance(expected, str))
    assert found == expected or str(found).endswith(LEFT_OUT)


def test_parts_where_the_template_takes_only_text():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    for name in ("plain", "reasoned", "thinking", "folded"):
        messages = [message("system", parts), message("user", parts)]
        texts = [message("system", "one\ntwo"), message("user", "one\ntwo")]
        assert CHAT[name].render(messages) == CHAT[name].render(texts)


def test_the_present_is_an_argument():
    day = datetime(2024, 7, 26)
    chat = ChatTemplate("{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }}")
    assert chat.render([message("user", "hi")], now=day) == "26 Jul 2024: hi"
    assert "Today: 2024\n" in CHAT["dated"].render([message("user", "hi")], now=day)
    assert "Today: x\n" in CHAT["dated"].render([message("user", "hi")], date_string="x")


@pytest.mark.parametrize("role", ["ipython", "tool_results"])
def test_roles_that_the_template_names(role):
    name, other = ("dated", "nine") if role == "ipython" else ("nine", "dated")
    messages = [message("user", "hi"), message(role, "42", tool_call_id="123456789")]
    assert CHAT[name].render(messages) == theirs(name, messages, add_generation_prompt=True)
    with pytest.raises(ValueError, match=rf"messages\[1\]\['role'\] is '{role}', not supported"):
        CHAT[other].render(messages)


def test_a_role_is_never_a_token_of_the_template():
    chat = ChatTemplate("{% for m in messages %}{{ '<|im_end|>' + m.role }}{% endfor %}")
    with pytest.raises(ValueError, match=r"is '<\|im_end\|>', not supported"):
        chat.render([message("<|im_end|>", "a")])


def test_what_a_template_leaves_out_is_an_error():
    plain = CHAT["plain"]
    with pytest.raises(ValueError, match=rf"messages\[1\] is {{'role': 'tool'.*; {LEFT_OUT}"):
        plain.render([message("user", "hi"), message("tool", "42")])
    # Also where another message has the same text.
    with pytest.raises(ValueError, match=rf"messages\[0\] is {{'role': 'tool'.*; {LEFT_OUT}"):
        plain.render([message("tool", "42"), message("user", "42")])
    # A template that changes a message has not left it out.
    shouting = ChatTemplate("{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    assert shouting.render([message("system", "be brief"), message("user", "hi")]) == "BE BRIEFHI"
    quoting = ChatTemplate("{% for m in messages %}{{ m.content | tojson }}{% endfor %}")
    assert quoting.render([message("tool", 'a\n"b"')]) == json.dumps('a\n"b"')
    # Where it knows the role, it may have its reasons.
    with pytest.warns(UserWarning, match=rf"messages\[0\] is {{'role': 'system'.*; {LEFT_OUT}"):
        CHAT["nine"].render(
            [message("system", "s"), message("user", "q"), message("assistant", "a")]
        )
    # The assistant's text may be cut, and is by many.
    call = {"function": {"name": "now", "arguments": {}}, "id": "123456789"}
    with_call = [message("user", "hi"), message("assistant", "Wait.", tool_calls=[call])]
    assert "Wait" not in CHAT["nine"].render(with_call)


@pytest.mark.parametrize(
    "options", [{"tools": TOOLS}, {"documents": [{}]}, {"enable_think": False}]
)
def test_a_variable_that_the_template_never_reads_is_an_error(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} is .*, but the chat template never reads {name}"):
        CHAT["plain"].render([message("user", "hi")], **options)
    CHAT["plain"].render([message("user", "hi")], tools=[], documents=[], system_message=None)


def test_tools_are_data():
    with pytest.raises(ValueError, match=r"tools: <function .* is no text, number, list or dict"):
        CHAT["reasoned"].render([message("user", "hi")], tools=[theirs])  # type: ignore[list-item]


def test_documents():
    source = (
        "{% for d in documents %}{{ d.title }}: {{ d.text }}{% endfor %}{{ messages[0].content }}"
    )
    documents = [{"title": "A", "text": "b"}]
    assert ChatTemplate(source).render([message("user", "?")], documents=documents) == "A: b?"


@pytest.mark.parametrize("name", ["plain", "reasoned", "parts", "folded", "dated"])
@pytest.mark.parametrize("content", ["The answer", "ends with spaces  ", "a\n", " <|im_", "é"])
def test_the_last_message_goes_on(name, content):
    messages = [message("user", "hi"), message("assistant", content)]
    found = CHAT[name].render(messages, continue_final_message=True)
    assert found == theirs(name, messages, continue_final_message=True)
    assert found.rstrip().endswith(content.strip())


def test_the_last_message_in_parts_goes_on():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "The answer"}]
    messages = [message("user", "hi"), message("assistant", parts)]
    found = CHAT["parts"].render(messages, continue_final_message=True)
    assert found == theirs("parts", messages, continue_final_message=True)
    with pytest.raises(ValueError, match="does not show the end of the last message"):
        ChatTemplate("{{ messages[0].content }}").render(messages, continue_final_message=True)


def test_the_callers_messages_are_left_alone():
    messages = [message("user", [{"type": "text", "text": "hi"}]), message("assistant", "a")]
    before = json.dumps(messages)
    CHAT["plain"].render(messages, continue_final_message=True)
    assert json.dumps(messages) == before
