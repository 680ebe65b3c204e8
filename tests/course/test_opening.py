"""File pages leave the process, and what was read or written stays right."""

import mmap
import re
import sys
from pathlib import Path

import pytest

from minillm.course.opening import let_go

SIZE = 8 * 2**20


@pytest.fixture
def content(tmp_path):
    """A file of some megabytes, mapped as the weights of a model are, and all of it read."""
    path = tmp_path / "weights of a model"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) == 0
        yield path, pages


def resident(path: Path) -> int:
    """Bytes of the file's pages in this process, by the system's own account."""
    maps = re.split(
        r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE
    )
    ours = [part for part in maps if part.partition("\n")[0].endswith(f" {path}")]
    assert ours
    return sum(
        1024 * int(size)
        for part in ours
        for size in re.findall(r"^Rss: +(\d+)", part, re.MULTILINE)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
def test_pages_leave_and_come_back(content):
    path, pages = content
    assert resident(path) == SIZE
    let_go(path.with_name("another file"))
    assert resident(path) == SIZE
    let_go(path)
    assert resident(path) == 0
    assert pages[:] == path.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
def test_a_map_that_was_written_to_stays(content):
    path, pages = content
    pages[SIZE // 2] = 77
    let_go(path)
    assert resident(path) > 0
    assert pages[SIZE // 2] == 77


def test_a_system_without_such_an_account(monkeypatch, content):
    def missing(*_, **__):
        raise FileNotFoundError

    path, pages = content
    monkeypatch.setattr(Path, "read_text", missing)
    let_go(path)
    assert pages[255] == 255
