"""The links under a notebook's title, and the glossary that they lead to."""

import re
from pathlib import Path

import pytest

from minillm.course.__main__ import main
from minillm.course.tool import notebook as nb
from minillm.course.tool.check import check
from minillm.course.tool.project import Project
from minillm.course.tool.rules import anchors
from minillm.course.tool.shape import words

COURSE = Project(Path(__file__).parents[2])
FORK = '[project.urls]\nRepository = "https://github.com/ada/my-course"\n'


@pytest.fixture
def forked(project):
    file = project.root / "pyproject.toml"
    file.write_text(file.read_text() + FORK)
    page = project.root / "notebooks" / "README.md"
    page.write_text("git clone --depth 1 https://github.com/old/name /content/minillm\n")
    return project


def test_a_fork_changes_the_address_once(forked, path, capsys):
    found = check(forked, [path]).problems
    assert any("launch links are missing or old" in line for line in found)
    assert any("`git clone` line names another repository" in line for line in found)
    assert main(["--root", str(forked.root), "sync"]) == 0
    first = nb.read(path)["cells"][0]["source"]
    binder = (
        "https://mybinder.org/v2/gh/ada/my-course/HEAD?urlpath=lab/tree/notebooks/01_pairs.ipynb"
    )
    colab = "https://colab.research.google.com/github/ada/my-course/blob/main/notebooks/"
    assert first.startswith("# Pairs\n\nOpen in [Binder](")
    assert binder.replace("01_pairs.ipynb", path.name) in first
    assert colab + path.name in first
    page = forked.root / "notebooks" / "README.md"
    assert (
        page.read_text()
        == "git clone --depth 1 https://github.com/ada/my-course /content/minillm\n"
    )
    assert not any("launch" in line or "clone" in line for line in check(forked, [path]).problems)
    capsys.readouterr()
    main(["--root", str(forked.root), "sync"])
    assert "launch" not in capsys.readouterr().out


def test_the_line_does_not_count_as_words(forked, path):
    before = words(nb.read(path)["cells"][0]["source"])
    main(["--root", str(forked.root), "sync"])
    assert words(nb.read(path)["cells"][0]["source"]) == before


def test_an_address_that_is_not_one(project, path, capsys):
    file = project.root / "pyproject.toml"
    file.write_text(file.read_text() + FORK.replace("ada/my-course", "ada"))
    assert main(["--root", str(project.root), "sync"]) == 1
    assert "https://github.com/owner/name is needed" in capsys.readouterr().err


@pytest.mark.parametrize("path", COURSE.notebooks, ids=lambda path: path.stem)
def test_chinese_terms_stand_in_the_glossary(path):
    glossary = (path.parent / "glossary.md").read_text(encoding="utf-8")
    for cell in nb.read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            for term in re.findall(r"\(([^()]*[\u4e00-\u9fff][^()]*)\)", cell["source"]):
                for part in re.findall(r"[^,，、]*[\u4e00-\u9fff][^,，、]*", term):
                    assert part.strip() in glossary, f"the glossary lacks {part!r}"


def test_the_glossary_is_in_order_and_complete():
    text = (COURSE.root / "notebooks" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")][2:]
    names = [row[0].strip().lower() for row in rows]
    assert names == sorted(names)
    assert all(len(row) == 4 and row[2].strip() and row[3].strip() for row in rows)


@pytest.mark.parametrize("page", ["README.md", "glossary.md"])
def test_links_of_the_pages_lead_somewhere(page):
    folder = COURSE.root / "notebooks"
    text = (folder / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        assert (folder / name).is_file(), target
        if anchor:
            assert anchor in anchors(nb.read(folder / name)), target
