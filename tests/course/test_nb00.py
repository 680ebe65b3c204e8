"""Notebook 00: the ledger's data, and the next-token explorer."""

import re
from pathlib import Path

import pytest
import torch

from minillm.course.ledger import Row, ledger, read
from minillm.course.next_token import (
    Text,
    append,
    choices,
    next_token_explorer,
    type_prompt,
    undo,
    view,
)
from minillm.course.tool import notebook as nb
from minillm.course.tool.rules import anchors
from minillm.tokenizer import Tokenizer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_the_ledger_has_every_claim_once():
    assert [row["claim"] for row in read()] == list(range(1, 44))
    for row in ledger().rows:
        assert row.says.endswith((".", "?"))
        assert row.notebooks
        assert all(re.fullmatch(r"0\d|1[012]", name) for name in row.notebooks)


@pytest.mark.parametrize("row", [row for row in ledger().rows if row.outcome], ids=str)
def test_an_outcome_links_to_its_section(row: Row):
    file, _, heading = row.section.partition("#")
    assert file[:2] in row.notebooks
    assert heading in anchors(nb.read(NOTEBOOKS / file))


def test_what_is_settled_and_what_is_to_come():
    assert Row(1, "It is so.", ["00"]).to_come() == "notebook 00, to come"
    assert Row(1, "It is so.", ["00", "05"]).to_come() == "notebook 00 and 05, to come"
    row = Row(1, "It is so.", ["00", "05"], "`Yes` & no.", "00_mental_model.ipynb#The-loop")
    assert row.to_come() == "notebook 05, to come"
    assert Row(1, "It is so.", ["00"], "Yes.", row.section).to_come() == ""


def test_the_ledger_of_one_notebook():
    assert {row.claim for row in ledger("00").rows} == {1, 2, 38}
    assert len(ledger("00", all_rows=True).rows) == 43
    assert repr(ledger("00")) == "The ledger: 3 claims, 3 settled so far."


def test_the_ledger_as_html():
    here, there = ledger("00")._repr_html_(), ledger("05")._repr_html_()
    assert 'href="#The-loop"' in here
    assert 'href="05_kv_cache_decode.ipynb#11-·-Waiting-for-memory"' in here
    assert 'href="#11-·-Waiting-for-memory"' in there
    assert "notebook 11, to come" in ledger("11")._repr_html_()
    assert "<code>generate</code>" in here


class Countdown:
    """Scores the byte after the last one highest, then the one after that, and so on."""

    tokenizer = Tokenizer.train([], vocab_size=256)

    def logits(self, ids):
        V = self.tokenizer.vocab_size
        return torch.stack([-((torch.arange(V) - token - 1) % V) for token in ids]).float()


MODEL = Countdown()
START = type_prompt(MODEL, Text(()), "ab")


def ids_of(text):
    return tuple(MODEL.tokenizer.encode(text))


def test_choices_are_sorted_probabilities():
    found = choices(MODEL, START.prompt, 3)
    assert [token for token, _ in found] == [START.prompt[-1] + 1 + i for i in range(3)]
    assert found[0][1] == pytest.approx(1 - 1 / torch.e, abs=1e-6)
    assert found[1][1] == pytest.approx(found[0][1] / torch.e)


def test_append_takes_the_choice_of_that_rank_and_undo_takes_it_back():
    one = append(MODEL, START, 1)
    assert one == Text(ids_of("ab"), ids_of("c"))
    assert append(MODEL, one, 5) == Text(ids_of("ab"), ids_of("ch"))
    assert undo(undo(append(MODEL, one, 5))) == START
    assert undo(START) == START


def test_typing_a_prompt_drops_what_was_appended():
    assert type_prompt(MODEL, append(MODEL, START, 1), "x") == Text(ids_of("x"))


def test_an_empty_prompt_is_asked_for_and_not_an_error():
    empty = type_prompt(MODEL, START, "")
    assert "at least one token" in view(MODEL, empty)
    assert append(MODEL, empty, 1) == empty


def test_view_marks_what_was_appended_and_escapes():
    text = append(MODEL, type_prompt(MODEL, START, "1 < 2 ;"), 1)
    shown = view(MODEL, text, 2)
    assert "1 &lt; 2 ;<u><strong>&lt;</strong></u>" in shown
    assert shown.count("<tr>") == 3
    assert "&quot;=&quot;" in shown
    assert ">0.632</td>" in shown


def test_a_character_spread_over_prompt_and_addition():
    first, second = ids_of("é")
    assert "<u><strong>é</strong></u>" in view(MODEL, Text((first,), (second,)))


def test_the_panel():
    panel = next_token_explorer(MODEL, "ab", ranks=(1, 4))
    assert list(panel.actions) == ["Append the 1st choice", "Append the 4th choice", "Undo"]
    panel.click("Append the 1st choice")
    panel.click("Append the 4th choice")
    assert panel.state == Text(ids_of("ab"), ids_of("cg"))
    panel.click("Undo")
    assert panel.state == Text(ids_of("ab"), ids_of("c"))
    assert panel._repr_mimebundle_()["text/html"] == view(MODEL, panel.state)
