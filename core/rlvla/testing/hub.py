"""A model hub on loopback, with as much of its protocol as downloading a snapshot needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves one repository from a folder; keeps what was asked.

    Args:
        folder: its files.
        name: ``org/name``.
        revision: a branch or tag beside ``main``.
    """

    daemon_threads = True

    def __init__(self, folder: Path, name: str, revision: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.name, self.revisions = folder, name, {"main", revision, COMMIT}
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path, and the ``Range`` asked for."""
        self.break_off: set[str] = set()
        """Files whose next download ends in the middle."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def downloads(self) -> list[str]:
        """Return files that were downloaded, in order."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


@contextmanager
def fake_hub(folder: Path, name: str, revision: str) -> Iterator[FakeHub]:
    """Serve a folder for a while."""
    server = FakeHub(folder, name, revision)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append((self.command, path, self.headers.get("Range")))
        api, files = f"/api/models/{hub.name}/", f"/{hub.name}/resolve/"
        if path.startswith((f"{api}revision/", f"{api}tree/")):
            self._repository(path.removeprefix(api))
        elif path.startswith(files):
            revision, _, name = path.removeprefix(files).partition("/")
            self._file(revision, name, body)
        else:
            self._error("RepoNotFound", "no such repository")

    def _repository(self, path: str) -> None:
        kind, _, revision = path.partition("/")
        if revision.strip("/") not in self.server.revisions:
            return self._error("RevisionNotFound", "no such revision")
        folder = self.server.folder
        names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        if kind == "tree":
            data: object = [{"type": "file", "path": one, "size": self._size(one), "oid": "0" * 40} for one in names]
        else:
            siblings = [{"rfilename": one} for one in names]
            data = {"id": self.server.name, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
        self._send(200, json.dumps(data).encode(), {"Content-Type": "application/json"})
        return None

    def _size(self, name: str) -> int:
        return (self.server.folder / name).stat().st_size

    def _file(self, revision: str, name: str, body: bool) -> None:
        file = self.server.folder / name
        if revision not in self.server.revisions or not file.is_file():
            return self._error("EntryNotFound", "no such file")
        content = file.read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        asked, status, first = self.headers.get("Range"), 200, 0
        if asked is not None:
            status, first = 206, int(asked.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        if body and name in self.server.break_off:
            self.server.break_off.discard(name)
            return self._send(status, content[first:], headers, cut=(len(content) - first) // 2)
        return self._send(status, content[first:], headers, cut=None if body else 0)

    def _error(self, code: str, text: str) -> None:
        self._send(404, text.encode(), {"X-Error-Code": code, "X-Error-Message": text})

    def _send(self, status: int, content: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:cut])
        if cut:
            self.close_connection = True
