"""Every notebook under plain nbval, one at a time, with the guards that nbval lacks."""

from pathlib import Path

import pytest

from minillm.course.tool import check, rules
from minillm.course.tool.project import Project

PROJECT = Project(Path(__file__).parents[2])
NOTEBOOKS = [pytest.param(path, id=path.stem) for path in PROJECT.notebooks]
PEAK_LIMIT = 1.5e9  # bytes; Binder gives 1 to 2 GB


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_stored_outputs_are_complete_and_clean(path):
    # A cell that was never run, or whose output is an error or a warning, would pass nbval.
    assert check.problems(PROJECT, path, check.GUARDS) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS)
def test_outputs_are_reproduced(path, nbval, smollm2, record_property):
    outcome = nbval(path)
    record_property("notebook", path.name)
    record_property("seconds", outcome.seconds)
    record_property("peak_bytes", outcome.peak_bytes)
    assert outcome.passed, outcome.text
    assert outcome.peak_bytes < PEAK_LIMIT


def test_the_notebooks_and_the_package_are_in_step():
    report = check.check(PROJECT, PROJECT.notebooks)
    assert report.problems == []


def test_guards_are_part_of_check():
    assert set(check.GUARDS) <= set(check.RULES)
    assert rules.executed in check.GUARDS
