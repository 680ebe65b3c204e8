"""Rules about one notebook. Each yields pairs of a cell's index (or none) and a problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from minillm.course.tool import notebook as nb
from minillm.course.tool.launch import launch_line
from minillm.course.tool.package import built_in, teaching_symbols
from minillm.course.tool.project import Project
from minillm.course.tool.shape import HEADINGS, checked, exercise_names, python, shape

Problem = tuple[int | None, str]

# Links lead to papers, documentation and launchers. Anything else, and any package index, is asked
# about before it is added here.
ALLOWED_HOSTS = {
    "aclanthology.org",
    "arxiv.org",
    "colab.research.google.com",
    "doi.org",
    "docs.python.org",
    "docs.pytorch.org",
    "download.pytorch.org",
    "en.wikipedia.org",
    "github.com",
    "huggingface.co",
    "ipywidgets.readthedocs.io",
    "jalammar.github.io",
    "matplotlib.org",
    "mybinder.org",
    "openai.com",
    "openreview.net",
    "papers.nips.cc",
    "proceedings.mlr.press",
    "proceedings.neurips.cc",
    "pytorch.org",
    "transformer-circuits.pub",
    "www.rfc-editor.org",
    "www.unicode.org",
    "unicode.org",
}
Rule = Callable[["Context"], Iterator[Problem]]
FORBIDDEN_TAGS = {"nbval-skip", "nbval-raises-exception", "raises-exception", "skip-execution"}


@dataclass(frozen=True)
class Context:
    """One notebook with what its rules need to know about the rest."""

    project: Project
    path: Path
    notebook: nb.Notebook

    @cached_property
    def code(self) -> list[tuple[int, nb.Cell]]:
        """The code cells that hold something."""
        return nb.code_cells(self.notebook)

    @cached_property
    def taught(self) -> dict[str, list[str]]:
        """The package's teaching symbols, by module."""
        return teaching_symbols(self.project)

    @cached_property
    def built(self) -> dict[str, list[tuple[str, int]]]:
        """Where each source is built, in all notebooks."""
        return built_in(self.project)


def form(context: Context) -> Iterator[Problem]:
    """Valid, and in the form that `clean` writes."""
    import nbformat

    try:
        nbformat.validate(context.notebook)
    except nbformat.ValidationError as error:
        yield None, f"not a valid notebook: {error.message.splitlines()[0]}"
        return
    text = context.path.read_text(encoding="utf-8")
    if text != nb.dump(nb.clean(nb.read(context.path))):
        yield None, "not in its normal form: run `python -m minillm.course clean`"


