"""Every notebook under plain nbval, one at a time, with the guards that nbval lacks.

The plain form always; the two others with `make test-notebooks`.
"""

from pathlib import Path

import pytest

from minillm.course.tool import check, rules
from minillm.course.tool.project import Project
from tests.notebooks.runner import FORMS, PEAK_LIMIT, SECONDS_LIMIT

PROJECT = Project(Path(__file__).parents[2])
NOTEBOOKS = [pytest.param(path, id=path.stem) for path in PROJECT.notebooks]
RUNS = [
    pytest.param(
        path,
        form,
        id=f"{path.stem}-{form.replace(' ', '_')}",
        marks=() if form == "as is" else pytest.mark.forms,
    )
    for path in PROJECT.notebooks
    for form in FORMS
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_n01_stored_outputs_are_complete_and_clean(path):
    # A cell that was never run, or whose output is an error or a warning, would pass nbval.
    assert check.problems(PROJECT, path, check.GUARDS) == []


@pytest.mark.slow
@pytest.mark.parametrize(("path", "form"), RUNS)
def test_n03_outputs_are_reproduced_in_little_memory(path, form, nbval, smollm2, record_property):
    outcome = nbval(path, FORMS[form])
    record_property("notebook", path.name)
    record_property("form", form)
    record_property("seconds", outcome.seconds)
    record_property("cpu_seconds", outcome.cpu_seconds)
    record_property("peak_bytes", outcome.peak_bytes)
    record_property("slow", outcome.seconds > SECONDS_LIMIT)
    assert outcome.passed, outcome.text
    assert outcome.peak_bytes < PEAK_LIMIT
    # Wall time depends on what else the machine does, so the summary only remarks on it; several
    # threads also spend processor time on waiting for each other. Neither moves one thread's.
    if form == "one thread":
        assert outcome.cpu_seconds < SECONDS_LIMIT


def test_the_notebooks_and_the_package_are_in_step():
    report = check.check(PROJECT, PROJECT.notebooks)
    assert report.problems == []


def test_guards_are_part_of_check():
    assert set(check.GUARDS) <= set(check.RULES)
    assert rules.executed in check.GUARDS
