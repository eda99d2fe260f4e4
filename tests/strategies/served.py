"""Workers and parameter servers by themselves: paced, marked, and with deaths."""

import os
import signal
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

import numpy as np
import torch
from oracles import Case, Plan, train
from torch import Tensor, nn

from paceline.comm import Comm, PeerLostError
from paceline.strategies.core.batch import Batch
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.downpour import Downpour
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.strategies.sync.ssp import SSP

UNEVEN = [[4, 4, 4], [3, 3, 2], [1, 1, 0], [0, 0, 1], [2, 2, 2]]
Served = ParameterServer | Downpour | SSP


def run(fabric, sync: Served, case: Case, state: list[bytes] | None = None, *, start: int = 0):
    """Workers' results, and the servers'."""
    replicas = len(case.sizes[0])
    plan = Plan(DataParallel(), sync, case, [0, 1, 2], state, start)
    results = fabric(replicas + sync.servers, train, plan)
    return results[:replicas], results[replicas:]


class Marks(nn.Module):
    """Zeros, a place for each worker and step, twice."""

    def __init__(self, workers: int, steps: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(workers, steps, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(workers, steps, dtype=torch.float64))


@dataclass(frozen=True)
class Paced:
    """Workers that mark, with a gradient of 1 at a rate of 1, who has computed which step: [worker][step] seconds."""

    sync: Served  # at rate=full each push moves the weights by all of its gradient, so that it can be seen in them
    seconds: list[list[float]]
    pauses: list[list[float]] | None = None  # [worker][step] seconds before it fetches
    empty: frozenset[tuple[int, int]] = field(default_factory=frozenset)  # (worker, step) without samples
    dies: dict[int, tuple[int, str]] = field(default_factory=dict)  # worker -> (step, "before" or "within" its push)
    killed: bool = False  # it dies of SIGKILL; else `let_die` makes it look so

    @property
    def steps(self) -> int:
        return max(map(len, self.seconds))


def pace(comm: Comm, job: Paced) -> dict[str, Any]:
    """One worker's or server's life. Workers tell what they read, and when each step began and ended."""
    replicas = len(job.seconds)
    model, sync = Marks(replicas, job.steps), job.sync
    if job.dies and not job.killed and comm.rank >= replicas:
        let_die(comm)
    with comm.ledger.aside():
        sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=1.0), comm)
    if comm.rank >= replicas:
        sync.serve()
        return {"report": sync.report()}
    reads, begins, ends = [], [], []
    for step, seconds in enumerate(job.seconds[comm.rank]):
        size = 0 if (comm.rank, step) in job.empty else 1
        total = replicas - sum((other, step) in job.empty for other in range(replicas))
        if job.pauses is not None:
            comm.elapse(job.pauses[comm.rank][step])
        sync.begin(Batch(torch.empty(size, 1), torch.empty(size), total))
        begins.append(comm.now())
        reads.append(torch.stack([-model.a.detach(), -model.b.detach()]))
        comm.elapse(seconds)
        ends.append(comm.now())
        if size > 0:
            for parameter in (model.a, model.b):
                parameter.grad = torch.zeros_like(parameter)
                parameter.grad[comm.rank, step] = 1.0
        if job.dies.get(comm.rank, (-1, ""))[0] == step:
            die(comm, job.dies[comm.rank][1], sync, job.killed)
            return {}
        sync.update()
    sent = comm.ledger.snapshot()
    with comm.ledger.aside():
        sync.finish()
    final = torch.stack([-model.a.detach(), -model.b.detach()])
    return {"reads": reads, "begins": begins, "ends": ends, "final": final, "ledger": sent}


def random_seconds(workers: int, steps: int, mean: float, seed: int = 0) -> list[list[float]]:
    return np.random.default_rng(seed).exponential(mean, (workers, steps)).tolist()


# -- deaths: by SIGKILL, and on the virtual cluster, where a worker's last message says that it is dead


def die(comm: Comm, how: str, sync: Served, killed: bool) -> None:
    if how == "within":
        for place in sync._worker.places:
            comm.send(torch.ones(1, dtype=torch.float64), place.server)  # the header of a push, and nothing after it
    if killed:
        os.kill(os.getpid(), signal.SIGKILL)
    for place in sync._worker.places:
        last = place.accrued if how == "within" else torch.zeros(1, dtype=torch.float64)
        comm.send(torch.full_like(last, nan), place.server)


def let_die(comm: Comm) -> None:
    """From here on `comm` behaves as a fabric does on which workers die."""
    recv, recv_any, send, lost = comm.recv, comm.recv_any, comm.send, set[int]()

    def check(tensor: Tensor, src: int) -> None:
        if isnan(float(tensor.flatten()[0])):
            lost.add(src)
            raise PeerLostError(f"worker {src} is dead", src)

    def receive(tensor: Tensor, src: int) -> None:
        recv(tensor, src)
        check(tensor, src)

    def receive_any(tensor: Tensor) -> int:
        src = recv_any(tensor)
        check(tensor, src)
        return src

    def send_to(tensor: Tensor, dst: int) -> None:
        if dst in lost:
            raise PeerLostError(f"worker {dst} is dead", dst)
        send(tensor, dst)

    comm.recv, comm.recv_any, comm.send, comm.lost = receive, receive_any, send_to, lambda: frozenset(lost)