def executed(context: Context) -> Iterator[Problem]:
    """Every code cell was run, in order, and not edited since."""
    if context.code and all(cell.get("execution_count") is None for _, cell in context.code):
        yield None, "has not been run: run `python -m minillm.course run`"
        return
    expected = 0
    for index, cell in enumerate(context.notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        count = cell.get("execution_count")
        if not cell["source"].strip():
            yield index, "an empty code cell"
            continue
        expected += 1
        if count is None:
            yield index, "has not been run"
        elif count != expected:
            yield index, f"run out of order: execution count {count}, expected {expected}"
    stored = context.notebook["metadata"].get("minillm", {}).get("code")
    if stored != nb.code_hash(context.notebook):
        yield (
            None,
            "code was edited after the outputs were stored: run `python -m minillm.course run`",
        )


def outputs(context: Context) -> Iterator[Problem]:
    """No errors, no stderr, nothing that differs between machines without saying anything."""
    for index, cell in context.code:
        for output in cell.get("outputs", []):
            kind, data = output["output_type"], output.get("data", {})
            if kind == "error":
                yield (
                    index,
                    f"its output is an error: {output.get('ename')}: {output.get('evalue')}",
                )
            if output.get("name") == "stderr":
                yield index, f"wrote to stderr: {_first_line(output['text'])}"
            text = str(output.get("text", "")) + "".join(
                str(value) for mime, value in data.items() if mime.startswith("text/")
            )
            if "<Figure size" in text:
                yield (
                    index,
                    "a figure shown as `<Figure size …>`: end it with plots.show(fig, alt=…)",
                )
            if found := re.search(r"(?<![\w.:/])/(home|root|tmp|Users|work|mnt|usr)/[\w.-]+", text):
                yield index, f"an absolute path in the output: {found[0]}"
            for mime in data:
                if mime.startswith("image/"):
                    yield from ((index, problem) for problem in _image(mime, output))


def _image(mime: str, output: dict[str, Any]) -> Iterator[str]:
    if mime != "image/png":
        yield f"a figure as {mime}: only image/png is stored"
    metadata = output.get("metadata", {})
    if not (metadata.get(mime, {}).get("alt") or metadata.get("alt")):
        yield "a figure without alternative text: end it with plots.show(fig, alt=…)"


def magics(context: Context) -> Iterator[Problem]:
    """Code cells are Python; an unknown magic would pass in silence."""
    for index, cell in context.code:
        if python(cell["source"]) is None:
            lines = [line.strip() for line in cell["source"].split("\n")]
            magic = next((line for line in lines if re.match(r"[%!?]|.*\?$", line)), None)
            yield index, f"magic {magic!r} is not allowed" if magic else "does not parse"


def compared(context: Context) -> Iterator[Problem]:
    """No cell is kept from being executed and compared, beyond ignoring its output."""
    for index, cell in context.code:
        tags = cell["metadata"].get("tags", [])
        for tag in sorted(FORBIDDEN_TAGS & set(tags)):
            yield index, f"tag {tag!r} is not allowed"
        if found := re.search(r"#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)", cell["source"]):
            yield index, f"comment {found[1]} is not allowed: use the tag nbval-ignore-output"
        if nb.WIDGET in {mime for out in cell["outputs"] for mime in out.get("data", {})}:
            yield (
                index,
                "a stored widget without its static form: show it through minillm.course.widgets",
            )


def exercises(context: Context) -> Iterator[Problem]:
    """Each exercise is known, has a stub's check, and a folded solution that is checked.

    A notebook with exercises also has a self-test and lists the mistakes that its checks know.
    """
    number = context.path.name[:2]
    known = exercise_names(context.project.root / f"minillm/course/checks/nb{number}.py")
    stubs: set[str] = set()
    solved: set[str] = set()
    for index, cell in context.code:
        tags = cell["metadata"].get("tags", [])
        folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        if ("solution" in tags) != bool(folded):
            yield index, "a solution has the tag 'solution' and jupyter.source_hidden, both"
        for name in checked(python(cell["source"]) or ""):
            (solved if "solution" in tags else stubs).add(name)
            if name not in known:
                yield index, f"no exercise {name!r} in minillm/course/checks/nb{number}.py"
    code = "\n".join(str(cell["source"]) for _, cell in context.code)
    for call in (f'quiz("{number}")', f'mistakes("{number}")') if known else ():
        if call not in code:
            yield None, f"has no cell with {call}"
    for name in sorted((stubs | solved) & known):
        if name not in stubs:
            yield None, f"exercise {name!r} is never checked by a stub"
        if name not in solved:
            yield None, f"exercise {name!r} has no solution that is checked"
    for name in sorted(known - stubs - solved):
        yield None, f"exercise {name!r} of minillm/course/checks/nb{number}.py is not set"


def prose(context: Context) -> Iterator[Problem]:
    """One title, launch links, headings in order, alternative texts, links to known hosts."""
    line = launch_line(context.project, context.path)
    if line and line not in str(context.notebook["cells"][0]["source"]).split("\n\n"):
        yield 0, "its launch links are missing or old: run `python -m minillm.course sync`"
    level, titles = 0, []
    for index, cell in enumerate(context.notebook["cells"]):
        text = str(cell["source"])
        for host in re.findall(r"https?://([\w.-]+)", text):
            if host not in ALLOWED_HOSTS:
                yield index, f"a link to {host}, which is not in ALLOWED_HOSTS"
        if cell["cell_type"] != "markdown":
            continue
        if re.search(r"!\[\s*\]\(", text) or re.search(r"<img(?![^>]*\balt=)", text):
            yield index, "a picture without alternative text"
        for marks, title in _headings(text):
            if marks > level + 1:
                yield index, f"heading {title!r} skips a level"
            level = marks
            titles.append((marks, title))
    if [marks for marks, _ in titles].count(1) != 1 or titles[0][0] != 1:
        yield None, "needs exactly one heading of level 1, before all others"
    for wanted in HEADINGS:
        if not any(wanted.lower() in title.lower() for _, title in titles):
            yield None, f"has no heading {wanted!r}"


def links(context: Context) -> Iterator[Problem]:
    """Links to files and to headings of the course lead to what is there."""
    for index, cell in enumerate(context.notebook["cells"]):
        if cell["cell_type"] != "markdown":
            continue
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", str(cell["source"])):
            name, _, anchor = target.partition("#")
            file = context.path.parent / name if name else context.path
            if not file.is_file():
                yield index, f"a link to {target}, and there is no such file"
            elif anchor and file.suffix == ".ipynb" and anchor not in anchors(nb.read(file)):
                yield index, f"a link to {target}, and there is no such heading"


def anchors(notebook: nb.Notebook) -> set[str]:
    """JupyterLab's anchors of a notebook's headings: their text with hyphens for spaces."""
    texts = [str(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"]
    return {title.replace(" ", "-") for text in texts for _, title in _headings(text)}


def _headings(markdown: str) -> list[tuple[int, str]]:
    text = re.sub(r"```.*?(```|\Z)", "", markdown, flags=re.DOTALL)
    return [
        (len(m[1]), m[2].strip()) for m in re.finditer(r"^(#{1,6})\s+(.+)$", text, re.MULTILINE)
    ]


def length(context: Context) -> Iterator[Problem]:
    """The limits of a notebook's shape."""
    for problem in shape(context.notebook).problems():
        yield None, problem


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")[:80]
