"""Messages over sockets, several workers' ends in one thread: who may call, what is read when, who is gone."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.handshake import Endpoint, RefusedError
from paceline.comm.handshake import call as call_proved
from paceline.comm.socket_messages import PeerGoneError, Receive, Send, UnexpectedError
from paceline.comm.sockets import _HEADER, Sockets

TIMEOUT = 0.3  # seconds
KEY = bytes(range(32))
GROUP = 7


class KeyValues:
    """What sockets need of a board; `left` is common to all."""

    def __init__(self, rank: int, size: int, left: set[int]) -> None:
        self.rank, self.size, self.lost, self._left = rank, size, set(), left

    def leave(self) -> None:
        self._left.add(self.rank)

    def has_left(self, rank: int) -> bool:
        return rank in self._left


class LocalWorkers:
    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        left: set[int] = set()
        self.ends = [Sockets("127.0.0.1", KEY, cast(Any, KeyValues(rank, size, left)), timeout) for rank in range(size)]
        for end in self.ends:
            end.meet([other.address for other in self.ends])

        self._open = set(range(size))

    def __getitem__(self, rank: int) -> Sockets:
        return self.ends[rank]

    def leave(self, rank: int) -> None:
        self._open.remove(rank)
        self[rank].close()

    def die(self, rank: int) -> None:
        """Hang up without a goodbye, as the kernel does for a process that is killed."""
        self[rank]._key_values.leave = lambda: None
        self.leave(rank)

    def close(self) -> None:
        for rank in self._open:
            self[rank].close()


@pytest.fixture
def local_workers() -> Iterator[LocalWorkers]:
    with closing(LocalWorkers(4)) as made:
        yield made


def send(end: Sockets, peer: int, content: bytes, group: int = GROUP) -> Send:
    return end.send(group, peer, memoryview(content))


def wish(end: Sockets, sources: int | tuple[int, ...], length: int, group: int = GROUP) -> Receive:
    from_anyone = not isinstance(sources, int)
    memory = memoryview(bytearray(length))
    receive = Receive(group, sources if from_anyone else (sources,), memory, from_anyone)
    end.post(receive)
    return receive


def receive(end: Sockets, sources: int | tuple[int, ...], length: int, group: int = GROUP) -> bytes:
    wanted = wish(end, sources, length, group)
    try:
        end.wait(wanted)
    finally:
        if not wanted.done:
            end.abandon(wanted)
    assert wanted.memory is not None
    return bytes(wanted.memory)


def endpoint(end: Sockets, key: bytes = KEY) -> Endpoint:
    return Endpoint(f"worker {end._key_values.rank}", end.address.host, end.address.port, key)


def call(end: Sockets, rank: int) -> socket.socket:
    """A raw connection that has proved itself as worker `rank`'s."""
    return call_proved(endpoint(end), rank, 5)


# -- who may call


@pytest.mark.parametrize("rank", [4, 0, 1 << 31], ids=["there are 4 workers", "itself", "far too large"])
def test_a_rank_that_cannot_call_is_hung_up_on(local_workers, rank):
    with pytest.raises(RefusedError):
        call(local_workers[0], rank)
    send(local_workers[1], 0, b"good")
    assert receive(local_workers[0], 1, 4) == b"good"


@pytest.mark.parametrize(
    "says", [b"", b"\0", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 9], ids=["nothing", "little", "other"]
)
def test_a_stranger_holds_nobody_up_and_is_heeded_in_nothing(local_workers, says):
    with socket.create_connection((local_workers[0].address.host, local_workers[0].address.port), 5) as stranger:
        stranger.sendall(says)
        send(local_workers[1], 0, b"good")
        assert receive(local_workers[0], 1, 4) == b"good"
        with pytest.raises(TimeoutError):
            receive(local_workers[0], (1, 2, 3), 1)


# -- what is read when


@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from([0, 1, 15, 16, 17, 1000])),
        min_size=1,
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_messages_keep_their_order_by_sender_and_group_however_they_are_asked_for(messages, random):
    """`messages`: (sender, group, length)."""
    with closing(LocalWorkers(3, timeout=5)) as local_workers:
        for number, (sender, group, length) in enumerate(messages):
            send(local_workers[sender], 0, bytes([number]) * length, group)
        queues: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number, (sender, group, length) in enumerate(messages):
            queues.setdefault((sender, group), []).append((number, length))
        while queues:
            sender, group = random.choice(sorted(queues))
            number, length = queues[sender, group].pop(0)
            assert receive(local_workers[0], sender, length, group) == bytes([number]) * length
            if not queues[sender, group]:
                del queues[sender, group]


