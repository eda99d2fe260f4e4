"""The same run again: the same bits, the same clock, the same events. And its record: bytes and blocked time."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.comm import virtual
from paceline.comm.network import Network, NetworkLink
from paceline.comm.timeline import last_launches, split
from paceline.comm.virtual import SimulatedCluster, VirtualComm
from paceline.testing.processes import run_workers

NETWORK = Network(
    NetworkLink(2.5e-5, 1.17e9), NetworkLink(2e-6, 2.5e11), workers_per_host=2, hosts_per_rack=2, oversubscription=2.0
)
WORKERS = 6
DIGEST = "346e0bb389685af46a2a051b937c3d75"


def a_bit_of_everything(comm: VirtualComm) -> list[float]:
    """Asynchronous additions at a server, under a lock and in groups; additions only: no machine differs in those."""
    values = torch.arange(300, dtype=torch.float32)
    group, host = comm.split(comm.rank % 2), comm.split(comm.rank // NETWORK.workers_per_host)
    assert group is not None and host is not None
    weights, mutex = host.shared(torch.zeros(300)), host.mutex()
    for step in range(5):
        comm.elapse(0.001 * (1 + (7 * comm.rank + 3 * step) % 5))
        with mutex:
            weights += 0.5 * comm.rank
            comm.elapse(0.0001)
        values += weights
        work = group.all_reduce(values)
        comm.elapse(0.0002)
        work.wait()
        if comm.rank == 0:
            received = torch.empty(300)
            for _ in range(comm.size - 1):
                comm.recv(torch.empty(600), comm.recv_any(received))
                values += received
        else:
            sending = comm.isend(values, 0)
            comm.send(torch.cat([values, weights]), 0)
            sending.wait()
        comm.broadcast(values, 0).wait()
        with comm.ledger.aside():
            comm.all_gather(values)
        comm.reduce_scatter(values)
        comm.all_to_all(values)
        comm.barrier()
    return [comm.now(), *values.tolist()]


def once() -> tuple[str, list[list[float]]]:
    cluster = SimulatedCluster(WORKERS, NETWORK)
    results = cluster.run(a_bit_of_everything)
    return cluster.digest(), results


def test_a_run_repeats_every_event_and_every_bit() -> None:
    assert once() == once()


def test_the_event_log_is_the_same_on_every_machine() -> None:
    """When a change of the cluster or of the network's model changes this on purpose, put in the new one."""
    assert once()[0] == DIGEST


@pytest.mark.parametrize(
    "change",
    [
        lambda comm: comm.elapse(1e-9 * comm.rank),
        lambda comm: (
            comm.send(torch.zeros(1), 1) if comm.rank == 0 else comm.rank == 1 and comm.recv(torch.zeros(1), 0)
        ),
        lambda comm: comm.barrier(),
    ],
    ids=["time", "message", "collective"],
)
def test_the_digest_shows_another_time_message_or_collective(change: Callable[[VirtualComm], Any]) -> None:
    def act(comm: VirtualComm) -> None:
        change(comm)
        a_bit_of_everything(comm)

    cluster = SimulatedCluster(WORKERS, NETWORK)
    cluster.run(act)
    assert cluster.digest() != DIGEST


@pytest.mark.parametrize("seed", ["0", pytest.param("12345", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_another_process_with_other_hashes_repeats_it_too(seed: str) -> None:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))}
    code = "import test_virtual_repeat as own; digest, results = own.once(); print(digest, results)"
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    digest, results = once()
    assert ended.stdout.strip() == f"{digest} {results}"


# -- bytes


