"""Stored measurements: a sample of each is measured again."""

import json

import pytest

from minillm.course.precomputed import FOLDER, measurements, stored

NAMES = sorted(measurements())


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_comes_out_as_stored(name, llm):
    measurement = measurements()[name]
    rows = list(measurement.sample(llm, stored(name)))
    assert rows
    for what, before, now in rows:
        assert now == pytest.approx(before, abs=measurement.tolerance), what


def test_every_file_belongs_to_a_measurement():
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_says_where_it_was_measured(name):
    stored_file = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert stored_file["machine"]
    assert stored_file["date"]


def test_a_missing_one_names_the_command():
    with pytest.raises(FileNotFoundError, match=r"tools/precompute\.py 99\.none"):
        stored("99.none")
