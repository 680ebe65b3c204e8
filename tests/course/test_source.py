"""Reading and replacing symbols in Python text."""

import pytest

from minillm.course.tool import source

TEXT = '''import os

__all__ = ["a", "b"]

# Why it is 1.
A = 1
B: int = 2  # two


@first
@second(
    1,
)
def f(x: int) -> int:
    """Doc.

    More.
    """

    # why
    return x  # trailing


class C:
    """Doc."""

    y = """not
    a docstring"""
'''


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("A", "# Why it is 1.", "A = 1"),
        ("B", "B: int = 2  # two", "B: int = 2  # two"),
        ("f", "@first", "    return x  # trailing"),
        ("C", "class C:", '    a docstring"""'),
    ],
)
def test_segments_take_comments_and_decorators(name, first, last):
    lines = source.segment(TEXT, name).text.splitlines()
    assert (lines[0], lines[-1]) == (first, last)


@pytest.mark.parametrize("name", ["A", "B", "f", "C"])
def test_replacing_a_segment_by_itself_changes_nothing(name):
    assert source.replace(TEXT, name, source.segment(TEXT, name).text) == TEXT
    bare = TEXT.rstrip("\n")
    assert source.replace(bare, name, source.segment(bare, name).text) == bare


def test_replace_leaves_everything_else():
    new = source.replace(TEXT, "f", "def f(x):\n    return 2 * x\n")
    assert new == TEXT.replace(source.segment(TEXT, "f").text, "def f(x):\n    return 2 * x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no top-level definition of 'f'"),
        ("if x:\n    def f(): ...", "no top-level definition"),
        ("def f(): ...\n\ndef f(): ...", r"defined 2 times \(lines 1, 3\)"),
        ("f = 1; g = 2", "shares a line"),
    ],
)
def test_symbols_that_cannot_be_found(text, message):
    with pytest.raises(LookupError, match=message):
        source.segment(text, "f")


def test_public_names():
    assert source.public_names(TEXT) == ["a", "b"]
    assert source.public_names("x = 1") == []


def test_code_lines_leave_out_docstrings_comments_and_blanks():
    # import, __all__, A, B, five lines of decorators, def, return; class, and y on two lines
    assert source.code_lines(TEXT) == 1 + 1 + 2 + 4 + 1 + 1 + 1 + 2
    assert source.code_lines("# only\n\n") == 0


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("def f(x):\n    return torch.sum(x) + y", {"torch", "y"}),
        ("def f(x: Tensor) -> Out: ...", {"Tensor", "Out"}),
        (
            "class C(Base):\n    a = b\n    def m(self):\n        return self.z + c",
            {"Base", "b", "c"},
        ),
        ("def f(n):\n    return f(n - 1) + len([i for i in range(n)])", set()),
        ("@cache\ndef f(x=default):\n    import os\n    return os, __name__", {"cache", "default"}),
        ("x = [a for a in b]", {"b"}),
        ("def f():\n    global g\n    g = h", {"h"}),
    ],
)
def test_free_names(text, free):
    assert source.free_names(text) == free


def test_free_names_without_annotations():
    text = "def f(x: A = d, *y: B, z: C) -> D:\n    w: E = x\n    return w"
    assert source.free_names(source.without_annotations(text)) == {"d"}


def test_names_that_imports_bind():
    text = "import os.path as p\nfrom a.b import c, d as e\nimport torch.nn\n"
    assert source.bound_names(text) == {"p", "c", "e", "torch"}
    assert source.imported_from(text) == {"c": "a.b", "e": "a.b"}
