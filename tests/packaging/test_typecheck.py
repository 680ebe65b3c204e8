"""tools/typecheck.py: notebooks become modules, and messages point back into the notebooks."""

import json
from pathlib import Path
from typing import Any

from tools import typecheck


def cell(kind: str, source: str, **metadata: Any) -> dict[str, Any]:
    return {"cell_type": kind, "source": source.splitlines(keepends=True), "metadata": metadata}


def test_messages_point_into_the_notebook(tmp_path: Path) -> None:
    notebook = tmp_path / "01_some-thing.ipynb"
    cells = [
        cell("markdown", "# Title"),
        cell("code", "%matplotlib inline\nx: int = 'one'"),
        cell("code", "def f(): ...", minillm={"source": "minillm/a.py::f"}),
        cell("code", "%%bash\nls"),
        cell("code", "from minillm.a import f\n\ny: str = 2\n", tags=["solution"]),
    ]
    notebook.write_text(json.dumps({"cells": cells}))
    text, origins = typecheck.export(notebook)
    lines = text.splitlines()
    assert len(lines) == len(origins)
    assert "def f" not in text  # checked in the package
    assert "ls" not in lines
    assert lines[1] == "# %matplotlib inline"
    compile(text, "export", "exec")
    path = typecheck.module_path(notebook).as_posix()
    assert path == "build/notebook_types/nb_01_some_thing.py"
    assert origins[lines.index("y: str = 2")] == (notebook.name, 5, 3)
    message = f"{path}:{lines.index('y: str = 2') + 1}: error: Incompatible types  [assignment]"
    expected = f"notebooks/{notebook.name}, cell 5, line 3: error: Incompatible types  [assignment]"
    assert typecheck.translate(message, {path: origins}) == expected


def test_other_messages_stay_as_they_are() -> None:
    for line in ("minillm/llm.py:3: error: x  [misc]", "Success: no issues found", ""):
        assert typecheck.translate(line, {}) == line
