"""Authenticates connections: both ends of a TCP connection prove that they know the run's key before anything else is
read.

    callee -> caller   a nonce
    caller -> callee   its rank, a nonce of its own, HMAC(key, "caller", what both know)
    callee -> caller   HMAC(key, "callee", what both know)

What both know: the callee's name, host and port as the caller was told them, the caller's rank, and both nonces. So an
old handshake cannot be replayed, and one meant for another worker, port or host cannot be passed on. Once the caller
has its answer, the callee has taken the connection in: whatever comes on it later is not lost when the caller dies.

A thread of the callee does this, so that a caller need not wait until the callee looks up from its computing, and a
stranger never gets to see the thread that trains.
"""

import errno
import hmac
import os
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

NONCE = PROOF = 32  # bytes
KEY = 16  # bytes that a key has at least
_ANSWER = struct.Struct(f"!I{NONCE}s{PROOF}s")  # the caller's rank, nonce and proof
STRANGERS = 128  # callers that may be on the way to prove themselves at once; the oldest goes for the next
PATIENCE = 10.0  # seconds that a caller has for it
ATTEMPTS = 3  # times that a callee may hang up on our proof
RETRY = 0.05  # seconds
LOG_EVERY = 10.0  # seconds
LISTENING = threading.Lock()  # held while a socket begins to listen: gloo's own is known as the one that is new
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class RefusedError(ConnectionError):
    """The other end does not know our key, or does not take ours."""


@dataclass(frozen=True)
class Endpoint:
    """A listening address: `name` says who listens ("store", "worker 3"), `host` and `port` where, `key` is the run's
    secret.
    """

    name: str
    host: str
    port: int
    key: bytes = field(repr=False)

    def proof(self, side: str, rank: int, callees: bytes, callers: bytes) -> bytes:
        words = f"paceline 1\n{side}\n{self.name}\n{self.host}\n{self.port}\n{rank}\n".encode()
        return hmac.digest(self.key, words + callees + callers, "sha256")


def call(to: Endpoint, rank: int, timeout: float) -> socket.socket:
    """A connection to `to`, proved on both ends; `rank` is the caller's.

    Raises `TimeoutError`, `RefusedError`, or what connecting raises (`ConnectionRefusedError`: nobody listens there).
    """
    deadline, refused = time.monotonic() + timeout, 0
    while True:
        sock = socket.create_connection((to.host, to.port), max(deadline - time.monotonic(), 0.001))
        if sock.getsockname() == sock.getpeername():  # nobody listens, and the kernel took that port for our end
            sock.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{to.name} no longer listens")
        proved = False
        try:
            callees = _read(sock, NONCE, deadline)
            callers = secrets.token_bytes(NONCE)
            sock.sendall(_ANSWER.pack(rank, callers, to.proof("caller", rank, callees, callers)))
            proved = True
            if not hmac.compare_digest(_read(sock, PROOF, deadline), to.proof("callee", rank, callees, callers)):
                raise RefusedError(f"whoever listens at {to.host}:{to.port} does not know this run's key")
            sock.settimeout(None)
            return sock
        except RefusedError:
            sock.close()
            raise
        except TimeoutError:
            sock.close()
            raise
        except OSError:  # hung up on: by a callee that has many strangers to see to, or that has just died
            sock.close()
            refused += proved
            if refused == ATTEMPTS:
                raise RefusedError(f"{to.name} at {to.host}:{to.port} does not take this worker's key") from None
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(RETRY)


def _read(sock: socket.socket, size: int, deadline: float) -> bytes:
    """Raises `TimeoutError`, or `ConnectionResetError` at the end of the connection."""
    content = b""
    while len(content) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = sock.recv(size - len(content))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "hung up")
        content += piece
    return content


