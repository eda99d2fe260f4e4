"""A server's loop by itself: whom it hears, whose death ends it, who gets the last weights and who the state."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.comm import Comm, PeerLostError, Work
from paceline.comm.ledger import Ledger
from paceline.exchange.serving import Serving
from paceline.strategies.core.state import recv_state

WORKERS = 4  # and a server, whose rank is 4


class Dead(Work):
    """A message under way to a worker that has died meanwhile."""

    def wait(self) -> None:
        raise PeerLostError("worker 3 died while it was sent to", 3)


class Left(Work):
    def wait(self) -> None: ...


class Fabric:
    """The server's end of a fabric on which some are dead: `known`, or found out by sending (`begin`, `wait`)."""

    def __init__(self, known: Iterable[int] = (), begin: Iterable[int] = (), wait: Iterable[int] = ()) -> None:
        self.known, self.begin, self.wait = set(known), set(begin), set(wait)
        self.ledger = Ledger()
        self.sent: list[tuple[int, float, bool]] = []  # to whom, what, and whether it was aside

    def isend(self, tensor: Tensor, dst: int) -> Work:
        assert dst not in self.known, "to send it anything"
        if dst in self.begin:
            raise PeerLostError(f"worker {dst} is dead", dst)
        self.sent.append((dst, float(tensor[0]), self.ledger.is_aside))
        return Dead() if dst in self.wait else Left()

    def send(self, tensor: Tensor, dst: int) -> None:
        self.isend(tensor, dst).wait()

    def lost(self) -> frozenset[int]:
        return frozenset(self.known)


def serving(fabric: Any = None, survives: bool = True) -> Serving:
    comm: Any = Fabric() if fabric is None else fabric
    return Serving(comm, WORKERS, survives)


def finds_dead(rank: int | None) -> Callable[[], None]:
    def listen() -> None:
        raise PeerLostError(f"worker {rank} is dead", rank)

    return listen


def test_it_hears_until_all_are_done():
    loop, says = serving(), [2, 0, 3, 1]
    heard = []

    def listen() -> None:
        worker = says.pop(0)
        heard.append(worker)
        loop.going.discard(worker)

    while loop.going:
        assert loop.hear(listen) is None
    assert heard == [2, 0, 3, 1]


def test_a_death_is_named_and_the_others_go_on():
    loop = serving()
    assert loop.hear(finds_dead(2)) == 2
    assert loop.going == {0, 1, 3}
    assert loop.hear(finds_dead(2)) == 2, "of one that is gone already, too"
    assert loop.going == {0, 1, 3}


@pytest.mark.parametrize(
    ("rank", "survives"),
    [(0, True), (WORKERS, True), (WORKERS + 1, True), (None, True), (2, False)],
    ids=["worker 0", "another server", "a server behind it", "nobody knows who", "nobody can be done without"],
)
def test_the_death_of_whom_the_others_cannot_do_without_ends_it(rank, survives):
    loop = serving(survives=survives)
    with pytest.raises(PeerLostError, match=f"worker {rank} is dead"):
        loop.hear(finds_dead(rank))
    assert loop.going == {0, 1, 2, 3}


def test_no_other_error_is_a_death():
    def listen() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        serving().hear(listen)


LAST = torch.tensor([7.0]), torch.tensor([8.0])


@pytest.mark.parametrize(
    "dead", [{"known": [1]}, {"begin": [1]}, {"known": [1], "wait": [3]}, {"known": [1, 2, 3]}], ids=str
)
def test_the_last_weights_reach_all_survivors_in_order_and_no_ledger(dead):
    fabric = Fabric(**dead)
    serving(fabric).send_last(*LAST)
    gone = {*dead.get("known", []), *dead.get("begin", [])}
    assert fabric.sent == [(worker, what, True) for worker in range(WORKERS) if worker not in gone for what in (7, 8)]
    assert not fabric.ledger.is_aside


def test_the_last_weights_go_to_those_alone_whom_this_server_answers():
    fabric = Fabric(known=[3])
    serving(fabric).send_last(LAST[0], to=[1, 3])
    assert fabric.sent == [(1, 7, True)]


def test_what_is_sent_to_the_dead_goes_nowhere_and_what_is_sent_to_the_living_is_in_the_ledger():
    fabric = Fabric(begin=[1])
    loop = serving(fabric)
    loop.send(LAST[0], 1)
    loop.send(LAST[0], 2)
    assert fabric.sent == [(2, 7, False)]
    assert loop.going == {0, 1, 2, 3}, "the next message, or what is found in its place, tells of it"


@pytest.mark.parametrize("act", ["send", "begin", "wait"])
def test_where_nobody_can_be_done_without_no_message_to_the_dead_is_overlooked(act):
    fabric = Fabric(**{"begin" if act == "send" else act: [3]})
    loop = serving(fabric, survives=False)
    with pytest.raises(PeerLostError, match="worker 3"):
        loop.send(LAST[0], 3) if act == "send" else loop.send_last(LAST[0])


def save(comm: Comm) -> list[Any]:
    """Worker 1 asks for the state; all are sent the last weights."""
    last = torch.zeros(1)
    if comm.rank < 2:
        request = torch.tensor([float(comm.rank)])
        comm.send(request, 2)
        state = recv_state(2, comm) if comm.rank == 1 else {}
        comm.recv(last, 2)
        return [state, float(last), comm.ledger.snapshot()]
    loop, request = Serving(comm, 2, True), torch.zeros(1)

    def listen() -> None:
        worker = comm.recv_any(request)
        if float(request) == 1:
            loop.send_state({"step": 5, "weights": torch.arange(3)}, worker)
        loop.going.discard(worker)

    while loop.going:
        loop.hear(listen)
    loop.send_last(torch.tensor([9.0]))
    return [{}, 9.0, comm.ledger.snapshot()]


@pytest.mark.dist
def test_who_saves_is_sent_the_state_and_no_ledger_counts_it(fabric):
    zero, one, server = fabric(3, save)
    assert (zero, server) == ([{}, 9.0, {"send": 4}], [{}, 9.0, {}])
    assert one[0]["step"] == 5 and torch.equal(one[0]["weights"], torch.arange(3))
    assert one[1:] == [9.0, {"send": 4}]
