"""The report as it is served: to whom, what, and nothing else."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import ctrl_c
import pytest
from browser import Browser, BrowserError
from needs import needs_chromium
from report_page import NAMES

from paceline.tracking.report.serve import LONGEST, LocalServer, PageServer, Served
from paceline.tracking.run_directory import RunDirectory

S = TypeVar("S", bound=LocalServer)


@contextmanager
def serving(server: S) -> Iterator[S]:
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[PageServer]:
    versions = iter("1123456789")
    with serving(PageServer(0, lambda: next(versions), lambda version: f"<p>page {version}</p>")) as server:
        yield server


def ask(
    server: LocalServer, path: str, method: str = "GET", content: str | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    sent = None if content is None else content.encode(errors="surrogateescape")
    connection.request(method, path, sent, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_the_address_answers_with_the_page_made_once_a_version_and_its_state(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1" and len(server.path) > 20
    status, body, headers = ask(server, server.path)
    assert (status, body) == (200, "<p>page 1</p>") and headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, server.path)[1] == "<p>page 1</p>" and ask(server, server.path)[1] == "<p>page 2</p>"
    assert ask(server, f"{server.path}state")[:2] == (200, '{"version": "3"}')


def test_nothing_else_is_there(server: PageServer) -> None:
    paths = ["/", "/state", f"{server.path}..", f"{server.path}../../etc/passwd", f"{server.path}?a", "//etc/passwd"]
    for path in [*paths, server.path[:-2] + "x/", f"{server.path}%2e%2e/"]:
        assert ask(server, path)[0] == 404, path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost:1", ""])
def test_a_request_that_was_sent_to_another_name_is_refused(host: str, server: PageServer) -> None:
    status, body, _ = ask(server, server.path, Host=host.format(port=server.server_port))
    assert status == 421 and "page" not in body
    assert ask(server, server.path, Host=f"localhost:{server.server_port}")[0] == 200


def test_a_port_is_free_again_once_its_server_has_ended() -> None:
    """The end that closes a connection first keeps its port for a minute (TIME-WAIT), which binds nobody."""
    used = 0
    for _ in range(2):
        with serving(PageServer(used, lambda: "1", lambda _: "page")) as server:
            used = server.server_port
            with socket.create_connection(("127.0.0.1", used), timeout=20) as client, client.makefile("rb") as answer:
                client.sendall(f"GET {server.path} HTTP/1.0\r\nHost: localhost:{used}\r\n\r\n".encode())
                assert answer.read().endswith(b"page")  # up to the end, so the server closed it first
            with pytest.raises(OSError, match="in use"):
                PageServer(used, lambda: "2", lambda _: "another page")


def test_a_browser_names_no_port_where_it_is_that_of_http(server: PageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    server.server_port = 80
    connection.request("GET", server.path, headers={"Host": "127.0.0.1"})
    assert connection.getresponse().status == 200
    connection.close()


def test_the_reason_of_an_error_may_have_any_characters() -> None:
    def page(_: str) -> str:
        raise ValueError("run-\udcff")

    with serving(PageServer(0, lambda: "1", page)) as server:
        assert ask(server, server.path)[:2] == (503, "run-\\udcff\n")


@pytest.fixture
def posted() -> Iterator[LocalServer]:
    """A server that answers a POST with the body that it got, and refuses that of 1."""

    def answer(body: object) -> object:
        if body == 1:
            raise ValueError("no ones")
        return {"got": body}

    with serving(LocalServer(0, {"": Served("text/html", lambda: b"page")}, {"put": answer})) as server:
        yield server


def post(server: LocalServer, name: str = "put", body: str = '{"a": 1}', **headers: str | None) -> tuple[int, str]:
    """Sends what a page of the server would send, but for `headers`; None leaves one out."""
    usual = {"Origin": f"http://127.0.0.1:{server.server_port}", "Content_Type": "application/json"}
    sent = {key.replace("_", "-"): value for key, value in (usual | headers).items() if value is not None}
    return ask(server, f"{server.path}{name}", "POST", body, **sent)[:2]


def test_a_page_of_the_server_may_post_json(posted: LocalServer) -> None:
    assert post(posted) == (200, '{"got": {"a": 1}}')
    assert post(posted, Origin=f"http://localhost:{posted.server_port}")[0] == 200
    assert ask(posted, posted.path)[:2] == (200, "page")


REFUSED: list[tuple[int, dict[str, str | None]]] = [
    *((403, {"Origin": origin}) for origin in (None, "null", "http://evil.example", "http://127.0.0.1:1")),
    (421, {"Host": "evil.example"}),
    *((415, {"Content_Type": kind}) for kind in (None, "text/plain", "application/x-www-form-urlencoded")),
    *((404, {"name": name}) for name in ("other", "")),
    *((400, {"body": body}) for body in ("{", "[" * 20_000, "\udcff", "1", r'["\ud800"]')),
    *((411, {"Content_Length": length}) for length in ("-1", "1e3")),
    *((413, {"Content_Length": length}) for length in (str(LONGEST + 1), "9" * 5000)),
]


def test_a_post_of_anybody_else_or_of_anything_else_is_refused(posted: LocalServer) -> None:
    for status, sent in REFUSED:
        got, body = post(posted, **sent)  # pyright: ignore[reportArgumentType]
        assert got == status and "got" not in body, sent
        assert post(posted)[0] == 200


def test_other_methods_are_refused_by_a_server_that_takes_posts(posted: LocalServer) -> None:
    for method in ("PUT", "DELETE", "OPTIONS"):
        status, _, headers = ask(posted, f"{posted.path}put", method)
        assert status == 405 and headers["Allow"] == "GET, POST"
        assert "Access-Control-Allow-Origin" not in headers
    assert ask(posted, f"{posted.path}put")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(method: str, server: PageServer) -> None:
    status, _, headers = ask(server, server.path, method)
    assert status == 405 and headers["Allow"] == "GET"


def test_what_cannot_be_made_is_told_and_the_server_goes_on() -> None:
    def fails() -> str:
        raise ValueError("runs are gone")

    with PageServer(0, fails, lambda version: "") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert [ask(server, server.path)[:2] for _ in range(2)] == [(503, "runs are gone\n")] * 2
        server.shutdown()
        thread.join()


def made(root: Path, name: str) -> RunDirectory:
    run = RunDirectory.create(root, name)
    run.append({"kind": "start", "name": name, "strategy": "single", "sync": "bsp", "workers": 1, "steps": 9})
    run.append({"kind": "step", "step": 1, "loss": 0.5, "time": 0.1})
    return run


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`paceline report --serve` of a run, and its address."""
    made(tmp_path / "runs", "one")
    command = [sys.executable, "-m", "paceline.cli.main", "report", "--serve"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ctrl_c.can_come,
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


@pytest.mark.slow
def test_ctrl_c_ends_it_without_a_traceback(served: tuple[subprocess.Popen[str], str]) -> None:
    process, address = served
    assert address.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0
    assert told.splitlines() == ["served to this host alone, until Ctrl-C", "no longer served"]


def _names(window: Browser) -> list[str]:
    """Of the runs in the table; none while the page loads itself again."""
    try:
        return window.run(NAMES)
    except BrowserError:
        return []


@needs_chromium
@pytest.mark.browser
@pytest.mark.timeout(240)
def test_a_browser_shows_it_asks_nobody_else_and_sees_a_run_that_has_come(
    served: tuple[subprocess.Popen[str], str], window: Browser, tmp_path: Path
) -> None:
    _, address = served
    window.visit(address)
    assert window.run(NAMES) == ["one"]
    made(tmp_path / "runs", "two")
    deadline = time.monotonic() + 60
    while len(names := _names(window)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert sorted(names) == ["one", "two"]
    assert {url.split("#")[0] for url in window.requests()} <= {f"{address}state"}
    assert window.complaints() == []