def listen(host: str, port: int = 0) -> socket.socket:
    """Listens at an address, or at all of IPv4 (""), or at all of both kinds (`::`). Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    with LISTENING:
        return socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=both)


@dataclass(eq=False)
class _Stranger:
    socket: socket.socket
    where: str
    since: float
    nonce: bytes
    said: bytes = b""


class Acceptor:
    """The thread that hears callers. Those that have proved themselves are had from `admitted`."""

    def __init__(
        self,
        listener: socket.socket,
        own: Endpoint,
        takes: Callable[[int], bool] = lambda _: True,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`takes`: which ranks may call. `wake` is called in the thread whenever there is somebody new."""
        assert len(own.key) >= KEY, "a key that can be guessed"
        listener.setblocking(False)
        self._listener, self._own, self._takes, self._wake = listener, own, takes, wake
        self._strangers: dict[int, _Stranger] = {}  # by file descriptor, the oldest first
        self._admitted: list[tuple[socket.socket, int]] = []
        self._admitting = threading.Lock()
        self._closing = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._dropped, self._told_at = 0, float("-inf")
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    def admitted(self) -> list[tuple[socket.socket, int]]:
        """Connections since the last time, with their callers' ranks."""
        with self._admitting:
            new, self._admitted = self._admitted, []
        return new

    def close(self) -> None:
        """Hang up on strangers, and listen no more."""
        os.eventfd_write(self._closing, 1)
        self._thread.join()
        os.close(self._closing)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._closing, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        closing = False
        while not closing:
            for fd, _ in poll.poll(1000 * self._until_next()):
                if fd == self._closing:
                    closing = True
                elif fd == self._listener.fileno():
                    self._accept(poll)
                elif fd in self._strangers:
                    self._hear(poll, self._strangers[fd])
            late = time.monotonic() - PATIENCE
            for stranger in [one for one in self._strangers.values() if one.since < late]:
                self._drop(poll, stranger, "said too little in time")
        self._listener.close()
        for stranger in self._strangers.values():
            stranger.socket.close()
        for sock, _ in self.admitted():
            sock.close()

    def _until_next(self) -> float:
        """Seconds until the oldest stranger's time is up."""
        oldest = next(iter(self._strangers.values()), None)
        return 3600 if oldest is None else max(oldest.since + PATIENCE - time.monotonic(), 0) + 0.01

    def _accept(self, poll: select.poll) -> None:
        for _ in range(STRANGERS):  # then those who have said something have their turn
            try:
                sock, where = self._listener.accept()
            except OSError as error:
                if error.errno in _FULL:
                    self._make_room(poll)
                return
            if len(self._strangers) == STRANGERS:
                self._make_room(poll)
            sock.setblocking(False)
            stranger = _Stranger(sock, f"{where[0]}:{where[1]}", time.monotonic(), secrets.token_bytes(NONCE))
            self._strangers[sock.fileno()] = stranger
            poll.register(sock, select.POLLIN)
            try:
                sock.sendall(stranger.nonce)  # what is sent first fits into the kernel's buffer
            except OSError:
                self._drop(poll, stranger, "hung up")

    def _make_room(self, poll: select.poll) -> None:
        if self._strangers:
            self._drop(poll, next(iter(self._strangers.values())), "stood in the way of others that called")
        else:
            time.sleep(RETRY)  # no descriptors are left, and none of them is ours to give

    def _hear(self, poll: select.poll, stranger: _Stranger) -> None:
        try:
            piece = stranger.socket.recv(_ANSWER.size - len(stranger.said))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(poll, stranger, "hung up")
            return
        stranger.said += piece
        if len(stranger.said) < _ANSWER.size:
            return
        rank, nonce, proof = _ANSWER.unpack(stranger.said)
        if not hmac.compare_digest(proof, self._own.proof("caller", rank, stranger.nonce, nonce)):
            self._drop(poll, stranger, "does not know this run's key")
        elif not self._takes(rank):
            self._drop(poll, stranger, f"calls itself worker {rank}")
        else:
            self._let_in(poll, stranger, rank, self._own.proof("callee", rank, stranger.nonce, nonce))

    def _let_in(self, poll: select.poll, stranger: _Stranger, rank: int, proof: bytes) -> None:
        del self._strangers[stranger.socket.fileno()]
        poll.unregister(stranger.socket)
        with self._admitting:  # so that whoever sees what a caller did after its answer sees the connection, too
            with suppress(OSError):  # whoever takes it will see that it has ended
                stranger.socket.sendall(proof)
            self._admitted.append((stranger.socket, rank))
        self._wake()

    def _drop(self, poll: select.poll, stranger: _Stranger, why: str) -> None:
        del self._strangers[stranger.socket.fileno()]
        poll.unregister(stranger.socket)
        stranger.socket.close()
        self._dropped += 1
        now = time.monotonic()
        if now - self._told_at < LOG_EVERY:
            return
        others = f" ({self._dropped - 1} others since the last such line)" if self._dropped > 1 else ""
        line = f"{self._own.name}: dropped a connection from {stranger.where}, which {why}{others}"
        self._dropped, self._told_at = 0, now
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)
