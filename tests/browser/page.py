"""One notebook open in JupyterLab: what a reader does to it, and what a reader sees."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.browser.server import Server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

Result = TypeVar("Result")
RUN_SECONDS = 600.0  # generous: it ends sooner where something is wrong
SLICE = 3000  # pixels of one picture's height

# How many cells' prompts show a number, how many a star, how many there are (a folded cell shows no
# prompt), what the kernel does, and whether a widget is still to come.
PROGRESS = r"""
const prompts = [...document.querySelectorAll('.jp-CodeCell')]
  .filter(cell => !cell.querySelector('.jp-InputPlaceholder') &&
    cell.querySelector('.jp-InputArea-editor').textContent.trim())
  .map(cell => cell.querySelector('.jp-InputPrompt').textContent);
return {
  run: prompts.filter(text => /\d/.test(text)).length,
  all: prompts.length,
  status: document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status,
  queued: prompts.filter(text => text.includes('*')).length,
  waiting: /Loading widget/.test(document.querySelector(".jp-Notebook")?.innerText),
}"""


@dataclass(frozen=True)
class Control:
    """Something in a widget that takes the focus."""

    kind: str
    element: WebElement
    output: WebElement  # the output area that the widget fills
    cell: int  # counted from 1, as everywhere


class Page:
    """A notebook in the browser."""

    def __init__(self, driver: Chrome, server: Server, notebook: str) -> None:
        self.driver, self.server, self.notebook = driver, server, notebook
        self.driver.get(server.url(notebook))
        stored = (server.root / "notebooks" / notebook).read_text(encoding="utf-8")
        cells = len(json.loads(stored)["cells"])
        selector = ".jp-Notebook .jp-Cell"
        self.until(lambda: self.count(selector) == cells, f"not {cells} cells in the page")
        # The page calls a notebook idle that has no kernel yet.
        self.until(
            lambda: server.kernel_is_connected() and self.progress()["status"] == "idle",
            "no kernel started",
        )

    # Looking ----------------------------------------------------------------------------------

    def script(self, text: str, *arguments: object) -> Any:
        """Runs JavaScript in the page and returns its result."""
        return self.driver.execute_script(text, *arguments)

    def count(self, selector: str) -> int:
        """How many elements match."""
        return int(self.script("return document.querySelectorAll(arguments[0]).length", selector))

    def elements(self, selector: str) -> list[WebElement]:
        """The elements that match."""
        found: list[WebElement] = self.script(
            "return [...document.querySelectorAll(arguments[0])]", selector
        )
        return found

    def text(self) -> str:
        """All that the notebook shows."""
        return str(self.script("return document.querySelector('.jp-Notebook').innerText"))

    def progress(self) -> dict[str, Any]:
        """See PROGRESS."""
        found: dict[str, Any] = self.script(PROGRESS)
        return found

    def until(self, condition: Callable[[], Result], problem: str, seconds: float = 60.0) -> Result:
        """Waits for a condition, and returns what it gave."""
        from selenium.common.exceptions import TimeoutException
        from selenium.webdriver.support.wait import WebDriverWait

        try:
            waiting = WebDriverWait(self.driver, seconds, poll_frequency=0.1)
            result: Result = waiting.until(lambda _: condition())
        except TimeoutException:
            dialog = self.script("return document.querySelector('.jp-Dialog')?.innerText")
            raise AssertionError(
                f"{self.notebook}: {problem} in {seconds:.0f} s; {self.progress()}, {dialog=}"
            ) from None
        return result

    # Doing ------------------------------------------------------------------------------------

    def menu(self, *path: str) -> None:
        """Clicks through the menu bar: menu("Run", "Run All Cells")."""
        names = [f".lm-MenuBar-item|{path[0]}", *(f".lm-Menu-item|{name}" for name in path[1:])]
        for name in names:
            selector, _, label = name.partition("|")

            def find(selector: str = selector, label: str = label) -> WebElement | None:
                found: WebElement | None = self.script(
                    "return [...document.querySelectorAll(arguments[0])].find(item => "
                    "item.querySelector('[class$=itemLabel]')?.textContent === arguments[1])",
                    selector,
                    label,
                )
                return found

            element = self.until(find, f"no menu item {label!r}")
            assert element is not None
            element.click()

    def run_all(self, seconds: float = RUN_SECONDS) -> None:
        """Run, Run All Cells; returns when all have run and the kernel is idle, or one failed."""
        self.menu("Run", "Run All Cells")

        def done() -> Any:
            now = self.progress()
            # A cell that fails takes those after it out of the queue.
            return now["status"] == "idle" and not (now["queued"] or now["waiting"]) and now["run"]

        self.until(done, "Run All did not end", seconds)

    def saved(self) -> dict[str, Any]:
        """Saves, and returns the notebook that the file then holds."""
        path = self.server.root / "notebooks" / self.notebook
        before = path.stat().st_mtime_ns
        self.menu("File", "Save Notebook")
        self.until(lambda: path.stat().st_mtime_ns > before, "was not saved")

        def read() -> dict[str, Any] | None:
            try:
                notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            except json.JSONDecodeError:  # in the middle of being written
                return None
            return notebook

        notebook = self.until(read, "the saved file cannot be read")
        assert notebook is not None
        return notebook

    def theme(self, name: str) -> None:
        """Changes to JupyterLab's "Light" or "Dark" theme through the menu."""
        light = "true" if name == "Light" else "false"
        if self.script("return document.body.dataset.jpThemeLight") != light:
            self.menu("Settings", "Theme", f"JupyterLab {name}")
            self.until(
                lambda: self.script("return document.body.dataset.jpThemeLight") == light,
                f"the theme did not change to {name}",
            )

    def pictures(self, folder: Path, prefix: str) -> list[Path]:
        """Takes pictures of the whole notebook, from top to bottom."""
        width = 1200
        # JupyterLab keeps the selected cell in view, and Run All has left the last one selected.
        self.elements(".jp-Notebook .jp-Cell .jp-InputPrompt")[0].click()
        height = self.script(
            "return Math.ceil(document.querySelector('.jp-WindowedPanel-outer').scrollHeight)"
        )
        total = int(height) + 200  # the menu bar and the toolbar
        self._size(width, total)
        self.until(
            lambda: (
                self.script("return innerHeight") == total
                and self.script(
                    "const panel = document.querySelector('.jp-WindowedPanel-outer');"
                    "return panel.clientHeight >= arguments[0]",
                    height,
                )
            ),
            "the window did not grow",
        )
        paths = []
        for part in range(math.ceil(total / SLICE)):
            top = part * SLICE
            clip = {"x": 0, "y": top, "width": width, "height": min(SLICE, total - top), "scale": 1}
            taken = self.driver.execute_cdp_cmd(
                "Page.captureScreenshot", {"format": "png", "clip": clip}
            )
            paths.append(folder / f"{prefix}_{part}.png")
            paths[-1].write_bytes(base64.b64decode(taken["data"]))
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        return paths

    def _size(self, width: int, height: int) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
