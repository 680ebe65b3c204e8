"""As much of the Hugging Face hub as a download needs, on this machine, with faults on demand."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

REVISION = "0123456789abcdef0123456789abcdef01234567"
# Files that the hub keeps in its large-file storage, under their SHA-256.
LARGE = (".safetensors", ".gguf", ".bin")


# Pulls what it is asked for, line by line: importing the libraries takes longer than a pull.
WORKER = """
import contextlib, io, json, os, sys
from minillm.weights.pull import pull
for line in sys.stdin:
    asked = json.loads(line)
    os.environ["MINILLM_HOME"] = asked.pop("home")
    out, err, error = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            pull(**asked)
        except Exception as failure:
            error = [type(failure).__name__, str(failure)]
    print(json.dumps([out.getvalue(), err.getvalue(), error]), flush=True)
"""


class Pulled(NamedTuple):
    """What another process printed; the type and text of the error, if there was one."""

    out: str
    err: str
    error: list[str] | None


class Puller:
    """Another process that pulls: huggingface_hub reads its settings when it is imported."""

    def __init__(self, url: str, hf_home: str, **environment: str) -> None:
        local = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        settings = {"HF_ENDPOINT": url, "HF_HOME": hf_home, **local, **environment}
        not_ours = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS")
        kept = {name: value for name, value in os.environ.items() if name not in not_ours}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", WORKER]
        self.process = subprocess.Popen(command, text=True, env=kept | settings, **pipes)

    def __call__(self, name: str, *, quiet: bool = True, verify: bool = False) -> Pulled:
        """`pull` into the MINILLM_HOME of this process."""
        asked = {"name": name, "quiet": quiet, "verify": verify}
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(asked | {"home": os.environ["MINILLM_HOME"]}) + "\n")
        self.process.stdin.flush()
        return Pulled(*json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


class Hub:
    """Repositories as name -> file name -> content, and what was asked of them.

    `fault` is one of "gated", "cut" (half of each weight file, then the connection breaks),
    "flip" (right size, wrong content) or None.
    """

    def __init__(self) -> None:
        self.url = ""
        self.reset()

    def reset(self) -> None:
        """Empty, without fault."""
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.revision = REVISION
        self.fault: str | None = None
        self.requests: list[str] = []

    def downloads(self) -> list[str]:
        """Names of the files whose content was asked for."""
        paths = [line.split()[1] for line in self.requests if line.startswith("GET")]
        return sorted(path.rsplit("/", 1)[-1] for path in paths if "/resolve/" in path)


def _entry(name: str, content: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry: dict[str, Any] = {"size": len(content)}
    if name.endswith(LARGE):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 130}
    return entry | {"rfilename": name, "path": name, "type": "file", "oid": blob, "blobId": blob}


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub on a free port of 127.0.0.1."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            hub.requests.append(self.requestline)
            path = self.path.split("?")[0]
            api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/\w+|/tree/\w+)?", path)
            file = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{hub.revision}/(.+)", path)
            found = api or file
            repository = hub.repositories.get(found[1]) if found else None
            if repository is None:
                self.reply(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
            elif api:
                entries = [_entry(*item) for item in repository.items()]
                answer: Any = {"id": api[1], "sha": hub.revision, "siblings": entries}
                answer["cardData"] = {"license": "mit"}
                tree = (api[2] or "").startswith("/tree")
                self.reply(200, json.dumps(entries if tree else answer).encode(), body)
            elif file and file[2] in repository:
                self.send_file(file[2], repository[file[2]], body)

        def send_file(self, name: str, content: bytes, body: bool) -> None:
            if hub.fault == "gated":
                self.reply(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
                return
            headers = {"X-Repo-Commit": hub.revision, "Accept-Ranges": "bytes"}
            entry = _entry(name, content)
            headers["ETag"] = f'"{entry.get("lfs", entry)["oid"]}"'
            weights = name.endswith(LARGE)
            if weights and hub.fault == "flip":
                content = content[:-1] + bytes([content[-1] ^ 1])
            if weights and hub.fault == "cut" and body:
                self.send_head(200, len(content), headers)
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
                return
            status = 200
            if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                first, last = int(asked[1]), int(asked[2] or len(content) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                content, status = content[first : last + 1], 206
            self.reply(status, content, body, headers)

        def reply(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            self.send_head(status, len(content), headers or {})
            if body:
                self.wfile.write(content)

        def send_head(self, status: int, length: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(length), **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
