"""`check`: everything that is out of step or out of bounds, one line per problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from minillm.course.tool import cells, package, rules
from minillm.course.tool import notebook as nb
from minillm.course.tool.launch import path_page
from minillm.course.tool.project import Project
from minillm.course.tool.shape import shape

# What makes stored outputs worth comparing; the notebook tests apply these on their own.
GUARDS = (rules.executed, rules.outputs, rules.magics, rules.compared)
RULES = (
    rules.form,
    *GUARDS,
    cells.definitions,
    rules.exercises,
    rules.prose,
    rules.links,
    rules.length,
)


@dataclass
class Report:
    """What `check` found: figures to read, and problems to repair."""

    statistics: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check(project: Project, notebooks: list[Path]) -> Report:
    """Applies every rule to the package and to the given notebooks."""
    report = Report()
    code, total = package.core_lines(project)
    report.statistics.append(f"core: {code:,} lines of code, {total:,} lines in all")
    if code > package.CORE_LIMIT:
        limit = f"{package.CORE_LIMIT:,}"
        report.problems.append(f"minillm: the core has {code:,} lines of code; {limit} allowed")
    report.problems += [*package.arrows(project), *package.teaching(project)]
    if wrong := path_page(project):
        report.problems.append(f"{wrong}: run `python -m minillm.course sync`")
    for path in notebooks:
        name = project.name(path)
        try:
            notebook = nb.read(path)
        except ValueError as error:
            report.problems.append(f"{name}: {error}")
            continue
        report.statistics.append(f"{name}: {shape(notebook)}")
        report.problems += [f"{name}: {text}" for text in problems(project, path, RULES)]
    return report


def problems(project: Project, path: Path, chosen: tuple[rules.Rule, ...]) -> list[str]:
    """The problems that the chosen rules find in one notebook; cells are counted from 1."""
    context = rules.Context(project, path, nb.read(path))
    found = [problem for rule in chosen for problem in rule(context)]
    return [text if index is None else f"cell {index + 1}: {text}" for index, text in found]
