"""A JupyterLab server of its own, on a copy of the course, and a headless Chromium."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 60.0

SETTINGS = {
    # No look at the network for news or a newer JupyterLab.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "apputils-extension/themes": {"theme": "JupyterLab Light"},
    # Otherwise only the cells in view are in the page.
    "notebook-extension/tracker": {"windowingMode": "none"},
}

FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1200,1000",
    "--hide-scrollbars",
    # Nothing but the server of the test is asked for anything.
    "--no-proxy-server",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
)


def missing() -> str:
    """What the tests lack here, or an empty text."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "needs selenium: run `make test-browser`"
    if not any(map(shutil.which, CHROMIUM)):
        return "needs Chromium: run `make test-browser`"
    return "" if shutil.which("chromedriver") else "needs chromedriver: run `make test-browser`"


@dataclass(frozen=True)
class Server:
    """A running JupyterLab: where it listens, and the folder that it shows."""

    address: str
    token: str
    root: Path

    def url(self, notebook: str) -> str:
        """Where a notebook is opened, in JupyterLab's mode for one document."""
        return f"{self.address}/doc/tree/notebooks/{notebook}?token={self.token}"

    def ask(self, path: str, method: str = "GET") -> bytes:
        """A request to the server's own interface."""
        request = urllib.request.Request(f"{self.address}/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as reply:
            content: bytes = reply.read()
        return content

    def kernel_is_connected(self) -> bool:
        """Whether there is a kernel that waits for work from a page."""
        kernels = [session["kernel"] for session in json.loads(self.ask("api/sessions"))]
        return any(k["connections"] and k["execution_state"] == "idle" for k in kernels)

    def end_kernels(self) -> None:
        """Ends every session with its kernel: the next notebook may need its memory."""
        for session in json.loads(self.ask("api/sessions")):
            self.ask(f"api/sessions/{session['id']}", "DELETE")


def copy_of_the_course(folder: Path) -> Path:
    """notebooks/ and data/ as in a checkout; notebooks without outputs, so that all is of this run.

    The package itself is the one that runs the tests.
    """
    shutil.copytree(ROOT / "data", folder / "data")
    target = folder / "notebooks"
    target.mkdir()
    for path in sorted((ROOT / "notebooks").iterdir()):
        if path.suffix == ".ipynb":
            (target / path.name).write_text(json.dumps(emptied(path)), encoding="utf-8")
        elif path.is_file():
            shutil.copy(path, target)
    return folder


def emptied(path: Path) -> dict[str, object]:
    """A notebook without outputs and execution counts."""
    notebook: dict[str, list[dict[str, object]]] = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return dict(notebook)


@contextlib.contextmanager
def running_server(root: Path, own: Path) -> Iterator[Server]:
    """JupyterLab on `root`, with settings and state in `own` and nothing of the user's."""
    for name, content in SETTINGS.items():
        path = own / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", secrets.token_hex(16), root)
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *(f"--IdentityProvider.token={server.token}", f"--ServerApp.root_dir={root}"),
    ]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
        "JUPYTER_CONFIG_DIR": str(own / "config"),
        "JUPYTER_DATA_DIR": str(own / "data"),
        "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
        "IPYTHONDIR": str(own / "ipython"),
    }
    log = own / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
        try:
            _await(server, process, log)
            yield server
        finally:
            with contextlib.suppress(OSError, ValueError):
                server.end_kernels()
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            server.ask("api/status")
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


@contextlib.contextmanager
def running_chromium(own: Path) -> Iterator[Chrome]:
    """Chromium under its driver; both are named, so selenium looks for and downloads nothing."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(path for name in CHROMIUM if (path := shutil.which(name)))
    for flag in (*FLAGS, f"--user-data-dir={own / 'chromium'}"):
        options.add_argument(flag)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox refuses to run as root
    environment = {**os.environ, "SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    service = Service(
        shutil.which("chromedriver"), log_output=str(own / "chromedriver.log"), env=environment
    )
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()
