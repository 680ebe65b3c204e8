"""Reads notebooks, finds their definition cells and writes them in one normal form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.course.tool.project import write_atomic

Cell = dict[str, Any]
Notebook = dict[str, Any]

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT_CELL_METADATA = ("minillm", "tags", "jupyter", "slideshow", "editable", "deletable")
WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True, slots=True)
class Definition:
    """A cell whose text is the package's: `metadata.minillm.source` is `path::symbol`."""

    index: int
    module: str
    symbol: str
    text: str

    @property
    def source(self) -> str:
        """As in the metadata."""
        return f"{self.module}::{self.symbol}"

    @property
    def title(self) -> str:
        """What the last Markdown line above the cell says."""
        return f"{self.module} · {self.symbol}"

    @property
    def import_name(self) -> str:
        """`minillm.layers.attention` for `minillm/layers/attention.py`."""
        return self.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def read(path: Path) -> Notebook:
    """Reads a notebook; every cell's and output's text becomes one string.

    Raises:
        ValueError: the file is not a version 4 notebook.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a notebook: {error}") from error
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        raise ValueError(f"{path}: not a version 4 notebook")
    for cell in notebook.setdefault("cells", []):
        cell["source"] = _joined(cell.get("source", ""))
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
            for mime, data in output.get("data", {}).items():
                if not mime.endswith("json"):
                    output["data"][mime] = _joined(data)
    return notebook


def dump(notebook: Notebook) -> str:
    """The notebook as JSON text that compares well: sorted keys, one line per line of text."""
    copy = json.loads(json.dumps(notebook))
    for cell in copy["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
            for mime, data in output.get("data", {}).items():
                if isinstance(data, str) and not mime.startswith("image/"):
                    output["data"][mime] = data.splitlines(keepends=True)
    return json.dumps(copy, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def write(path: Path, notebook: Notebook) -> bool:
    """Writes the notebook where its text differs from the file's; says whether it did."""
    text = dump(notebook)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_atomic(path, text)
    return True


def clean(notebook: Notebook) -> Notebook:
    """The notebook in its normal form: stable ids, no volatile metadata, normal outputs."""
    kept = {"minillm": notebook.get("metadata", {}).get("minillm")}
    notebook["metadata"] = {
        "kernelspec": dict(KERNEL),
        "language_info": {"name": "python"},
        **{key: value for key, value in kept.items() if value},
    }
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    seen: set[str] = set()
    for index, cell in enumerate(notebook["cells"]):
        cell["id"] = _cell_id(cell, index, seen)
        metadata = cell.get("metadata", {})
        cell["metadata"] = {k: metadata[k] for k in KEPT_CELL_METADATA if metadata.get(k)}
        # JupyterLab records what the reader folded; only a folded solution is ours.
        jupyter = {k: v for k, v in metadata.get("jupyter", {}).items() if k == "source_hidden"}
        cell["metadata"].pop("jupyter", None)
        if jupyter.get("source_hidden"):
            cell["metadata"]["jupyter"] = jupyter
        if cell["cell_type"] == "code":
            cell.setdefault("execution_count", None)
            cell["outputs"] = [_clean_output(output) for output in cell.get("outputs", [])]
        else:
            cell.pop("outputs", None)
            cell.pop("execution_count", None)
            if not cell.get("attachments"):
                cell.pop("attachments", None)
    return notebook


def code_cells(notebook: Notebook) -> list[tuple[int, Cell]]:
    """The code cells that hold something, with their index among all cells."""
    return [
        (index, cell)
        for index, cell in enumerate(notebook["cells"])
        if cell["cell_type"] == "code" and cell["source"].strip()
    ]


def definitions(notebook: Notebook) -> Iterator[Definition]:
    """The definition cells, in order.

    Raises:
        ValueError: a `source` that is not `minillm/….py::symbol`.
    """
    for index, cell in enumerate(notebook["cells"]):
        source = cell.get("metadata", {}).get("minillm", {}).get("source")
        if source is None:
            continue
        match = re.fullmatch(r"(minillm/[\w/]+\.py)::(\w+)", str(source))
        if cell["cell_type"] != "code" or match is None:
            raise ValueError(
                f"cell {index + 1}: source {source!r} must be 'minillm/folder/module.py::symbol', "
                "on a code cell"
            )
        yield Definition(index, match[1], match[2], cell["source"])


def code_hash(notebook: Notebook) -> str:
    """A short hash of all code, which `run` stores so that changed notebooks are found."""
    text = "\0".join(cell["source"] for _, cell in code_cells(notebook))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _cell_id(cell: Cell, index: int, seen: set[str]) -> str:
    """The cell's own id, or one made from its text, so that `clean` twice gives the same."""
    name = str(cell.get("id", ""))
    if not re.fullmatch(r"[\w-]{1,64}", name) or name in seen:
        text = f"{index}\0{cell['cell_type']}\0{cell['source']}"
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        while name in seen:
            name = hashlib.sha256(name.encode()).hexdigest()[:8]
    seen.add(name)
    return name


def _clean_output(output: dict[str, Any]) -> dict[str, Any]:
    """Takes out what differs from run to run and carries no meaning."""
    if "text" in output:
        output["text"] = _stable(output["text"])
    data = output.get("data", {})
    for mime, content in data.items():
        if mime.startswith("text/"):
            data[mime] = _stable(content)
    # A stored widget has no model to show; its static form stands beside it.
    if WIDGET in data and len(data) > 1:
        del data[WIDGET]
    return output


def _stable(text: str) -> str:
    text = re.sub(r"\bat 0x[0-9a-fA-F]+", "at 0x0", text)
    return re.sub(r"ipykernel_\d+/\d+\.py", "ipykernel_0/0.py", text)
