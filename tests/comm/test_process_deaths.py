"""Workers that are killed: what is delivered, who is told, at once, and that the others go on."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from paceline.comm import HangError, PeerLostError
from paceline.comm.connecting import connect
from paceline.comm.key_values import mark_lost
from paceline.comm.rendezvous import serve_store

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]
LONG = 30.0  # seconds: no death is to be noticed by a timeout
PROMPT = 10.0  # seconds on a busy machine for what takes well under one


def number(value: int = -1) -> torch.Tensor:
    return torch.tensor([value])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loss(call) -> dict:
    """The `PeerLostError` of `call`: its rank, its message, and after how many seconds it came."""
    start = time.monotonic()
    with pytest.raises(PeerLostError) as caught:
        call()
    return {"rank": caught.value.rank, "message": str(caught.value), "seconds": time.monotonic() - start}


def wait_in(comm, operation, dead):
    comm.barrier()
    comm.send(number(), dead)  # a connection whose end shows
    tensor = number()
    calls = {
        "recv": lambda: comm.recv(tensor, dead),
        "irecv": lambda: comm.irecv(tensor, dead).wait(),
        "recv_any": lambda: comm.recv_any(tensor),
        "send": lambda: comm.send(torch.zeros(32 << 20, dtype=torch.uint8), dead),
        "isend": lambda: comm.isend(torch.zeros(32 << 20, dtype=torch.uint8), dead).wait(),
        "barrier": comm.barrier,
        "split": lambda: comm.split(0),
        "shared": lambda: comm.shared(tensor),
        "mutex": comm.mutex,
        "read": lambda: comm.key_values.read("never", dead),
    }
    told = loss(calls[operation])
    return {**told, "lost": sorted(comm.lost())}


def be_killed_while_others_wait(comm, operation):
    """Worker 1 dies well after the others have begun to wait."""
    if comm.rank != 1:
        return wait_in(comm, operation, 1)
    comm.barrier()
    for src in (0, 2):
        comm.recv(number(), src)
    time.sleep(0.5)
    return die()


MOST = ["recv", "recv_any", "send", "barrier"]
REST = ["irecv", "isend", "split", "shared", "mutex", "read"]


@pytest.mark.parametrize("operation", [*MOST, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def test_whoever_waits_for_a_killed_worker_is_told_its_rank_at_once(workers, operation):
    outcomes = workers(3, be_killed_while_others_wait, operation, timeout=LONG, lost=[1])
    for rank in (0, 2):
        told = outcomes[rank]
        assert told["rank"] == 1 and told["lost"] == [1], told
        assert f"worker {rank} lost a peer" in told["message"] and "worker 1 has died" in told["message"]
        assert told["seconds"] < PROMPT


def serve_while_workers_die(comm):
    """Worker 0 serves three; 1 dies after its second message, 2 before it has ever spoken."""
    if comm.rank == 0:
        heard, lost = [], []
        while len(heard) < 2 + 5 or len(lost) < 2:
            tensor = number()
            try:
                sender = comm.recv_any(tensor)
            except PeerLostError as error:
                lost.append(error.rank)
                continue
            heard.append([sender, int(tensor)])
            if sender == 3:
                comm.send(tensor, 3)
        return {"heard": heard, "lost": lost, "known": sorted(comm.lost())}
    if comm.rank == 2:
        die()
    for i in range(2 if comm.rank == 1 else 5):
        comm.send(number(i), 0)
        if comm.rank == 3:
            comm.recv(number(), 0)
            time.sleep(0.2)
    if comm.rank == 1:
        die()
    return None


def test_a_server_hears_of_each_death_once_and_goes_on_with_the_others(workers):
    result = workers(4, serve_while_workers_die, timeout=LONG, lost=[1, 2])[0]
    assert sorted(result["lost"]) == result["known"] == [1, 2]
    assert [i for sender, i in result["heard"] if sender == 1] == [0, 1]
    assert [i for sender, i in result["heard"] if sender == 3] == [0, 1, 2, 3, 4]


def send_and_die(comm, length):
    if comm.rank == 1:
        comm.send(number(1), 0)
        comm.send(torch.arange(length), 0)
        comm.send(number(2), 0)
        die()
    while comm.lost() != {1}:
        time.sleep(0.05)
    tensors = [number(), torch.zeros(length, dtype=torch.int64), number()]
    for tensor in tensors:
        comm.recv(tensor, 1)
    return {"tensors": tensors, "then": loss(lambda: comm.recv(number(), 1))}


def test_whole_messages_of_the_dead_are_delivered_first(workers):
    length = 10_000  # bytes that the kernel holds
    result = workers(2, send_and_die, length, timeout=LONG, lost=[1])[0]
    assert [int(tensor[0]) for tensor in result["tensors"]] == [1, 0, 2]
    assert torch.equal(result["tensors"][1], torch.arange(length))
    assert result["then"]["rank"] == 1


def die_in_the_middle(comm):
    large = torch.zeros(16 << 20, dtype=torch.int64)
    if comm.rank == 1:
        comm.send(number(), 0)
        comm.isend(large, 0)
        die()
    comm.recv(number(), 1)
    return loss(lambda: comm.recv(large, 1))


def test_half_a_message_of_the_dead_is_a_loss(workers):
    told = workers(2, die_in_the_middle, timeout=LONG, lost=[1])[0]
    assert told["rank"] == 1 and told["seconds"] < PROMPT


def lose_in_a_group(comm):
    """The group is the workers 3, 2 and 1 of the run; the run's 2 dies, which is the group's 1."""
    group = comm.split(0 if comm.rank else None)
    if group is None:
        return None
    if group.rank == 1:
        die()
    return {
        "recv": loss(lambda: group.recv(number(), 1)),
        "send": loss(lambda: group.send(number(), 1)),
        "recv_any": loss(lambda: group.recv_any(number())),
        "barrier": loss(group.barrier),
        "lost": sorted(group.lost()),
    }


@pytest.mark.slow
def test_ranks_of_the_dead_are_those_of_the_group(workers):
    for result in workers(4, lose_in_a_group, timeout=LONG, lost=[2])[1::2]:
        assert result.pop("lost") == [1]
        assert {told["rank"] for told in result.values()} == {1}
        assert all("worker 2 has died" in told["message"] for told in result.values())


def leave_early(comm):
    if comm.rank == 1:
        comm.send(number(5), 0)
        comm.close()
        return {"threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]}
    if comm.rank == 2:
        comm.key_values.read("heard", 0)
        comm.send(number(7), 0)
        return {}
    heard = []
    for _ in range(2):
        tensor = number()
        sender = comm.recv_any(tensor)
        heard.append([sender, int(tensor)])
        comm.key_values.post("heard", "")
    with pytest.raises(HangError) as caught:
        comm.recv_any(number())
    return {"heard": heard, "lost": sorted(comm.lost()), "message": str(caught.value)}


def test_closing_is_no_death_and_leaves_no_thread(workers):
    results = workers(3, leave_early, timeout=1.0)
    assert results[0]["heard"] == [[1, 5], [2, 7]]
    assert results[0]["lost"] == []
    assert results[1]["threads"] == []


def two_in_one_process(comm, act):
    store = serve_store(0)
    with ThreadPoolExecutor(2) as pool:
        aggregation = [pool.submit(connect, store.endpoint, rank, 2, LONG, torch.device("cpu")) for rank in range(2)]
        first, _ = (future.result() for future in aggregation)
    mark_lost(store, 1)
    calls = {
        "barrier": first.barrier,
        "recv_any": lambda: first.recv_any(number()),
        "read": lambda: first.key_values.read("x", 1),
    }
    told = loss(calls[act])
    return {**told, "lost": sorted(first.lost())}


@pytest.mark.parametrize("act", ["barrier", "recv_any", "read"])
def test_the_launchers_word_is_enough_where_no_connection_shows_a_death(workers, act):
    [told] = workers(1, two_in_one_process, act)
    assert told["rank"] == 1 and told["lost"] == [1]
    assert told["seconds"] < PROMPT


def carry_on_without(comm):
    """A death leaves the others' messages, of all sizes, as they were."""
    if comm.rank == 1:
        die()
    other = 2 - comm.rank
    loss(lambda: comm.recv(number(), 1))
    mine, theirs = torch.full((1 << 20,), float(comm.rank)), torch.empty(1 << 20)
    work = comm.isend(mine, other)
    comm.recv(theirs, other)
    work.wait()
    return float(theirs.unique())


def test_the_others_go_on_talking_after_a_death(workers):
    assert workers(3, carry_on_without, timeout=LONG, lost=[1]) == [2.0, None, 0.0]
