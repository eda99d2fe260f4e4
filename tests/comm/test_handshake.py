"""Both ends of a connection prove that they know the key; whoever does not is dropped, and disturbs nobody."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.comm import handshake
from paceline.comm.handshake import NONCE, STRANGERS, Acceptor, Endpoint, RefusedError, call, listen

KEY = bytes(range(32))
SECONDS = 20.0  # for what takes a millisecond


@pytest.fixture
def served() -> Iterator[tuple[Endpoint, Acceptor]]:
    listener = listen("127.0.0.1")
    own = Endpoint("worker 0", "127.0.0.1", listener.getsockname()[1], KEY)
    with closing(Acceptor(listener, own, takes=lambda rank: rank < 4)) as acceptor:
        yield own, acceptor


Served = tuple[Endpoint, Acceptor]


def knock(own: Endpoint) -> socket.socket:
    return socket.create_connection((own.host, own.port), SECONDS)


def admitted(acceptor: Acceptor) -> list[int]:
    """The ranks that were; their connections are closed."""
    callers = acceptor.admitted()
    for sock, _ in callers:
        sock.close()
    return [rank for _, rank in callers]


def is_hung_up_on(stranger: socket.socket) -> bool:
    stranger.settimeout(SECONDS)
    with suppress(ConnectionError):
        while stranger.recv(4096):
            pass
    return True


def test_both_ends_that_know_the_key_have_a_connection_and_the_callers_rank(served: Served) -> None:
    own, acceptor = served
    with call(own, 3, SECONDS) as ours:
        [(theirs, rank)] = acceptor.admitted()
        ours.sendall(b"after")
        with theirs:
            theirs.settimeout(SECONDS)
            assert (rank, theirs.recv(9)) == (3, b"after")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda own: replace(own, key=bytes(32)),
        lambda own: replace(own, name="worker 1"),
        lambda own: replace(own, host="localhost"),
    ],
    ids=["key", "name", "host"],
)
def test_who_knows_another_key_or_calls_another_is_refused(
    served: Served, wrong: Callable[[Endpoint], Endpoint], capfd: pytest.CaptureFixture[str]
) -> None:
    own, acceptor = served
    with pytest.raises(RefusedError, match="does not take this worker's key"):
        call(wrong(own), 3, SECONDS)
    assert not admitted(acceptor)
    said = capfd.readouterr().err
    assert said.count("worker 0: dropped a connection from 127.0.0.1:") == 1 and "does not know this run's key" in said


def test_a_callee_that_does_not_know_the_key_gets_no_connection() -> None:
    with listen("127.0.0.1") as listener:

        def impostor() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(bytes(NONCE))
                sock.recv(4096)
                sock.sendall(bytes(32))
                sock.recv(1)

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(RefusedError, match="does not know this run's key"):
            call(Endpoint("worker 0", "127.0.0.1", listener.getsockname()[1], KEY), 1, SECONDS)
        thread.join()


class Relay:
    """Passes on what a caller and a callee say, and keeps it."""

    def __init__(self, to: Endpoint) -> None:
        self.said = b""
        self._listener = listen("127.0.0.1")
        self.port = self._listener.getsockname()[1]
        self._to = to
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError), self._listener:
            while True:
                caller, _ = self._listener.accept()
                with caller, knock(self._to) as callee, suppress(OSError):
                    caller.sendall(callee.recv(NONCE))
                    self.said = caller.recv(4096)
                    callee.sendall(self.said)
                    caller.sendall(callee.recv(4096))


def test_a_handshake_cannot_be_passed_on_from_another_port(served: Served) -> None:
    own, acceptor = served
    relay = Relay(own)
    with pytest.raises(RefusedError):
        call(replace(own, port=relay.port), 1, SECONDS)
    assert relay.said and not admitted(acceptor)


def test_a_handshake_cannot_be_replayed(served: Served) -> None:
    own, acceptor = served
    with knock(own) as first:
        nonce, callers = first.recv(NONCE), bytes(NONCE)
        said = (1).to_bytes(4) + callers + own.proof("caller", 1, nonce, callers)
        first.sendall(said)
        assert first.recv(4096) == own.proof("callee", 1, nonce, callers)
    assert admitted(acceptor) == [1]
    with knock(own) as again:
        again.recv(NONCE)
        again.sendall(said)
        assert is_hung_up_on(again)
    assert not admitted(acceptor)


def test_a_proof_sent_back_to_its_maker_proves_nothing(served: Served) -> None:
    own, acceptor = served
    with knock(own) as echo:
        nonce = echo.recv(NONCE)
        echo.sendall(bytes(4) + nonce + nonce)
        assert is_hung_up_on(echo)
    assert not admitted(acceptor)


def test_many_silent_strangers_keep_nobody_out_and_are_bounded(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    own, acceptor = served
    with ExitStack() as crowd:
        for number in range(2 * STRANGERS):
            crowd.enter_context(knock(own))
            if number % 64 == 0:
                call(own, 1, SECONDS).close()
        call(own, 1, SECONDS).close()
        assert len(acceptor._strangers) <= STRANGERS
    assert admitted(acceptor) == 5 * [1]
    assert capfd.readouterr().err.count("\n") <= 1  # a line for all of them


def test_a_stranger_that_drips_is_dropped_in_time_whatever_it_says(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, acceptor = served
    monkeypatch.setattr(handshake, "PATIENCE", 0.2)
    with knock(own) as dripping:
        with suppress(ConnectionError):
            for _ in range(1000):
                dripping.send(b"x")
                time.sleep(0.01)
                if not acceptor._strangers:
                    break
        assert is_hung_up_on(dripping)
    assert not acceptor._strangers


def test_a_caller_dropped_for_others_calls_again() -> None:
    """As `Acceptor` drops the oldest when too many call."""
    listener = listen("127.0.0.1")
    own = Endpoint("worker 0", "127.0.0.1", listener.getsockname()[1], KEY)
    caller = threading.Thread(target=lambda: call(own, 1, SECONDS).close())
    caller.start()
    for _ in range(5):
        listener.accept()[0].close()
    with closing(Acceptor(listener, own)) as acceptor:
        caller.join()
        assert admitted(acceptor) == [1]


def test_nobody_there_is_said_at_once_and_silence_after_the_timeout() -> None:
    with listen("127.0.0.1") as listener:
        there = Endpoint("worker 0", "127.0.0.1", listener.getsockname()[1], KEY)
        with pytest.raises(TimeoutError):
            call(there, 1, 0.1)
    with pytest.raises(ConnectionRefusedError):
        call(there, 1, SECONDS)


def test_a_connection_to_oneself_is_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who calls a port of its own host that nobody listens to any more may be given that port for its own end."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    own: tuple[str, int] = sock.getsockname()
    sock.connect(own)
    assert sock.getpeername() == own
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: sock)
    with pytest.raises(ConnectionRefusedError):
        call(Endpoint("worker 1", *own, KEY), 0, 0.2)
    assert sock.fileno() == -1


def test_closing_ends_the_thread_and_leaves_no_descriptor() -> None:
    before, open_before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    listener = listen("127.0.0.1")
    own = Endpoint("worker 0", "127.0.0.1", listener.getsockname()[1], KEY)
    acceptor = Acceptor(listener, own)
    with knock(own), call(own, 1, SECONDS):
        acceptor.close()
    assert threading.active_count() == before
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_a_key_is_not_shown() -> None:
    assert "key" not in repr(Endpoint("store", "127.0.0.1", 1, KEY))
