"""The store in which a run's workers meet: keys and values in the memory of one process, for those who know its key.

torch's own TCPStore answers whoever connects. Here every connection begins with a handshake, and no frame is longer
than `FRAME`. The server is a thread of the launcher, or of worker 0 where others launch; a client is a `dist.Store`, so
that torch's process groups meet in it too.

A frame is its length and a list of byte strings, each with its length. A request is its name and arguments; the answer
to `wait` comes once all keys are there, or the time is up.
"""

import itertools
import os
import selectors
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from .errors import HangError, RendezvousError
from .handshake import RETRY, Acceptor, Endpoint, RefusedError, call, listen

_LENGTH = struct.Struct("!I")
FRAME = 16 << 20  # bytes
NAME = "store"  # in handshakes
SLICE = 0.5  # seconds
StoreGoneError = dist.DistNetworkError  # of a client whose server has ended


def encode(parts: Sequence[bytes]) -> bytes:
    body = b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))
    if len(body) > FRAME:
        raise ValueError(f"{len(body)} bytes in one message to the rendezvous store, which takes {FRAME}")
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> list[bytes]:
    """Raises `ValueError`."""
    parts, at = [], 0
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise ValueError("a length is cut off")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise ValueError("a part is cut off")
        parts.append(body[at : at + length])
        at += length
    return parts


# -- the server


@dataclass(eq=False)
class _Client:
    socket: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    unsaid: bytearray = field(default_factory=bytearray)
    missing: set[bytes] = field(default_factory=set)  # keys that it waits for
    until: float | None = None  # when it gives that up


