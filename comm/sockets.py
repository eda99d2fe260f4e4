"""Messages between worker processes over TCP: a connection for each pair of workers, made when it is first needed.

torch.distributed's own point-to-point calls cannot be waited for again after a timeout, and do not say who died. Here
a wait that timed out leaves everything as it was, and the end of a connection names its worker.

A message is a header (group, length, kind) and its bytes. The thread that waits reads them: straight into the memory
of the receive that wants them, or into the inbox when a message that nobody has asked for is in the way. What nobody
waits for stays with its sender, unless this worker waits until it has sent something itself. What the kernel does not
take at once is written by a thread, while the caller computes.
Who may connect is decided by a handshake (handshake.py), in a thread of its own. A header's length is believed only as
far as bytes have come: memory for a message that nobody asked for grows with it.
"""

import itertools
import os
import select
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue

from .deadline import Deadline
from .handshake import Acceptor, Endpoint, call, listen
from .key_values import BEAT, StoreKeyValues
from .socket_messages import IncomingMessage, PeerGoneError, Receive, Send, UnexpectedError

_HEADER = struct.Struct("!QQ8s")  # group, bytes that follow, their kind
_ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR
CLOSING = 5.0  # seconds at the end for messages that nobody waited for to leave


@dataclass(frozen=True)
class Address:
    """A worker's listening address."""

    host: str
    port: int


class _Connection:
    """A TCP connection to a peer, and the message on it that is half read."""

    def __init__(self, sock: socket.socket, peer: int) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self.socket, self.peer = sock, peer
        self.message: IncomingMessage | None = None
        self._head, self._filled = bytearray(), 0
        self._end = select.poll()
        self._end.register(sock, _ENDED)

    def read_header(self) -> tuple[int, int, bytes] | None:
        """A message's group, length and kind, once all of the header is there."""
        if not self._head:
            self._head, self._filled = bytearray(_HEADER.size), 0
        self._filled += self.read(memoryview(self._head)[self._filled :])
        if self._filled < _HEADER.size:
            return None
        group, length, kind = _HEADER.unpack(self._head)
        self._head = bytearray()
        return group, length, kind.rstrip(b"\0")

    def read(self, memory: memoryview) -> int:
        """Returns the number of bytes read. Raises `BlockingIOError` when there were none, `OSError` at the end."""
        count = self.socket.recv_into(memory)
        if count == 0:
            raise ConnectionResetError
        return count

    def has_ended(self) -> bool:
        """Returns whether the other end is closed; it may have left messages."""
        return bool(self._end.poll(0))

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a thread that writes wakes up
        self.socket.close()


@dataclass
class _Peer:
    endpoint: Endpoint
    connections: list[_Connection] = field(default_factory=list)  # two where both called at once; we write to the first
    queue: SimpleQueue[Send | None] = field(default_factory=SimpleQueue)
    thread: threading.Thread | None = None
    last: Send | None = None  # the last one given to the thread


