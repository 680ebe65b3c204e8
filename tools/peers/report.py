"""Figures of several engines, as a table for people, and their place in a document."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was measured: seconds by engine, a value for each round.

    count: tokens that one such time gave, for tokens per second.
    """

    what: str
    seconds: Mapping[str, Sequence[float]]
    count: float = 1

    def median(self, engine: str) -> float:
        """Seconds, over the rounds."""
        return statistics.median(self.seconds[engine])

    def rate(self, engine: str) -> float:
        """Tokens per second."""
        return self.count / self.median(engine)

    def times_as_fast(self, engine: str, peer: str) -> float:
        """How many times as fast as the peer: the median of the rounds' ratios.

        Both were measured in each round, shortly after one another, so that a machine that slows
        down changes no ratio.
        """
        pairs = zip(self.seconds[peer], self.seconds[engine], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure beside its target. At least `limit`, or with at_most at most."""

    text: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether the target is met."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least"
        met = "met" if self.holds else "missed"
        return f"{self.text}: {self.value:.3g} (target: {bound} {self.limit:g}; {met})"


def table(lines: Sequence[Line], engines: Sequence[str], rates: bool = True) -> str:
    """Markdown: a row for each line, tokens/s or milliseconds by engine, and ratios to the first.

    An engine that a line was not measured for has a dash.
    """
    unit = "tokens/s" if rates else "ms"
    ours, *peers = engines
    heads = ["", *(f"{e}, {unit}" for e in engines), *(f"× {peer}" for peer in peers)]
    rows = [heads, ["---"] * len(heads)]
    for line in lines:
        cells = [line.what]
        for engine in engines:
            if engine not in line.seconds:
                cells.append("–")
            elif rates:
                cells.append(f"{line.rate(engine):.4g}")
            else:
                cells.append(f"{line.median(engine) * 1e3:.2f}")
        for peer in peers:
            known = ours in line.seconds and peer in line.seconds
            cells.append(f"{line.times_as_fast(ours, peer):.2f}" if known else "–")
        rows.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


class Part(NamedTuple):
    """A part of the document: Markdown, what is to be said of its targets, and its lines."""

    text: str
    verdicts: list[Verdict] = []  # noqa: RUF012 - never changed
    lines: Sequence[Line] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, how its lines are measured and judged, and whether as tokens/s or milliseconds."""

    title: str
    measure: Callable[..., list[Line]]
    judge: Callable[[Sequence[Line]], list[Verdict]]
    rates: bool = True

    def run(self, workers: Mapping[str, Any], *arguments: Any) -> Part:
        """Measure with these workers."""
        lines = self.measure(workers, *arguments)
        text = f"### {self.title}\n\n{table(lines, list(workers), self.rates)}"
        return Part(text, self.judge(lines), lines)


def summary(parts: Sequence[Part], engines: Sequence[str], wanted: Mapping[str, str]) -> str | None:
    """One table, in tokens/s, of the lines that are wanted, under other names; None if one lacks.

    wanted: what a line is called here, by what it is called in its section.
    """
    lines = {line.what: line for part in parts for line in part.lines}
    if not wanted.keys() <= lines.keys():
        return None
    return table([replace(lines[what], what=name) for what, name in wanted.items()], engines)


def replace_between(path: Path, name: str, text: str) -> None:
    """Put text between `<!-- name: begin -->` and `<!-- name: end -->`.

    The file is replaced at once, so that it is never seen half written. Raises ValueError where
    the marks are not there, or twice.
    """
    old = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(old)) != 1:
        raise ValueError(f"{path}: {begin} … {end} is needed, once")
    new = pattern.sub(lambda _: f"{begin}\n{text.strip()}\n{end}", old)
    part = path.with_name(f"{path.name}.part")
    part.write_text(new, encoding="utf-8")
    part.replace(path)
