"""What `make test-browser` needs beside `make setup`: Chromium, its driver, and selenium.

    .venv/bin/python tools/browser.py

On Debian and its relatives missing packages are installed with apt-get (through sudo where this is
not root); elsewhere it says what to install. A second run finds everything in place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRIVER = "chromedriver"
FONTS = ("fonts-dejavu-core", "fonts-noto-cjk")  # the notebooks have Chinese terms
PACKAGES = {"chromium": BROWSERS, "chromium-driver": (DRIVER,)}


class MissingError(Exception):
    """What the user has to install; shown as one line."""


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    print(f"minillm browser: {text}", file=sys.stderr, flush=True)


def missing_packages() -> list[str]:
    """Debian's names of the programs that are not on the PATH."""
    return [name for name, programs in PACKAGES.items() if not any(map(shutil.which, programs))]


def apt_commands(packages: list[str]) -> list[list[str]]:
    """The commands that install packages, through sudo where this user is not root.

    Raises:
        MissingError: no apt-get here, or neither root nor sudo.
    """
    named = " and ".join(packages)
    if shutil.which("apt-get") is None:
        raise MissingError(
            f"{named}: not here, and no apt-get to install them with. Install Chromium (or "
            "Chrome) and the chromedriver of the same version, and put both on the PATH"
        )
    prefix: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise MissingError(
                f"{named}: not here; as root run: apt-get install {' '.join(packages)}"
            )
        prefix = ["sudo"]
    options = ["-y", "--no-install-recommends"]
    return [
        [*prefix, "apt-get", "update", "-qq"],
        [*prefix, "apt-get", "install", "-qq", *options, *packages, *FONTS],
    ]


def run(command: list[str]) -> None:
    """Run a command with its output on stderr."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr).returncode:
        raise MissingError(f"this command failed: {' '.join(command)}")


def main() -> int:
    """Install what is missing; 0 when everything is in place."""
    try:
        if packages := missing_packages():
            commands = apt_commands(packages)
            say(f"installing {' and '.join(packages)}")
            for command in commands:
                run(command)
        if find_spec("selenium") is None:
            say("installing selenium")
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "-c", "constraints.txt"]
            run([*pip, "--no-build-isolation", "-e", ".[browser]"])
    except MissingError as error:
        print(f"minillm browser: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
