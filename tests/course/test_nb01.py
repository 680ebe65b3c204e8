"""What notebook 01 shows: token view, its figures, its texts."""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from minillm import Tokenizer
from minillm.course.figures import nb01 as figures
from minillm.course.timing import timed
from minillm.course.tokens import (
    label,
    merged_texts,
    next_html,
    token_explorer,
    tokens_and_next,
    tokens_html,
)

DATA = Path(__file__).parents[2] / "data"


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" the", "␣the"),
        (b"\n\t", "⏎⇥"),
        (b"\x00a", "·a"),
        ("é".encode(), "é"),
        (b"\xf0\x9f", "⟨F0 9F⟩"),
        ("👩‍🍳".encode(), "👩·🍳"),
    ],
)
def test_label(data, shown):
    assert label(data) == shown


def test_tokens_can_be_told_apart_without_colour():
    tokenizer = Tokenizer.train(["the cat sat on the mat"], vocab_size=260)
    ids = tokenizer.encode("the <b>")
    html = tokens_html(tokenizer, ids)
    assert "<b>" not in html
    assert html.count("border:1px") == len(ids)
    shown = plain(html)
    assert shown.startswith(f"{len(ids)} tokens")
    for token_id in ids:
        assert str(token_id) in shown
    assert plain(tokens_html(tokenizer, ids[:1])).startswith("1 token ")


def test_the_trailing_space_shows_in_the_next_tokens(llm):
    without = plain(tokens_and_next(llm, "The capital of France is"))
    assert without.startswith("5 tokens The 504 ␣capital 3575")
    assert "next token id probability ␣Paris 7042 0.77" in without
    with_space = plain(tokens_and_next(llm, "The capital of France is", trailing=True))
    assert with_space.startswith("6 tokens")
    assert "␣ 216 next token id probability 2 34 0.3" in with_space


def test_no_text_and_a_long_text(llm):
    assert "Type a text" in tokens_and_next(llm, "")
    assert plain(tokens_and_next(llm, "a b " * 500)).startswith("256 tokens")


def test_bars_are_those_of_the_rounded_value(llm):
    html = next_html(llm, llm.tokenizer.encode("The capital of France is"), 2)
    assert re.findall(r"width:([\d.]+)em", html) == ["9.24", "0.72"]


def test_the_explorer_follows_its_inputs(llm):
    panel = token_explorer(llm, "A")
    panel.widget()
    text, trailing = (field for field, _ in panel.inputs)
    text.value = "The capital of France is"
    trailing.value = True
    assert panel.state == {"text": "The capital of France is", "trailing": True}
    assert "6 tokens" in panel._output.value


def test_merged_texts():
    assert merged_texts([(104, 101), (116, 256)]) == ["he", "the"]


def test_timed():
    result, seconds = timed(sum, [1, 2], repeat=3)
    assert result == 3
    assert 0 <= seconds < 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.growth(range(50, 301, 50), [40, 70, 95, 115, 130, 142], [30] * 6),
        lambda: figures.compression([0, 50, 100], [1.0, 1.6, 1.9], [1.0, 1.5, 1.7]),
        lambda: figures.languages([("English", 10, 40), ("Hindi", 47, 100)]),
    ],
)
def test_figures_say_their_numbers_in_words(draw, words_of):
    assert re.search(r"\d", words_of(draw))


def test_parallel_sentences():
    languages = json.loads((DATA / "parallel_sentences.json").read_text("utf-8"))["languages"]
    assert len(languages) == 12
    for language in languages:
        sentences = language["sentences"]
        assert len(set(sentences)) == 8
        assert all(unicodedata.is_normalized("NFC", text) for text in sentences)


def test_what_the_notebook_says_about_languages(smollm2):
    tokenizer = Tokenizer.from_file(smollm2 / "tokenizer.json")
    languages = json.loads((DATA / "parallel_sentences.json").read_text("utf-8"))["languages"]
    texts = {language["name"]: "\n".join(language["sentences"]) for language in languages}
    english, chinese = (len(tokenizer.encode(texts[name])) for name in ("English", "Chinese"))
    assert len(texts["Chinese"].encode()) < len(texts["English"].encode())
    assert chinese > 2 * english


def test_reference_ids_of_gpt2_spell_their_text():
    reference = json.loads((DATA / "reference" / "gpt2_ids.json").read_text("utf-8"))
    for case in reference["cases"]:
        assert "".join(case["pieces"]) == case["text"]
        assert len(case["pieces"]) == len(case["ids"])
    assert "".join(reference["article"]["pieces"]) != reference["article"]["text"]
