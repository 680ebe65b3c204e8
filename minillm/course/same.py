"""Tells a reader when the package's version of a symbol is not the one in the cell above."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

from minillm.course.tool.notebook import definitions, read
from minillm.course.tool.source import segment

_ROOT = Path(__file__).resolve().parents[2]


def same_as_cell(symbol: Any) -> None:
    """Says whether the imported `symbol` is what the last cell that defined it says.

    Prints nothing when both agree. When they differ, prints that the package's version is used from
    here on, with the command that builds the cell's version into the package.

    Args:
        symbol: the function or class just imported from `minillm`; for a constant its source, such
            as `"minillm/tokenizer/pretokenize.py::GPT2_SPLIT"`.
    """
    shell = _shell()
    if shell is None:
        return
    file, name = _source(symbol)
    package = segment(file.read_text(encoding="utf-8"), name).text
    cell = _last_definition(shell, name)
    if cell is None:
        return
    source = f"{file.relative_to(_ROOT).as_posix()}::{name}"
    if cell != package:
        print(
            f"Your cell's `{name}` differs from the package's, which is used from here on.\n"
            "To build yours into the package: save the notebook, run\n"
            f"    python -m minillm.course build {_notebook_of(source)}\n"
            "in the repository's root, and restart the kernel."
        )
    elif _is_stale(file):
        print(
            f"The package's `{name}` is what your cell says now, but its file changed after this "
            "kernel started:\nrestart the kernel to use it."
        )


def _shell() -> Any:
    # A terminal without IPython has no cells to compare with.
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def _source(symbol: Any) -> tuple[Path, str]:
    if isinstance(symbol, str):
        path, _, name = symbol.partition("::")
        return _ROOT / path, name
    # Not inspect.getsourcefile: it knows nothing of a function under functools.cache.
    module = sys.modules.get(str(getattr(symbol, "__module__", None)))
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).resolve().is_relative_to(_ROOT / "minillm"):
        raise TypeError(
            "same_as_cell takes a function or class of minillm, or a source such as "
            f"'minillm/ops.py::NAME', not {symbol!r}"
        )
    return Path(file).resolve(), str(symbol.__name__)


def _last_definition(shell: Any, name: str) -> str | None:
    """The text that last defined the name in a cell that this kernel ran."""
    cells = [cell for cell in shell.user_ns.get("In", []) if cell]
    if not cells:
        # nbval runs cells without history; the lines kept for tracebacks are then the only record.
        entries = [e for file, e in linecache.cache.items() if "ipykernel" in file and len(e) == 4]
        cells = ["".join(entry[2]) for entry in entries]
    for cell in reversed(cells):
        try:
            return segment(shell.transform_cell(cell), name).text
        except (LookupError, SyntaxError):
            continue
    return None


def _notebook_of(source: str) -> str:
    for path in sorted((_ROOT / "notebooks").glob("*.ipynb")):
        try:
            if any(cell.source == source for cell in definitions(read(path))):
                return f"notebooks/{path.name}"
        except ValueError:
            continue
    return "notebooks/NOTEBOOK.ipynb"


def _is_stale(file: Path) -> bool:
    try:
        import psutil
    except ImportError:
        return False
    return file.stat().st_mtime > float(psutil.Process().create_time())