def test_receives_from_anyone_take_turns_among_senders_that_all_have_messages(local_workers):
    for sender in (1, 2, 3):
        for _ in range(3):
            send(local_workers[sender], 0, bytes([sender]))
    heard = [receive(local_workers[0], (1, 2, 3), 1)[0] for _ in range(9)]
    for i in range(0, 9, 3):
        assert sorted(heard[i : i + 3]) == [1, 2, 3], heard


def test_receives_from_anyone_take_what_came_first_of_what_was_in_the_way(local_workers):
    for sender in (2, 1):
        send(local_workers[sender], 0, bytes([sender]))
        send(local_workers[sender], 0, b"x", group=8)
        receive(local_workers[0], sender, 1, group=8)
    assert [receive(local_workers[0], (1, 2, 3), 1)[0] for _ in range(2)] == [2, 1]


def test_a_small_message_does_not_overtake_a_large_one_that_is_still_leaving(local_workers):
    large, count = bytes(range(256)) * (64 << 12), 0
    local_workers[0]._timeout = 10
    send(local_workers[1], 0, large)
    received = []
    reading = threading.Thread(target=lambda: received.append(receive(local_workers[0], 1, len(large))))
    reading.start()
    while reading.is_alive():  # whenever there is room, and whenever there is none
        send(local_workers[1], 0, count.to_bytes(4))
        count += 1
    assert received == [large]
    assert [int.from_bytes(receive(local_workers[0], 1, 4)) for _ in range(count)] == list(range(count))


def test_what_nobody_asked_for_stays_with_its_sender(local_workers):
    """So that a server is not flooded: its memory holds what it has asked for."""
    large = bytes(64 << 20)
    flood = send(local_workers[1], 0, large)
    send(local_workers[2], 0, b"x")
    receive(local_workers[0], 2, 1)
    assert not flood.done and not local_workers[0]._inbox
    assert receive(local_workers[0], 1, len(large)) == large
    local_workers[1].wait(flood)


def test_of_several_that_could_be_received_from_anyone_one_is_read(local_workers):
    for sender in (1, 2, 3):
        send(local_workers[sender], 0, b"message")
    assert receive(local_workers[0], (1, 2, 3), 7) == b"message"
    assert not local_workers[0]._inbox


def test_a_message_is_received_into_the_memory_that_waits_for_it(local_workers):
    wanted = wish(local_workers[0], 1, 5)
    send(local_workers[1], 0, b"there")
    local_workers[0].wait(wanted)
    assert wanted.message is not None and wanted.message.memory is wanted.memory
    assert wanted.memory is not None and bytes(wanted.memory) == b"there"


def test_two_ends_that_call_each_other_at_once_keep_order_on_both_ways(local_workers):
    for i in range(3):  # neither has accepted the other's call yet
        send(local_workers[0], 1, bytes([i]))
        send(local_workers[1], 0, bytes([10 + i]))
    assert [receive(local_workers[1], 0, 1)[0] for _ in range(3)] == [0, 1, 2]
    assert [receive(local_workers[0], 1, 1)[0] for _ in range(3)] == [10, 11, 12]
    send(local_workers[0], 1, b"\3")
    assert receive(local_workers[1], 0, 1) == b"\3"


def test_a_message_of_another_length_is_an_error_that_names_both_and_the_next_is_sound(local_workers):
    send(local_workers[1], 0, b"four")
    send(local_workers[1], 0, b"next")
    with pytest.raises(UnexpectedError, match=r"^worker 1 sent 4 bytes where 8 bytes are due$"):
        receive(local_workers[0], 1, 8)
    assert receive(local_workers[0], 1, 4) == b"next"


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_message_of_another_kind_is_an_error_that_names_both_and_the_next_is_sound(local_workers, asked_for):
    wanted = wish(local_workers[0], 1, 4) if asked_for else None
    local_workers[1].send(GROUP, 0, memoryview(b"four"), b"int32")
    send(local_workers[1], 0, b"next")
    with pytest.raises(UnexpectedError, match=r"^worker 1 sent 4 bytes of int32 where 4 bytes are due$"):
        local_workers[0].wait(wish(local_workers[0], 1, 4) if wanted is None else wanted)
    assert receive(local_workers[0], 1, 4) == b"next"


@pytest.mark.parametrize("asked_for", [True, False])
def test_no_memory_is_taken_for_a_length_before_its_bytes_have_come(local_workers, asked_for):
    with call(local_workers[0], 1) as one:
        one.sendall(_HEADER.pack(GROUP if asked_for else 8, 1 << 46, b"") + bytes(3 << 20))
        with pytest.raises(UnexpectedError if asked_for else TimeoutError):  # a header is enough to refuse it
            receive(local_workers[0], 1, 8)
        if not asked_for:
            [message] = [message for queue in local_workers[0]._inbox.values() for message in queue]
            assert message.length == 1 << 46 and message.filled <= len(message.memory) <= 8 << 20
        send(local_workers[2], 0, b"good")
        assert receive(local_workers[0], 2, 4) == b"good"