class StoreServer:
    """Serves until it is closed. `endpoint`: where, for `StoreClient`."""

    def __init__(self, endpoint: Endpoint, listener: socket.socket) -> None:
        self.endpoint = endpoint
        self._values: dict[bytes, bytes] = {}
        self._clients: set[_Client] = set()
        self._waiting: defaultdict[bytes, set[_Client]] = defaultdict(set)  # by a key that is missing
        self._timed: set[_Client] = set()
        self._requests: dict[bytes, Callable[..., list[bytes]]] = {
            b"set": self._set,
            b"read": self._read,
            b"add": self._add,
            b"append": self._append,
            b"swap": self._swap,
            b"delete": self._delete,
            b"count": lambda: [b"%d" % len(self._values)],
        }
        self._mutex = threading.Lock()  # of the values: the process that serves may look and write, too
        self._selector = selectors.DefaultSelector()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._closing = False
        self._acceptor = Acceptor(listener, endpoint, wake=self._wake)
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def append(self, key: str, value: str) -> None:
        with self._mutex:
            self._append(key.encode(), value.encode())
        self._wake()

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Returns the values that are there."""
        with self._mutex:
            return [self._values.get(key.encode()) for key in keys]

    def close(self) -> None:
        self._acceptor.close()
        self._closing = True
        self._wake()
        self._thread.join()
        self._selector.close()
        os.close(self._woken)

    def wait_for_clients(self, seconds: float) -> None:
        """Waits until all clients have hung up."""
        deadline = time.monotonic() + seconds
        while self._clients and time.monotonic() < deadline:
            time.sleep(0.01)

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    def _run(self) -> None:
        while not self._closing:
            for key, events in self._selector.select(self._until_next()):
                if key.fileobj == self._woken:
                    os.eventfd_read(self._woken)
                    self._take_in()
                else:
                    self._serve(key.data, events)
            now = time.monotonic()
            for client in [client for client in self._timed if client.until is not None and client.until <= now]:
                self._answer_wait(client, b"late")
        for client in self._clients:
            client.socket.close()
        self._clients.clear()

    def _until_next(self) -> float | None:
        ends = [client.until for client in self._timed if client.until is not None]
        return max(min(ends) - time.monotonic(), 0) if ends else None

    def _take_in(self) -> None:
        for sock, _ in self._acceptor.admitted():
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Client(sock)
            self._clients.add(client)
            self._selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: _Client, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                piece = client.socket.recv(1 << 20)
                if not piece:
                    raise ConnectionResetError
                client.heard += piece
                while (request := _frame(client.heard)) is not None:
                    self._carry_out(client, request)
            if events & selectors.EVENT_WRITE:
                self._flush(client)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError, TypeError, KeyError):  # gone, or it talks nonsense
            self._hang_up(client)

    def _carry_out(self, client: _Client, request: list[bytes]) -> None:
        name, *arguments = request
        if name == b"wait":
            milliseconds, *keys = arguments
            with self._mutex:
                client.missing = {key for key in keys if key not in self._values}
            client.until = time.monotonic() + int(milliseconds) / 1000
            self._timed.add(client)
            for key in client.missing:
                self._waiting[key].add(client)
            if not client.missing:
                self._answer_wait(client, b"there")
            return
        with self._mutex:
            answer = self._requests[name](*arguments)
        self._say(client, answer)
        if name in (b"set", b"add", b"append", b"swap"):
            self._tell_waiters(arguments[::2] if name == b"set" else arguments[:1])

    def _tell_waiters(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            for client in list(self._waiting.get(key, ())):
                client.missing.discard(key)
                if not client.missing:
                    self._answer_wait(client, b"there")

    def _answer_wait(self, client: _Client, answer: bytes) -> None:
        self._forget_wait(client)
        with suppress(OSError):
            self._say(client, [answer])

    def _forget_wait(self, client: _Client) -> None:
        for key in [key for key, clients in self._waiting.items() if client in clients]:
            self._waiting[key].discard(client)
            if not self._waiting[key]:
                del self._waiting[key]
        client.missing, client.until = set(), None
        self._timed.discard(client)

    def _say(self, client: _Client, answer: list[bytes]) -> None:
        client.unsaid += encode(answer)
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        with suppress(BlockingIOError):
            while client.unsaid:
                del client.unsaid[: client.socket.send(client.unsaid)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsaid else 0)
        if self._selector.get_key(client.socket).events != events:
            self._selector.modify(client.socket, events, client)

    def _hang_up(self, client: _Client) -> None:
        self._forget_wait(client)
        self._selector.unregister(client.socket)
        self._clients.discard(client)
        client.socket.close()

    # requests: under the mutex

    def _set(self, *pairs: bytes) -> list[bytes]:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self._values[key] = value
        return []

    def _read(self, *keys: bytes) -> list[bytes]:
        return [b"1" + self._values[key] if key in self._values else b"" for key in keys]

    def _add(self, key: bytes, number: bytes) -> list[bytes]:
        self._values[key] = b"%d" % (int(self._values.get(key, b"0")) + int(number))
        return [self._values[key]]

    def _append(self, key: bytes, value: bytes) -> list[bytes]:
        self._values[key] = self._values.get(key, b"") + value
        return []

    def _swap(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        """Does the same as TCPStore: an absent key is set if nothing is expected, and otherwise the expected value is
        answered.
        """
        present = self._values.get(key)
        if present == expected or (present is None and not expected):
            self._values[key] = desired
        return [self._values.get(key, expected)]

    def _delete(self, key: bytes) -> list[bytes]:
        return [b"%d" % (self._values.pop(key, None) is not None)]


def _frame(heard: bytearray) -> list[bytes] | None:
    """Take a frame from what has been heard, once all of it is there. Raises `ValueError`."""
    if len(heard) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(heard)
    if length > FRAME:
        raise ValueError(f"a frame of {length} bytes")
    if len(heard) < _LENGTH.size + length:
        return None
    parts = decode(bytes(heard[_LENGTH.size : _LENGTH.size + length]))
    del heard[: _LENGTH.size + length]
    return parts


def serve(host: str, port: int, key: bytes, address: str | None = None) -> StoreServer:
    """Serve at `host`, as clients call it; `port` 0 takes a free one. `address`: where to listen, if not there.

    Raises `OSError`.
    """
    listener = listen(host if address is None else address, port)
    return StoreServer(Endpoint(NAME, host, listener.getsockname()[1], key), listener)


# -- a client


def _awaited(endpoint: Endpoint, rank: int, timeout: float) -> socket.socket:
    """A connection to a server that may not listen yet, or whose host has no name yet.

    Raises what the last attempt raised, once `timeout` seconds have passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return call(endpoint, rank, max(deadline - time.monotonic(), 0.001))
        except RefusedError:
            raise
        except OSError:
            if time.monotonic() + RETRY > deadline:
                raise
            time.sleep(RETRY)


