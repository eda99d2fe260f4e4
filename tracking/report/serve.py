"""Serves pages on this host's loopback interface, to whoever knows their address.

The address has a random path, as other users of the host can connect to any of its ports. A request is answered only
when it was sent to that address: a foreign name that leads here (DNS rebinding) is refused by its Host header. Nothing
of a file system can be asked for: there are the paths that the owner of the server names, and no others.

A POST is answered only when a page of this server sent it: its Origin is this address, and its Content-Type is
application/json, which no form of a foreign page can send without being asked whether it may.
"""

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTP_PORT
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeVar

LOOPBACK = "127.0.0.1"
SECONDS = 10.0  # that a request may take to arrive
LONGEST = 64 * 1024  # bytes of the body of a POST
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

T = TypeVar("T")


class Served(NamedTuple):
    """The answer to a GET: its media type, and a function that makes its content."""

    kind: str
    content: Callable[[], bytes]


class LocalServer(ThreadingHTTPServer):
    """Answers requests to `address` and to the names below it. Serves from when `serve_forever` is called."""

    daemon_threads = True

    def __init__(
        self, port: int, gets: Mapping[str, Served], posts: Mapping[str, Callable[[Any], Any]] | None = None
    ) -> None:
        """Raises OSError where the port is taken.

        Args:
            port: 0 for any that is free.
            gets: by their names below the address; "" is the page. A function may raise: the reader is told.
            posts: likewise, functions from the JSON of a body to that of the answer. A ValueError refuses the body.
        """
        super().__init__((LOOPBACK, port), _Handler)
        self.path = f"/{secrets.token_urlsafe(16)}/"
        self.gets, self.posts = dict(gets), dict(posts or {})

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}{self.path}"

    @property
    def methods(self) -> str:
        return "GET, POST" if self.posts else "GET"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up in the middle is no error."""


class PageServer(LocalServer):
    """Serves one page, and the version of it that there is now."""

    def __init__(self, port: int, version: Callable[[], str], page: Callable[[str], str]) -> None:
        """`version`: of what there is now; `page`: the page of that version. Both may raise, with what the reader is
        told. Raises OSError where the port is taken.
        """
        super().__init__(port, {"": Served("text/html", self.page), "state": Served("application/json", self._state)})
        self.version, self._page, self._kept = version, page, ("", b"")
        self._mutex = threading.Lock()

    def page(self) -> bytes:
        """Returns the page of the current version. Each version's page is made once."""
        with self._mutex:
            now = self.version()
            if self._kept[0] != now:
                self._kept = now, self._page(now).encode()
            return self._kept[1]

    def _state(self) -> bytes:
        return json.dumps({"version": self.version()}).encode()


class _RefusedRequestError(Exception):
    """A request that is not answered: the status and the reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    timeout = SECONDS
    server: LocalServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "paceline", ""

    def do_GET(self) -> None:
        self._served(self._get)

    def do_POST(self) -> None:
        if not self.server.posts:
            self._refuse()
            return
        self.close_connection = True  # a body that is refused is not read
        self._served(self._post)

    def _served(self, answer: Callable[[], tuple[str, bytes]]) -> None:
        try:
            self._check_host()
            kind, content = answer()
        except _RefusedRequestError as refused:
            self._answer(refused.status, _reason(refused))
        except Exception as error:  # the next request may find what this one did not
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, _reason(error))
        else:
            self._answer(HTTPStatus.OK, content, kind)

    def _get(self) -> tuple[str, bytes]:
        served = self._asked(self.server.gets)
        return served.kind, served.content()

    def _post(self) -> tuple[str, bytes]:
        """Raises `_RefusedRequestError`."""
        answer = self._asked(self.server.posts)
        if self.headers.get_all("Origin", []) not in ([f"http://{host}"] for host in self._hosts()):
            raise _RefusedRequestError(HTTPStatus.FORBIDDEN, "only the page of this address may send this")
        if self.headers.get_content_type() != "application/json":
            raise _RefusedRequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "only application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _RefusedRequestError(HTTPStatus.LENGTH_REQUIRED, "the length of the body is missing")
        if len(length) > len(str(LONGEST)) or int(length) > LONGEST:
            raise _RefusedRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST:,} bytes")
        try:
            asked = json.loads(self.rfile.read(int(length)))
            json.dumps(asked, ensure_ascii=False).encode()  # refuses half a character, which nobody can write out
            found = answer(asked)
        except (ValueError, RecursionError) as error:
            raise _RefusedRequestError(HTTPStatus.BAD_REQUEST, f"the body cannot be used: {error}") from None
        return "application/json", json.dumps(found, allow_nan=False).encode()

    def _check_host(self) -> None:
        if self.headers.get_all("Host", []) not in ([host] for host in self._hosts()):
            raise _RefusedRequestError(HTTPStatus.MISDIRECTED_REQUEST, "this is a paceline on another address")

    def _hosts(self) -> list[str]:
        port = self.server.server_port
        return [name if port == HTTP_PORT else f"{name}:{port}" for name in _NAMES]

    def _asked(self, known: Mapping[str, T]) -> T:
        path = self.path.encode()
        for name, found in known.items():
            if secrets.compare_digest(path, f"{self.server.path}{name}".encode()):
                return found
        raise _RefusedRequestError(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, f"only {self.server.methods}\n".encode())

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        told = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
        for name, value in told.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", self.server.methods)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


def _reason(error: Exception) -> bytes:
    return f"{error}\n".encode(errors="backslashreplace")  # a file's name may be no text


_NAMES = (LOOPBACK, "localhost")