def every_primitive(comm) -> dict[str, Any]:
    """With sizes that do not divide by the number of workers where that is allowed."""
    odd, even = torch.ones(101), torch.ones(comm.size * 7, 3)
    comm.all_reduce(odd).wait()
    comm.all_reduce(odd, "max").wait()
    for src in range(comm.size):
        comm.broadcast(odd, src).wait()
    comm.all_gather(odd)
    comm.reduce_scatter(even)
    comm.all_to_all(even)
    comm.barrier()
    group = comm.split(comm.rank // 2)
    group.all_reduce(odd).wait()
    group.shared(odd)
    if comm.size > 1:
        work = comm.irecv(odd, (comm.rank - 1) % comm.size)
        comm.send(odd, (comm.rank + 1) % comm.size)
        work.wait()
    with comm.ledger.aside():
        comm.all_gather(odd)
    return {"bytes": comm.ledger.snapshot(), "messages": dict(comm.ledger.messages)}


@pytest.mark.dist
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_ledger_says_the_same_on_both_fabrics(fork_server: None, size: int) -> None:
    modelled = SimulatedCluster(size, NETWORK).run(every_primitive)
    assert modelled == run_workers(size, every_primitive)
    assert size == 1 or all(sum(result["bytes"].values()) > 1000 for result in modelled)


# -- blocked time


def timed(
    steps: int, function: Callable[[VirtualComm], float], size: int = 4
) -> list[list[tuple[float, float, float]]]:
    """(compute, communication, waiting) of each step and worker. `function` returns the seconds that it computed."""

    def act(comm: VirtualComm) -> tuple[list[tuple[float, float]], list[float], Any]:
        moments, computed = [], []
        for _ in range(steps):
            start = comm.now()
            computed.append(function(comm))
            moments.append((start, comm.now()))
        return moments, computed, comm.timeline

    results = SimulatedCluster(size, NETWORK).run(act)
    launches = last_launches([list(timeline.operations) for *_, timeline in results])
    found = []
    for moments, computed, timeline in results:
        own = list(timeline.operations)
        splits = split(moments, own, launches)
        # it suffices: of a long run the others may have kept other steps
        assert splits == split(moments, own, last_launches([own]))
        assert [part.compute for part in splits] == pytest.approx(computed)
        for part, (start, end) in zip(splits, moments, strict=True):
            assert part.compute + part.communication + part.waiting == pytest.approx(end - start)
        found.append([(part.compute, part.communication, part.waiting) for part in splits])
    return found


def test_compute_communication_and_waiting_add_up_to_the_step() -> None:
    def step(comm: VirtualComm) -> float:
        before = comm.now()
        group = comm.split(comm.rank % 2)
        assert group is not None
        split_until = comm.now()
        comm.elapse(0.001 * (comm.rank + 1))
        work = comm.all_reduce(torch.ones(10_000))
        comm.elapse(0.0005)
        work.wait()
        group.barrier()
        if comm.rank == 0:
            for _ in range(comm.size - 1):
                comm.recv_any(torch.ones(500))
        else:
            comm.send(torch.ones(500), 0)
        assert before <= split_until
        return 0.001 * (comm.rank + 1) + 0.0005

    rows = timed(3, step)
    assert all(communication > 0 for row in rows for _, communication, _ in row)


def test_waiting_is_for_the_last_to_come_and_communication_from_then_on() -> None:
    def step(comm: VirtualComm) -> float:
        seconds = 0.1 if comm.rank == 3 else 0.02
        comm.elapse(seconds)
        comm.all_reduce(torch.ones(10_000)).wait()
        return seconds

    ring = 2 * 3 * (2.5e-5 + 10_000 / 1.17e9)  # over the cards of two hosts
    for rank, row in enumerate(timed(2, step)):
        for _, communication, waiting in row:
            assert waiting == pytest.approx(0.0 if rank == 3 else 0.08, abs=1e-9)
            assert communication == pytest.approx(ring)


def test_a_receiver_waits_until_the_message_is_sent_and_communicates_until_it_arrives() -> None:
    def step(comm: VirtualComm) -> float:
        if comm.rank == 0:
            comm.recv(torch.ones(10_000), 2)
            return 0.0
        comm.elapse(0.3)
        comm.send(torch.ones(10_000), 0)
        return 0.3

    left = 40_000 / 1.17e9
    arrival = left + 2.5e-5

    def pair(comm: VirtualComm) -> float:
        return step(comm) if comm.rank != 1 else 0.0

    receiver, _, sender = timed(1, pair, size=3)
    assert receiver[0] == pytest.approx((0.0, arrival, 0.3))
    assert sender[0] == pytest.approx((0.3, left, 0.0))


def test_a_worker_waits_for_the_lock_that_another_holds() -> None:
    locks: dict[int, Any] = {}

    def step(comm: VirtualComm) -> float:
        if comm.rank not in locks:
            with comm.ledger.aside():
                locks[comm.rank] = comm.mutex()
        with locks[comm.rank]:
            comm.elapse(0.1)
        return 0.1

    rows = timed(2, step, size=3)
    assert [row[0] for row in rows] == [pytest.approx((0.1, 0.0, 0.1 * rank)) for rank in range(3)]
    assert [row[1] for row in rows] == [pytest.approx((0.1, 0.0, 0.2))] * 3


def test_of_a_long_run_each_worker_keeps_its_share_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(comm: VirtualComm) -> list[int]:
        for _ in range(500):
            comm.barrier()
        return [operation.number for operation in comm.timeline.operations]

    assert SimulatedCluster(2, NETWORK).run(act) == [list(range(1, 501))] * 2
    monkeypatch.setattr(virtual, "_KEPT", 300)
    assert SimulatedCluster(2, NETWORK).run(act) == [list(range(351, 501))] * 2