class StoreClient(dist.Store):
    """The run's store as a worker sees it. Any thread may use it: each request has a connection to itself.

    Raises torch's `DistStoreError` when a wait takes too long, and `DistNetworkError` when the server is gone.
    """

    def __init__(self, endpoint: Endpoint, rank: int, timeout: float, served_by: int | None = None) -> None:
        """Connects within `timeout` seconds, which also bounds waits that state none.

        `served_by`: the worker that serves the store and may start later than this one. None: the store is there.
        Raises `RendezvousError`, or `HangError` when that worker does not come.
        """
        super().__init__()
        self.endpoint, self.served_by, self._rank, self._seconds = endpoint, served_by, rank, timeout
        self._idle: list[socket.socket] = []
        self._closed = False
        self._process = os.getpid()
        try:
            self._idle.append(call(endpoint, rank, timeout) if served_by is None else _awaited(endpoint, rank, timeout))
        except RefusedError as error:
            raise RendezvousError(f"worker {rank} cannot join the run: {error}") from None
        except OSError as error:
            where = f"{endpoint.host}:{endpoint.port}"
            if served_by is not None:
                raise HangError(
                    f"worker {rank} waited {timeout:g} s for worker {served_by} at {where} "
                    f"({error.strerror or 'no answer'}). Start worker {served_by}, or raise hardware.timeout",
                    [served_by],
                ) from None
            why = error.strerror or f"no answer in {timeout:g} s"
            raise RendezvousError(f"worker {rank} cannot reach the rendezvous at {where}: {why}") from None

    def close(self) -> None:
        """Hang up. What torch's threads still ask has a connection for itself.

        A forked child, such as a DataLoader's, has copies of the connections, which must not keep them open.
        """
        self._closed = True
        while self._idle:
            with self._idle.pop() as sock, suppress(OSError):  # the server may have hung up first
                if os.getpid() == self._process:
                    sock.shutdown(socket.SHUT_RDWR)

    # what torch asks of a store

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(b"set", key.encode(), value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        [value] = self.read([key])
        if value is None:
            raise dist.DistStoreError(f"the key {key} was deleted")
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        request = [b"wait", b"%d" % round(1000 * seconds), *(key.encode() for key in keys)]
        if self._ask(*request, seconds=seconds) == [b"late"]:
            raise dist.DistStoreError(f"timed out: waited {seconds:g} s for the keys {', '.join(keys)}")

    def check(self, keys: list[str]) -> bool:
        return None not in self.read(keys)

    def add(self, key: str, value: int) -> int:
        return int(self._ask(b"add", key.encode(), b"%d" % value)[0])

    def append(self, key: str, value: str | bytes) -> None:
        self._ask(b"append", key.encode(), value.encode() if isinstance(value, str) else value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        words = [word.encode() if isinstance(word, str) else word for word in (expected_value, desired_value)]
        return self._ask(b"swap", key.encode(), *words)[0]

    def delete_key(self, key: str) -> bool:
        return self._ask(b"delete", key.encode()) == [b"1"]

    def num_keys(self) -> int:
        return int(self._ask(b"count")[0])

    getNumKeys, deleteKey = num_keys, delete_key  # as C++ calls them

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        values = self.read(keys)
        if None in values:
            raise dist.DistStoreError(f"one of the keys {', '.join(keys)} was deleted")
        return [value for value in values if value is not None]

    def multi_set(self, keys: list[str], values: list[bytes]) -> None:
        self._ask(b"set", *(part for key, value in zip(keys, values, strict=True) for part in (key.encode(), value)))

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> "StoreClient":
        return self

    # what boards ask beside

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Returns the values that are there, without waiting."""
        answers = self._ask(b"read", *(key.encode() for key in keys))
        return [answer[1:] if answer else None for answer in answers]

    def _ask(self, *request: bytes, seconds: float = 0) -> list[bytes]:
        """`seconds`: how long the server may take beside the timeout."""
        try:
            sock = self._idle.pop()
        except IndexError:
            sock = self._connect()
        try:
            sock.settimeout(self._seconds)
            sock.sendall(encode(request))
            answer = _receive(sock, seconds + self._seconds)
        except OSError as error:
            sock.close()
            raise dist.DistNetworkError(f"the rendezvous store is gone: {error}") from None
        except BaseException:
            sock.close()  # what would come next on it is not the answer to what would be asked next
            raise
        self._idle.append(sock)
        if self._closed:
            self.close()
        return answer

    def _connect(self) -> socket.socket:
        try:
            return call(self.endpoint, self._rank, self._seconds)
        except OSError as error:
            raise dist.DistNetworkError(f"the rendezvous store is gone: {error}") from None


def _receive(sock: socket.socket, seconds: float) -> list[bytes]:
    """The next frame's parts. Raises `OSError`.

    The time is counted in slices that were spent waiting: while this process is stopped none goes by.
    """
    heard, slices = bytearray(), itertools.count(1)
    sock.settimeout(SLICE)
    while True:
        try:
            piece = sock.recv(1 << 20)
        except TimeoutError:
            if next(slices) * SLICE > seconds:
                raise TimeoutError(f"no answer in {seconds:g} s") from None
            continue
        if not piece:
            raise ConnectionResetError("hung up")
        heard += piece
        if (parts := _frame(heard)) is not None:
            return parts
