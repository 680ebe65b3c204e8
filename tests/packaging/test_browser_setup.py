"""tools/browser.py: what `make test-browser` decides, without installing anything."""

import os

import pytest

from tools import browser


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """Makes the PATH hold these programs and no others."""

    def only(*names: str, uid: int = 0) -> None:
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(os, "geteuid", lambda: uid, raising=False)

    return only


def test_nothing_is_missing(programs):
    programs("google-chrome", "chromedriver")
    assert browser.missing_packages() == []


def test_root_installs_only_what_is_missing(programs):
    programs("chromium", "apt-get")
    assert browser.missing_packages() == ["chromium-driver"]
    update, install = browser.apt_commands(["chromium-driver"])
    assert update[:2] == ["apt-get", "update"]
    assert "chromium-driver" in install
    assert "chromium" not in install
    assert "-y" in install


def test_others_go_through_sudo(programs):
    programs("apt-get", "sudo", uid=1000)
    assert all(command[0] == "sudo" for command in browser.apt_commands(["chromium"]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("apt-get",), "as root run: apt-get install chromium chromium-driver"),
        ((), "no apt-get to install them with"),
    ],
)
def test_what_it_cannot_do_it_says(programs, names, message):
    programs(*names, uid=1000)
    with pytest.raises(browser.MissingError, match=message):
        browser.apt_commands(browser.missing_packages())


def test_an_error_takes_one_line(programs, capsys):
    programs()
    assert browser.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minillm browser: error: chromium and chromium-driver: not here")
