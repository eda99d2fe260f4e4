"""Hogwild! without a lock against the same under one: two processes, one sample an update, 50 non-zeros of 200,000.

All variants train the same model on the same samples in the same two processes, in turn. What is timed is what Sync and
Strategy do of a step: begin, forward, backward, update; batches are cut beforehand.
"""

from collections.abc import Callable
from itertools import cycle

import torch

from paceline.batches import lone
from paceline.comm.process import ProcessComm
from paceline.strategies.core.batch import Batch
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.hogwild import Hogwild
from paceline.tasks.data.sparse import Sparse
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.sparse_logistic_regression import SparseLogisticRegression

from .measure import Outcome, alternate, in_processes

SAMPLES = 4000
SECONDS = 0.4  # that a block lasts
AHEAD = 0.002  # seconds for both to be ready for a block


def hogwild_against_locks(rounds: int) -> list[Outcome]:
    return in_processes(2, _measure, rounds)


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    data = Sparse(samples=SAMPLES)
    train, _ = data.load()
    samples = zip(lone(train.samples).split(1), train.targets.split(1), strict=True)
    batches = [Batch(inputs, targets, 2) for inputs, targets in samples][comm.rank :: 2]
    free, written, whole = (HogwildTraining(data, Hogwild(lock), comm, batches) for lock in ("none", "update", "step"))
    peers: list[tuple[str, str, Callable[[], float]]] = [
        ("2 processes, whole steps locked", "<= 0.556, which is 1.8 times the updates", lambda: _block(whole, comm, 2)),
        ("2 processes, writing locked", "", lambda: _block(written, comm, 2)),
        ("1 process", "", lambda: _block(free, comm, 1)),
    ]
    return [
        alternate("hogwild update, 2 processes", lambda: _block(free, comm, 2), peer, name, target, rounds)
        for name, target, peer in peers
    ]


class HogwildTraining:
    def __init__(self, data: Sparse, sync: Hogwild, comm: ProcessComm, batches: list[Batch]) -> None:
        alone = comm.split(comm.rank)
        assert alone is not None
        model = SparseLogisticRegression(data.spec)
        self.sync, self.strategy, self.batches = sync, DataParallel(), cycle(batches)
        self.strategy.prepare(model, cross_entropy, alone, sync.before_backward)
        sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.05), comm)

    def __call__(self) -> None:
        batch = next(self.batches)
        self.sync.begin(batch)
        self.strategy.forward_backward(batch)
        self.sync.update()


def _block(step: HogwildTraining, comm: ProcessComm, workers: int) -> float:
    """Milliseconds for each of the updates that the first `workers` of both make in a block, all at the same time."""
    start = float(comm.all_gather(torch.tensor(comm.now(), dtype=torch.float64)).max()) + AHEAD
    updates = 0
    if comm.rank < workers:
        while comm.now() < start:
            pass
        while comm.now() < start + SECONDS:
            step()
            updates += 1
    return 1e3 * SECONDS / float(comm.all_gather(torch.tensor(updates)).sum())
