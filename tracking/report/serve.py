"""Serves one page on this host's loopback interface, to whoever knows its address.

The address has a random path, as other users of the host can connect to any of its ports. A request is answered only
when it was sent to that address: a foreign name that leads here (DNS rebinding) is refused by its Host header.
Nothing of a file system can be asked for: there are two paths, the page's and its version's.
"""

import json
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOOPBACK = "127.0.0.1"
SECONDS = 10.0  # that a request may take to arrive
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageServer(ThreadingHTTPServer):
    """Serves from when `serve_forever` is called. `address`: of the page."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, port: int, version: Callable[[], str], page: Callable[[str], str]) -> None:
        """`port`: 0 for any. `version`: of what there is now; `page`: the page of that version. Both may raise, with
        what the reader is told. Raises OSError where the port is taken.
        """
        super().__init__((LOOPBACK, port), _Handler)
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self.version, self._page, self._kept = version, page, ("", b"")
        self._mutex = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}{self.path}"

    def page(self) -> bytes:
        """Returns the page of the current version. Each version's page is made once."""
        with self._mutex:
            now = self.version()
            if self._kept[0] != now:
                self._kept = now, self._page(now).encode()
            return self._kept[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up in the middle is no error."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SECONDS
    server: PageServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "paceline", ""

    def do_GET(self) -> None:
        if self.headers.get_all("Host", []) not in ([f"{name}:{self.server.server_port}"] for name in _NAMES):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"this is the report of a paceline on another address\n")
            return
        path = self.path.encode()
        for asked, kind, content in (
            (self.server.path, "text/html", self.server.page),
            (f"{self.server.path}state", "application/json", self._state),
        ):
            if secrets.compare_digest(path, asked.encode()):
                try:
                    self._answer(HTTPStatus.OK, content(), kind)
                except Exception as error:  # the next request may find what this one did not
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
                return
        self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here\n")

    def _state(self) -> bytes:
        return json.dumps({"version": self.server.version()}).encode()

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        told = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in told.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


_NAMES = (LOOPBACK, "localhost")
