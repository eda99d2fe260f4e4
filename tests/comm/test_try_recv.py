"""Receiving what has arrived, without waiting."""

import pytest
import torch

pytestmark = pytest.mark.dist
LARGE = 2**20  # entries of 8 bytes, which no socket's buffers hold


def number(value: float, size: int = 1) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.float64)


def look_early_and_late(comm):
    """Worker 0 looks before anybody sends, and again after all have."""
    message, seen = number(-1), []
    if comm.rank == 0:
        seen.append(comm.try_recv_any(message))
    comm.barrier()
    if comm.rank != 0:
        comm.send(number(comm.rank), 0)
        comm.send(number(10 + comm.rank), 0)
    comm.barrier()
    comm.elapse(0.1)  # on the virtual clock a message takes its time to arrive
    if comm.rank == 0:
        for _ in range(2 * (comm.size - 1)):
            sender = comm.try_recv_any(message)
            seen.append([sender, message.clone()])
        seen.append(comm.try_recv_any(message))
    comm.barrier()
    return seen


def test_it_finds_each_message_once_in_the_order_of_its_sender_and_nothing_where_there_is_nothing(fabric):
    first, *found, last = fabric(4, look_early_and_late)[0]
    assert first is None
    assert last is None
    for sender in (1, 2, 3):
        assert [float(message) for source, message in found if source == sender] == [sender, 10 + sender]


def take_a_large_one(comm):
    """A message that arrives bit by bit is found when all of it has, and none of it is lost in between."""
    if comm.rank == 1:
        work = comm.isend(number(7, LARGE), 0)
        comm.send(number(8), 0)
        work.wait()
        return None
    large, small = number(-1, LARGE), number(-1)
    if comm.try_recv_any(large) is None:
        comm.recv_any(large)
    comm.recv(small, 1)
    return [bool((large == 7).all()), float(small)]


def test_a_message_of_which_a_part_has_arrived_is_not_lost(fabric):
    assert fabric(2, take_a_large_one)[0] == [True, 8.0]


def send_both_ways(comm):
    """Both wait for their send before they receive."""
    other = 1 - comm.rank
    comm.send(number(comm.rank, LARGE), other)
    comm.send(number(10 + comm.rank, LARGE), other)
    received = [number(-1, LARGE) for _ in range(2)]
    for tensor in received:
        comm.recv(tensor, other)
    return [float(tensor.unique()) for tensor in received]


@pytest.mark.slow
def test_two_that_send_large_messages_to_each_other_do_not_block_each_other(fabric):
    assert fabric(2, send_both_ways) == [[1.0, 11.0], [0.0, 10.0]]
