"""The ledger: what the article claims, and what a notebook found.

The rows are data, in `data/ledger.json`. A notebook that settles a claim adds two fields to its
row: `outcome`, a sentence or two with the numbers that do not depend on the machine, and `section`,
where it was measured, such as `"05_kv_cache_decode.ipynb#Speed-up"` (the heading with hyphens for
spaces). Text may use `code` in backquotes.

Fields: `claim` (its number), `says` (the claim, in our words), `notebooks` (which ones settle it).
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.course.inline import inline_html

FILE = Path(__file__).resolve().parents[2] / "data" / "ledger.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One claim. Without an outcome, its notebooks are still to come."""

    claim: int
    says: str
    notebooks: Sequence[str]
    outcome: str = ""
    section: str = ""

    def to_come(self) -> str:
        """Which notebooks have not had their say: those after the one that settled the claim."""
        left = [name for name in self.notebooks if name > self.section[:2]]
        return f"notebook {' and '.join(left)}, to come" if left else ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Rows as a table; a notebook displays it."""

    rows: Sequence[Row]
    notebook: str = ""

    def __repr__(self) -> str:
        settled = sum(bool(row.outcome) for row in self.rows)
        return f"The ledger: {len(self.rows)} claims, {settled} settled so far."

    def _repr_html_(self) -> str:
        # JupyterLab aligns the cells of a table to the right.
        left = 'style="text-align:left;vertical-align:top"'
        titles = ("claim", "the article says", "found")
        head = "".join(f'<th scope="col" {left}>{title}</th>' for title in titles)
        body = "".join(
            f'<tr><th scope="row" {left}>{row.claim}</th><td {left}>{inline_html(row.says)}</td>'
            f"<td {left}>{self._found(row)}</td></tr>"
            for row in self.rows
        )
        return (
            f"<p>{self!r}</p><table style='max-width:60em'><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>"
        )

    def _found(self, row: Row) -> str:
        later = row.to_come()
        if not row.outcome:
            return later
        # A link within one notebook needs no file name.
        file, _, heading = row.section.partition("#")
        target = f"#{heading}" if self.notebook and file.startswith(self.notebook) else row.section
        link = f'<a href="{html.escape(target)}">{row.section[:2]}</a>'
        return f"{inline_html(row.outcome)} ({link}{'; ' if later else ''}{later})"


def ledger(notebook: str = "", *, all_rows: bool = False) -> Ledger:
    """The claims that a notebook settles, such as `ledger("03")`.

    Args:
        notebook: its number; without one, the claims of all notebooks.
        all_rows: all claims, with links as seen from that notebook.
    """
    rows = [Row(**fields) for fields in read()]
    kept = [row for row in rows if all_rows or not notebook or notebook in row.notebooks]
    return Ledger(kept, notebook)


def read() -> list[dict[str, Any]]:
    """The rows as they stand in the file."""
    rows: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return rows