class Sockets:
    """A worker's end of its connections to all others. Ranks are those of the whole run. For one thread."""

    def __init__(self, host: str, key: bytes, key_values: StoreKeyValues, timeout: float) -> None:
        """Listen on `host` for those who know `key`. `timeout`: that of `wait`, in seconds."""
        listener = listen(host)
        self.address = Address(host, listener.getsockname()[1])
        self._key, self._key_values, self._timeout = key, key_values, timeout
        self._peers: list[_Peer] = []
        self._connections: dict[int, _Connection] = {}  # by file descriptor
        self._receives: list[Receive] = []  # those not done, in the order in which they were posted
        self._inbox: defaultdict[tuple[int, int], deque[IncomingMessage]] = defaultdict(deque)  # by group and source
        self._arrivals = itertools.count()
        self._left: set[int] = set()  # those who went, and have not died
        self._told: set[tuple[int, int]] = set()  # (group, peer): the deaths that receives from anyone have told
        self._heard = 0  # whom one heard last
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # something was sent, or somebody has called
        own = self._endpoint(key_values.rank, self.address)
        self._acceptor = Acceptor(
            listener, own, lambda peer: peer < key_values.size and peer != key_values.rank, self._wake
        )

    def meet(self, addresses: list[Address]) -> None:
        """Learn where everyone listens."""
        self._peers = [_Peer(self._endpoint(rank, address)) for rank, address in enumerate(addresses)]

    def _endpoint(self, rank: int, address: Address) -> Endpoint:
        return Endpoint(f"worker {rank}", address.host, address.port, self._key)

    def _wake(self) -> None:
        os.eventfd_write(self._woken, 1)

    # -- sending

    def send(self, group: int, peer: int, memory: memoryview, kind: bytes = b"") -> Send:
        """Let a message leave. `kind`: at most 8 bytes. Raises `PeerGoneError`."""
        connection, to = self._connection_to(peer), self._peers[peer]
        if connection is None or self._is_known_gone(peer) or connection.has_ended():
            raise self._gone(peer)
        sending = Send(peer, [memoryview(_HEADER.pack(group, len(memory), kind)), memory])
        if to.last is None or to.last.done:
            try:
                _write(connection.socket, sending.rest)
            except OSError:
                raise self._gone(peer) from None
        if not sending.rest:
            sending.done = True
            return sending
        if to.thread is None:
            to.thread = threading.Thread(target=self._write, args=(connection.socket.dup(), to.queue), daemon=True)
            to.thread.start()
        to.last = sending
        to.queue.put(sending)
        return sending

    def _write(self, sock: socket.socket, queue: SimpleQueue[Send | None]) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        with sock:
            while (sending := queue.get()) is not None:
                try:
                    while sending.rest:
                        poll.poll()
                        _write(sock, sending.rest)
                except OSError:
                    sending.broken = True
                sending.done = True
                self._wake()

    # -- receiving

    def post(self, receive: Receive) -> None:
        """Wish for a message. It arrives while this worker waits, for whatever that is."""
        here = [q[0] for (group, peer), q in self._inbox.items() if group == receive.group and peer in receive.sources]
        if here:
            receive.message = min(here, key=lambda message: message.arrival)
            self._take(receive.group, receive.message)
        if not receive.done:
            self._receives.append(receive)

    def abandon(self, receive: Receive) -> None:
        """Take a wish back. What has come of its message is kept for the next."""
        self._receives.remove(receive)
        message, receive.message = receive.message, None
        if message is not None and not message.refused:
            memory = memoryview(bytearray(len(message.memory)))
            memory[: message.filled] = message.memory[: message.filled]
            message.memory = memory
            self._inbox[receive.group, message.source].appendleft(message)

    def try_receive(self, receive: Receive) -> bool:
        """Returns whether a message has come that makes `receive` done; else it is taken back. Raises
        `UnexpectedError`.
        """
        self.post(receive)
        while not receive.done and self._progress(0):
            pass
        if not receive.done:
            self.abandon(receive)
            return False
        self._deliver(receive)
        return True

    def wait(self, operation: Send | Receive) -> None:
        """Raises `TimeoutError` or `PeerGoneError`; the operation may then be waited for again. Or `UnexpectedError`.

        Who waits for a send takes in whatever others send: two that send to each other do not wait for each other.
        """
        deadline = Deadline(self._timeout)
        silent = False
        while not operation.done:
            if isinstance(operation, Receive):
                self._check_message(operation)
                self._check_sources(operation, silent)
            sends = isinstance(operation, Send)
            silent = not self._progress(min(deadline.left(), BEAT), takes_all=sends)
            if silent and not deadline.left():
                raise TimeoutError
        if isinstance(operation, Send):
            if operation.broken:
                raise self._gone(operation.peer)
        else:
            self._deliver(operation)

    def _check_message(self, receive: Receive) -> None:
        """Refuses a message by its header, before its bytes have come; they are thrown away, and the next message of
        its sender is sound. Raises `UnexpectedError`.
        """
        if (message := receive.message) is None:
            return
        due = message.length if receive.memory is None else len(receive.memory)
        if receive.memory is None and message.length > receive.most:
            why = f"sent a message of {message.length:,} bytes where at most {receive.most:,} can come"
        elif (message.length, message.kind) != (due, receive.kind):
            sent, wanted = _counted(message.length, message.kind), _counted(due, receive.kind)
            why = f"sent {sent} where {wanted} are due"
        else:
            return
        self._heard, message.refused = message.source, True
        raise UnexpectedError(f"worker {message.source} {why}")

    def _deliver(self, receive: Receive) -> None:
        self._check_message(receive)
        message = receive.message
        assert message is not None
        self._heard = message.source
        if receive.memory is not None and message.memory is not receive.memory:
            receive.memory[:] = message.memory

    def _check_sources(self, receive: Receive, silent: bool) -> None:
        """Raise `PeerGoneError` if the receive cannot be done any more, or has to tell a death."""
        if silent or not receive.from_anyone:
            for peer in receive.awaits:
                self._connection_to(peer)  # its end is how a death shows
        if not (self._key_values.lost or self._left):
            return
        self._accept()
        if silent:  # who has died and yet holds a connection has left it to a process of its own
            for peer in filter(self._is_known_gone, receive.sources):
                for connection in list(self._peers[peer].connections):
                    self._close(connection)
        gone = [peer for peer in receive.sources if self._is_gone(peer)]
        if receive.from_anyone:
            for peer in gone:
                if peer not in self._left and (receive.group, peer) not in self._told:
                    self._told.add((receive.group, peer))
                    raise self._gone(peer)
        if len(gone) == len(receive.sources):
            raise PeerGoneError("nobody is left") if receive.from_anyone else self._gone(gone[0])

    def _progress(self, seconds: float, takes_all: bool = False) -> bool:
        """Wait for something to happen, and read what is wanted, or all. False: nothing happened."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        everyone = range(len(self._peers)) if takes_all else ()
        awaited = {*everyone, *(peer for receive in self._receives for peer in receive.awaits)}
        for connection in itertools.chain.from_iterable(self._peers[peer].connections for peer in awaited):
            poll.register(connection.socket, select.POLLIN)
        happened = [fd for fd, _ in poll.poll(1000 * seconds)]
        if len(happened) > 1:  # nobody shall be served twice before the others
            happened.sort(key=self._turn)
        for fd in happened:
            if fd == self._woken:
                os.eventfd_read(self._woken)
                self._accept()
            elif (connection := self._connections.get(fd)) is not None and (
                takes_all or any(connection.peer in receive.awaits for receive in self._receives)
            ):
                self._read(connection)
        return bool(happened)

    def _turn(self, fd: int) -> int:
        connection = self._connections.get(fd)
        return -1 if connection is None else (connection.peer - self._heard - 1) % len(self._peers)

    def _read(self, connection: _Connection) -> None:
        """Read what is there of one message."""
        try:
            if connection.message is None:
                header = connection.read_header()
                if header is None:
                    return
                connection.message = self._begin(connection.peer, *header)
            message = connection.message
            if not message.whole:
                message.filled += connection.read(message.room())
            if message.whole:
                connection.message = None
                self._receives = [receive for receive in self._receives if receive.message is not message]
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)

    def _begin(self, peer: int, group: int, length: int, kind: bytes) -> IncomingMessage:
        """A header has come: find out whose the message is."""
        for receive in self._receives:
            if receive.message is None and receive.group == group and peer in receive.sources:
                fits = receive.memory is not None and (len(receive.memory), receive.kind) == (length, kind)
                memory = receive.memory if fits and receive.memory is not None else memoryview(b"")
                receive.message = IncomingMessage(peer, next(self._arrivals), length, kind, memory)
                return receive.message
        message = IncomingMessage(peer, next(self._arrivals), length, kind, memoryview(b""))
        self._inbox[group, peer].append(message)
        return message

    # -- connections

    def _connection_to(self, peer: int) -> _Connection | None:
        """The one to write to; None when the other is no longer there. Raises `TimeoutError`."""
        connections = self._peers[peer].connections
        if not connections:
            self._accept()
        if not connections and not self._is_known_gone(peer):
            self._call(peer)
        return connections[0] if connections else None

    def _call(self, peer: int) -> None:
        try:
            sock = call(self._peers[peer].endpoint, self._key_values.rank, self._timeout)
        except TimeoutError:
            raise
        except OSError:
            self._note_end(peer)
        else:
            self._keep(_Connection(sock, peer))

    def _accept(self) -> None:
        """Take in those who have called."""
        for sock, peer in self._acceptor.admitted():
            self._keep(_Connection(sock, peer))

    def _keep(self, connection: _Connection) -> None:
        self._connections[connection.socket.fileno()] = connection
        self._peers[connection.peer].connections.append(connection)

    def _close(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.close()
        self._peers[connection.peer].connections.remove(connection)
        self._note_end(connection.peer)
        if (half := connection.message) is None:
            return
        for receive in self._receives:
            if receive.message is half:
                receive.message = None
        for group, peer in list(self._inbox):
            if peer == connection.peer and half in self._inbox[group, peer]:
                self._take(group, half)

    def _take(self, group: int, message: IncomingMessage) -> None:
        queue = self._inbox[group, message.source]
        queue.remove(message)
        if not queue:
            del self._inbox[group, message.source]

    # -- who is there

    def visit(self, peers: Sequence[int]) -> None:
        """Have a connection to each, whose end is how a death shows. Raises `TimeoutError`."""
        for peer in peers:
            self._connection_to(peer)
        self.look()

    def look(self) -> None:
        """Notice who has gone, without reading messages."""
        self._accept()
        for connection in self._connections.values():
            if connection.has_ended():
                self._note_end(connection.peer)

    def _note_end(self, peer: int) -> None:
        """A connection to `peer` is at its end, or there is none to be had: it said goodbye, or it has died."""
        if not self._is_known_gone(peer):
            (self._left if self._key_values.has_left(peer) else self._key_values.lost).add(peer)

    def _is_known_gone(self, peer: int) -> bool:
        return peer in self._left or peer in self._key_values.lost

    def _is_gone(self, peer: int) -> bool:
        """Returns whether nothing more can come from `peer`."""
        return self._is_known_gone(peer) and not self._peers[peer].connections

    def _gone(self, peer: int) -> PeerGoneError:
        self._note_end(peer)
        return PeerGoneError(f"worker {peer} has {'left' if peer in self._left else 'died'}", peer)

    def close(self) -> None:
        """Let messages leave that nobody waited for, say goodbye, and hang up."""
        threads = [peer.thread for peer in self._peers if peer.thread is not None]
        deadline = time.monotonic() + CLOSING
        for peer in self._peers:
            peer.queue.put(None)
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        self._key_values.leave()
        self._acceptor.close()
        for connection in self._connections.values():
            connection.close()
        for thread in threads:
            thread.join()
        os.close(self._woken)


def _counted(length: int, kind: bytes) -> str:
    return f"{length:,} bytes of {kind.decode(errors='replace')}" if kind else f"{length:,} bytes"


def _write(sock: socket.socket, parts: list[memoryview]) -> None:
    """Write what the kernel takes at once, and take it away from `parts`."""
    try:
        count = os.writev(sock.fileno(), parts)
    except BlockingIOError:
        return
    while parts and count >= len(parts[0]):
        count -= len(parts.pop(0))
    if count:
        parts[0] = parts[0][count:]