# -- timeouts


def half_a_message(local_workers: LocalWorkers) -> socket.socket:
    """Worker 1 as a raw connection that has sent half of b"halves"."""
    one = call(local_workers[0], 1)
    one.sendall(_HEADER.pack(GROUP, 6, b"") + b"hal")
    return one


@pytest.mark.parametrize("sources", [1, (1, 2, 3)], ids=["recv", "recv_any"])
@pytest.mark.parametrize("cut", [3, 9, 16, 19])
def test_a_wait_that_timed_out_in_the_middle_of_a_message_can_be_repeated(local_workers, sources, cut):
    whole = _HEADER.pack(GROUP, 6, b"") + b"halves"
    with call(local_workers[0], 1) as one:
        one.sendall(whole[:cut])
        wanted = wish(local_workers[0], sources, 6)
        with pytest.raises(TimeoutError):
            local_workers[0].wait(wanted)
        local_workers[0].abandon(wanted)
        assert wanted.memory is not None
        wanted.memory[:] = b"......"
        one.sendall(whole[cut:] + whole)
        assert receive(local_workers[0], sources, 6) == b"halves"
        assert bytes(wanted.memory) == b"......"  # its owner may have used it for something else
        assert receive(local_workers[0], 1, 6) == b"halves"


def test_an_operation_that_timed_out_can_be_waited_for_again(local_workers):
    large = bytes(range(256)) * (64 << 12)
    sending = send(local_workers[1], 0, large)
    with pytest.raises(TimeoutError):
        local_workers[1].wait(sending)
    wanted = wish(local_workers[0], 2, 1)
    with pytest.raises(TimeoutError):
        local_workers[0].wait(wanted)
    send(local_workers[2], 0, b"x")
    local_workers[0].wait(wanted)
    assert receive(local_workers[0], 1, len(large)) == large
    local_workers[1].wait(sending)


# -- who is gone


def test_messages_that_were_whole_before_a_death_are_delivered_before_it_is_told(local_workers):
    for content in (b"first", b"other", b"third"):
        send(local_workers[1], 0, content)
    local_workers.die(1)
    local_workers[0]._key_values.lost.add(1)  # the launcher's word comes first
    assert receive(local_workers[0], 1, 5) == b"first"
    assert receive(local_workers[0], (1, 2, 3), 5) == b"other"
    assert receive(local_workers[0], 1, 5) == b"third"
    for _ in range(2):
        with pytest.raises(PeerGoneError, match="worker 1 has died") as caught:
            receive(local_workers[0], 1, 5)
        assert caught.value.rank == 1


def test_half_a_message_of_the_dead_is_no_message(local_workers):
    half_a_message(local_workers).close()
    with pytest.raises(PeerGoneError) as caught:
        receive(local_workers[0], (1, 2, 3), 6)
    assert caught.value.rank == 1
    send(local_workers[2], 0, b"wholes")
    assert receive(local_workers[0], (1, 2, 3), 6) == b"wholes"


def test_half_a_message_kept_after_a_timeout_goes_with_its_dead_sender(local_workers):
    with half_a_message(local_workers), pytest.raises(TimeoutError):
        receive(local_workers[0], 1, 6)
    with pytest.raises(PeerGoneError):
        receive(local_workers[0], 1, 6)
    assert not local_workers[0]._inbox


def test_half_a_message_that_was_in_the_way_goes_with_its_dead_sender(local_workers):
    with half_a_message(local_workers), pytest.raises(TimeoutError):
        receive(local_workers[0], 1, 6, group=8)
    with pytest.raises(PeerGoneError):
        receive(local_workers[0], 1, 6, group=8)
    assert not local_workers[0]._inbox


def test_a_receive_from_one_that_died_before_it_ever_spoke_is_told_at_once(local_workers):
    local_workers.die(1)
    local_workers[0]._timeout = 0
    with pytest.raises(PeerGoneError, match="worker 1 has died"):
        receive(local_workers[0], 1, 1)


def test_receives_from_anyone_tell_each_death_once_and_go_on_until_nobody_is_left(local_workers):
    local_workers.die(1)
    local_workers.die(3)
    told = set()
    for _ in range(2):  # the first silence shows who does not answer
        with pytest.raises(PeerGoneError) as caught:
            local_workers[0]._timeout = 5
            receive(local_workers[0], (1, 2, 3), 1)
        told.add(caught.value.rank)
    assert told == local_workers[0]._key_values.lost == {1, 3}
    send(local_workers[2], 0, b"x")
    assert receive(local_workers[0], (1, 2, 3), 1) == b"x"
    with pytest.raises(PeerGoneError):  # in another group it has not been told
        receive(local_workers[0], (1, 2, 3), 1, group=8)
    local_workers.die(2)
    for expected in (2, None):
        with pytest.raises(PeerGoneError) as caught:
            receive(local_workers[0], (1, 2, 3), 1)
        assert caught.value.rank == expected


