"""Take the README's picture: `minillm.course.chat()` in JupyterLab while an answer arrives.

    .venv/bin/python tools/screenshot.py              # writes docs/streaming.png
    .venv/bin/python tools/screenshot.py OTHER.png

Needs the model, Chromium with its driver, and selenium: `make test-browser` installs them. The
figures in the picture are those of the machine that takes it, so nothing else should run there.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that `tests` can be imported

from minillm.course.tool import notebook as nb
from tests.browser import server as lab
from tests.browser.page import Page
from tests.browser.talk import Talk

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "streaming.png"
NAME = "streaming.ipynb"
CELLS = ("from minillm.course import chat\n\nchat()",)
QUESTIONS = ("What is gravity?", "Write a short story about a lighthouse.")
SEED = "0"  # the same answers each time, on one backend
WORDS = 60  # of the last answer, when the picture is taken
WIDTH, HEIGHT = 1200, 1400  # the page; the picture ends below the chat


def main() -> int:
    """Run JupyterLab on a notebook of its own, talk, and take the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("picture", nargs="?", type=Path, default=PICTURE)
    picture: Path = parser.parse_args().picture
    if reason := lab.missing():
        print(f"minillm screenshot: error: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        own, root = Path(folder, "own"), Path(folder, "root")
        own.mkdir()
        write_notebook(root / "notebooks")
        with lab.running_server(root, own) as server, lab.running_chromium(own) as driver:
            driver.set_window_size(WIDTH, HEIGHT)
            page = Page(driver, server, NAME)
            page.run_all()
            talk_until_the_last_answer_arrives(Talk(page))
            taken = photograph(page)
    picture.parent.mkdir(exist_ok=True)
    picture.write_bytes(taken)
    print(f"{picture}: {len(taken):,} bytes")
    return 0


def write_notebook(folder: Path) -> None:
    """One cell: the chat."""
    folder.mkdir(parents=True)
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": nb.KERNEL})
    (folder / NAME).write_text(json.dumps(notebook), encoding="utf-8")


def talk_until_the_last_answer_arrives(talk: Talk) -> None:
    """Ask all questions; the last one's answer is being written when this returns."""
    talk.fill("Seed", SEED)
    for question in QUESTIONS[:-1]:
        talk.send(question)
        talk.wait_for_end()
    talk.send(QUESTIONS[-1])
    talk.wait_for_words(WORDS)


def photograph(page: Page) -> bytes:
    """The page from its top to a little below the chat, as PNG."""
    bottom = page.script(
        "return document.querySelector('.minillm-chat').getBoundingClientRect().bottom"
    )
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": int(bottom) + 36, "scale": 1}
    taken = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    sys.exit(main())
