"""Point to point on the process fabric: order, and receiving from whoever is first."""

import pytest
import torch

pytestmark = pytest.mark.dist


def number(value: int) -> torch.Tensor:
    return torch.tensor([value])


def receive_in_order(comm, count):
    if comm.rank == 0:
        for i in range(count):
            comm.send(number(i), 1)
        return []
    received = []
    for _ in range(count):
        tensor = number(-1)
        comm.recv(tensor, 0)
        received.append(int(tensor))
    return received


def test_messages_of_one_sender_arrive_in_order(workers):
    assert workers(2, receive_in_order, 200)[1] == list(range(200))


def receive_posted_ahead(comm):
    tensors = [torch.full((i + 1,), i if comm.rank == 0 else -1) for i in range(20)]
    works = [comm.isend(tensor, 1) if comm.rank == 0 else comm.irecv(tensor, 0) for tensor in tensors]
    for work in works:
        work.wait()
    return tensors


def test_receives_posted_ahead_match_sends_of_different_sizes_in_order(workers):
    for i, tensor in enumerate(workers(2, receive_posted_ahead)[1]):
        assert torch.equal(tensor, torch.full((i + 1,), i))


def take_whoever_is_first(comm):
    """Worker 2 sends only once worker 0 has the message of worker 1, and the other way round."""
    if comm.rank == 0:
        order = []
        for following in (1, 2, 1):
            comm.board.post(f"go/{len(order)}/{following}", "")
            tensor = number(-1)
            order.append([comm.recv_any(tensor), int(tensor)])
        return order
    for turn, sender in enumerate((1, 2, 1)):
        if comm.rank == sender:
            comm.board.read(f"go/{turn}/{sender}", 0)
            comm.send(number(10 * comm.rank + turn), 0)
    return []


def test_recv_any_takes_whoever_is_first_and_says_who(workers):
    assert workers(3, take_whoever_is_first)[0] == [[1, 10], [2, 21], [1, 12]]


def serve_requests(comm, rounds):
    """Two-part messages as a parameter server gets them: a request from anyone, then its payload from that worker."""
    if comm.rank == 0:
        log = []
        for _ in range(rounds * (comm.size - 1)):
            request = number(-1)
            sender = comm.recv_any(request)
            payload = torch.empty(1000)
            comm.recv(payload, sender)
            log.append([sender, int(request), int(payload[0]), int(payload[-1])])
        return log
    for i in range(rounds):
        comm.send(number(i), 0)
        comm.send(torch.full((1000,), float(100 * comm.rank + i)), 0)
    return []


def test_recv_any_keeps_each_senders_messages_in_order_and_together(workers):
    log = workers(4, serve_requests, 25)[0]
    for sender in (1, 2, 3):
        mine = [entry[1:] for entry in log if entry[0] == sender]
        assert mine == [[i, 100 * sender + i, 100 * sender + i] for i in range(25)]


def exchange_both_ways(comm):
    other = 1 - comm.rank
    mine = torch.full((300_000,), float(comm.rank))
    received = torch.empty_like(mine)
    work = comm.irecv(received, other)
    comm.send(mine, other)  # both send first: larger than any socket buffer
    work.wait()
    return received


def test_two_workers_that_send_to_each_other_at_once_do_not_lock_up(workers):
    results = workers(2, exchange_both_ways)
    assert [float(result.unique()) for result in results] == [1.0, 0.0]


def now_everywhere(comm):
    comm.barrier()
    before = comm.now()
    comm.barrier()
    between = comm.now()
    comm.barrier()
    return [before, between, comm.now()]


def test_workers_share_one_clock(workers):
    moments = workers(3, now_everywhere)
    for earlier in moments:
        for later in moments:
            assert earlier[0] <= later[1] <= earlier[2]


def let_time_pass(comm):
    start = comm.now()
    comm.elapse(0.2)
    return comm.now() - start


def test_elapse_lets_that_much_time_pass(workers):
    [seconds] = workers(1, let_time_pass)
    assert 0.2 <= seconds < 5
