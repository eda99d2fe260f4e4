"""The ledger against the kernel: bytes that a worker wrote, from /proc/self/io, for every primitive and every rank."""

import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.dist
ENTRIES = 600_000  # float32: 2.4 MB, divisible by 2, 3, 4 and 5
TOLERANCE = 0.02  # headers, and heartbeats meanwhile
SLACK = 20_000  # bytes, where a rank is to send nothing


def all_reduce(comm, tensor):
    comm.all_reduce(tensor, "max").wait()  # sums go through memory: see below


def all_reduce_uneven(comm, tensor):
    comm.all_reduce(tensor[:-1].clone(), "max").wait()  # not divisible by the number of workers


def all_reduce_future(comm, tensor):
    comm.all_reduce_future(tensor, blocks=True).wait()


def broadcast_from_first(comm, tensor):
    comm.broadcast(tensor, 0).wait()


def broadcast_from_last(comm, tensor):
    comm.broadcast(tensor, comm.size - 1).wait()


def all_gather(comm, tensor):
    comm.all_gather(tensor)


def reduce_scatter(comm, tensor):
    comm.reduce_scatter(tensor)


def all_to_all(comm, tensor):
    comm.all_to_all(tensor)


def send_round(comm, tensor):
    received = comm.irecv(torch.empty_like(tensor), (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    received.wait()


def isend_to_first(comm, tensor):
    if comm.rank > 0:
        return comm.isend(tensor, 0).wait()
    for _ in range(comm.size - 1):
        comm.recv_any(tensor)
    return None


PRIMITIVES = [
    all_reduce,
    all_reduce_uneven,
    all_reduce_future,
    broadcast_from_first,
    broadcast_from_last,
    all_gather,
    reduce_scatter,
    all_to_all,
    send_round,
    isend_to_first,
]


def written() -> int:
    found = re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


def measure(comm):
    """{primitive: (bytes in the ledger, bytes written)}, with all workers between two barriers."""
    measured = {}
    for primitive in PRIMITIVES:
        tensor = torch.ones(ENTRIES)
        comm.barrier()
        before, counted_before = written(), sum(comm.ledger.snapshot().values())
        primitive(comm, tensor)
        comm.barrier()  # a ring forwards others' pieces after our own are done
        measured[primitive.__name__] = [sum(comm.ledger.snapshot().values()) - counted_before, written() - before]
    return measured


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_ledger_equals_what_leaves_the_process(workers, size):
    results = workers(size, measure)
    wrong = [
        f"{name}, worker {rank} of {size}: the ledger says {counted:,}, {left:,} left"
        for rank, result in enumerate(results)
        for name, (counted, left) in result.items()
        if not counted - SLACK <= left <= counted * (1 + TOLERANCE) + SLACK
    ]
    assert not wrong, "\n".join(wrong)
    for primitive in PRIMITIVES:  # something was measured
        assert sum(result[primitive.__name__][1] for result in results) >= 1_000_000


def sum_in_memory(comm):
    tensor = torch.ones(ENTRIES)
    comm.barrier()
    before = written()
    comm.all_reduce(tensor).wait()
    comm.barrier()
    return [written() - before, comm.ledger.snapshot(), float(tensor.min())]


def test_a_sum_on_one_host_goes_through_memory_and_counts_what_others_read_of_it(workers):
    """They read this worker's part of each share that they sum, and the share that it has summed."""
    for left, counted, least in workers(3, sum_in_memory):
        assert left < SLACK and least == 3
        assert counted == {"all_reduce": 2 * 2 / 3 * 4 * ENTRIES}


def keep_aside(comm):
    with comm.ledger.aside():
        comm.all_reduce(torch.ones(10)).wait()
        with comm.ledger.aside():
            comm.all_gather(torch.ones(10))
        comm.all_to_all(torch.ones(10))
    aside = comm.ledger.snapshot()
    comm.all_gather(torch.ones(10))
    return {"aside": aside, "after": comm.ledger.snapshot(), "messages": dict(comm.ledger.messages)}


def test_what_is_sent_aside_is_not_counted_even_nested(workers):
    for result in workers(2, keep_aside):
        assert result == {"aside": {}, "after": {"all_gather": 40}, "messages": {"all_gather": 1}}
