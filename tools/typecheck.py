"""mypy over the package, the tests, the tools and the notebooks, in one run.

    python tools/typecheck.py

Each notebook is written out as a module in build/notebook_types/, and what mypy says about that
module is shown with the notebook's name, cell and line. Left out are magics and definition cells:
their text is the package's text, which is checked where it stands, and the cell after each imports
the name from there.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPORTS = Path("build", "notebook_types")
PRELUDE = ["from IPython.display import display"]  # a notebook has it without an import

Origin = tuple[str, int, int]  # notebook, cell and its line, both counted from 1


def export(notebook: Path) -> tuple[str, list[Origin]]:
    """The code of a notebook as one module, and for each of its lines where it came from."""
    name = notebook.name
    lines, origins = list(PRELUDE), [(name, 0, 0)] * len(PRELUDE)
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    for number, cell in enumerate(cells, start=1):
        if cell["cell_type"] != "code" or "source" in cell["metadata"].get("minillm", {}):
            continue
        text = "".join(cell["source"])
        if text.lstrip().startswith("%%"):
            continue
        for line_number, line in enumerate(text.splitlines(), start=1):
            magic = line.lstrip().startswith(("%", "!"))
            lines.append("# " + line if magic else line)
            origins.append((name, number, line_number))
    return "\n".join(lines) + "\n", origins


def module_path(notebook: Path) -> Path:
    """Where a notebook's export goes; a module name may not begin with a digit."""
    return EXPORTS / f"nb_{re.sub(r'[^0-9A-Za-z_]', '_', notebook.stem)}.py"


def translate(line: str, origins: dict[str, list[Origin]]) -> str:
    """One line of mypy's output, with notebook, cell and line instead of the export's line."""
    found = re.match(r"(.+?\.py):(\d+)(?=:)", line)
    if not found or found[1] not in origins:
        return line
    notebook, cell, number = origins[found[1]][int(found[2]) - 1]
    return f"notebooks/{notebook}, cell {cell}, line {number}{line[found.end() :]}"


def main() -> int:
    """Run mypy; its exit code."""
    (ROOT / EXPORTS).mkdir(parents=True, exist_ok=True)
    for old in (ROOT / EXPORTS).glob("nb_*.py"):
        old.unlink()
    origins: dict[str, list[Origin]] = {}
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        path = module_path(notebook)
        text, origins[path.as_posix()] = export(notebook)
        (ROOT / path).write_text(text, "utf-8")
    command = [sys.executable, "-m", "mypy", "minillm", "tests", "tools", *origins]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        print(translate(line.replace("\\", "/"), origins))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