def test_the_launchers_word_counts_though_a_connection_is_open_once_what_was_left_is_read(local_workers):
    """Processes that the dead had started may hold its connections."""
    half_kept = half_a_message(local_workers)
    send(local_workers[2], 0, b"two")
    send(local_workers[2], 0, b"three")
    assert receive(local_workers[0], 2, 3) == b"two"
    local_workers[0]._timeout = 5
    local_workers[0]._key_values.lost.update({1, 2})
    assert receive(local_workers[0], 2, 5) == b"three"
    for peer in (1, 2):
        with pytest.raises(PeerGoneError, match=f"worker {peer} has died"):
            send(local_workers[0], peer, b"x")
        with pytest.raises(PeerGoneError, match=f"worker {peer} has died"):
            receive(local_workers[0], peer, 6)
    half_kept.close()
    send(local_workers[3], 0, b"three")
    told = []
    for _ in range(2):
        with pytest.raises(PeerGoneError) as caught:
            receive(local_workers[0], (1, 2, 3), 5)
        told.append(caught.value.rank)
    assert told == [1, 2]
    assert receive(local_workers[0], (1, 2, 3), 5) == b"three"


def test_who_says_goodbye_has_not_died(local_workers):
    send(local_workers[1], 0, b"x")
    local_workers.leave(1)
    send(local_workers[2], 0, b"y")
    heard = {receive(local_workers[0], (1, 2, 3), 1) for _ in range(2)}
    assert heard == {b"x", b"y"}
    with pytest.raises(TimeoutError):
        receive(local_workers[0], (1, 2, 3), 1)
    with pytest.raises(PeerGoneError, match="worker 1 has left"):
        receive(local_workers[0], 1, 1)
    with pytest.raises(PeerGoneError, match="worker 1 has left"):
        send(local_workers[0], 1, b"z")
    local_workers[0].look()
    assert local_workers[0]._key_values.lost == set()


def test_a_look_finds_who_has_died_and_leaves_messages_alone(local_workers):
    send(local_workers[1], 0, b"x")
    local_workers.die(1)
    local_workers[0].look()
    assert local_workers[0]._key_values.lost == {1}
    assert receive(local_workers[0], 1, 1) == b"x"


def test_nothing_is_sent_to_the_dead(local_workers):
    send(local_workers[1], 0, b"x")
    receive(local_workers[0], 1, 1)
    local_workers.die(1)
    with pytest.raises(PeerGoneError, match="worker 1 has died"):
        send(local_workers[0], 1, b"y")
    local_workers.die(2)  # never met
    with pytest.raises(PeerGoneError, match="worker 2 has died"):
        send(local_workers[0], 2, b"y")


def test_a_message_that_was_leaving_when_its_receiver_died_is_lost_with_it(local_workers):
    sendings = [send(local_workers[0], 1, bytes(64 << 20)) for _ in range(2)]
    receive_some = wish(local_workers[1], 0, 64 << 20)
    with pytest.raises(TimeoutError):
        local_workers[1]._timeout = 0.01
        local_workers[1].wait(receive_some)
    local_workers.die(1)
    for sending in sendings:
        with pytest.raises(PeerGoneError, match="worker 1 has died"):
            local_workers[0].wait(sending)


# -- the end


def test_closing_lets_messages_leave_and_ends_threads_and_connections():
    before, open_before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    local_workers = LocalWorkers(2)
    large = bytes(range(256)) * (16 << 12)
    send(local_workers[1], 0, large)
    wanted = wish(local_workers[0], 1, len(large))
    reading = threading.Thread(target=lambda: local_workers[0].wait(wanted))
    reading.start()
    local_workers[1].close()
    reading.join()
    assert wanted.memory is not None and bytes(wanted.memory) == large
    local_workers[0].close()
    assert threading.active_count() == before
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


def test_closing_waits_for_nobody_that_does_not_read(monkeypatch):
    monkeypatch.setattr("paceline.comm.sockets.CLOSING", 0.1)
    local_workers = LocalWorkers(2)
    before = threading.active_count()
    send(local_workers[0], 1, bytes(64 << 20))
    local_workers[0].close()
    assert threading.active_count() == before - 1  # the one that hears callers, and none that writes
    local_workers[1].close()


def test_a_connection_is_made_for_those_who_talk_only(local_workers):
    send(local_workers[0], 1, b"x")
    receive(local_workers[1], 0, 1)
    assert [len(end._connections) for end in local_workers.ends] == [1, 1, 0, 0]
