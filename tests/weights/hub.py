"""As much of the Hugging Face hub as a download needs, on this machine, with faults on demand."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REVISION = "0123456789abcdef0123456789abcdef01234567"
# Files that the hub keeps in its large-file storage, under their SHA-256.
LARGE = (".safetensors", ".gguf", ".bin")


class Hub:
    """Repositories as name -> file name -> content, and what was asked of them.

    `fault` is one of "gated", "cut" (half of each weight file, then the connection breaks),
    "flip" (right size, wrong content) or None.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.revision = REVISION
        self.fault: str | None = None
        self.requests: list[str] = []
        self.url = ""

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
