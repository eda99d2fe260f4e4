"""Training replicas that differ: each with its own start, saved state and pace, and maybe its own death."""

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from oracles import Case, Weights, replica_batch, weights_of
from torch import Tensor, nn

from paceline.batches import lone
from paceline.comm import Comm
from paceline.strategies import Sync
from paceline.strategies.core.state import from_bytes, to_bytes


@dataclass(frozen=True)
class Life:
    """What a replica is to do. Sequences are by rank; the last of `seeds` repeats."""

    sync: Sync
    case: Case
    seeds: list[int] = field(default_factory=lambda: [0])  # of the start
    saved: list[bytes] | None = None  # {"weights", "sync"} to go on from
    start: int = 0  # the first step
    steps: list[int] | None = None  # to train; null: all of the case's
    seconds: list[float] | None = None  # that a step takes
    dies: dict[int, int] = field(default_factory=dict)  # rank -> the step in which SIGKILL comes, after the update
    looks: bool = False  # at the consensus after every step


def live(comm: Comm, life: Life) -> dict[str, Any]:
    """One replica's life on data_parallel."""
    sync, case, rank = life.sync, life.case, comm.rank
    model = case.start(life.seeds[min(rank, len(life.seeds) - 1)])
    with comm.ledger.aside():
        saved = from_bytes(life.saved[rank]) if life.saved is not None else None
        if saved is not None:
            model.load_state_dict(saved["weights"])
        sync.prepare(dict(model.named_parameters()), case.optimizer(model.parameters()), comm)
        if saved is not None:
            if sync.traits.synchronous and not (sync.traits.weights_agree and sync.traits.state_agrees):
                model.load_state_dict(saved["weights"])
            sync.load_state_dict(saved["sync"])
    trajectory, kept, seen = [], [], []
    for step in range(life.start, len(case.sizes) if life.steps is None else life.steps[rank]):
        batch = replica_batch(case, step, rank)
        sync.begin(batch)
        if batch.size > 0:
            F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
        if life.seconds is not None:
            comm.elapse(life.seconds[rank])
        sync.update()
        if life.dies.get(rank) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        trajectory.append(weights_of(model))
        kept.append(copy(sync.state_dict()))
        if life.looks:
            with comm.ledger.aside():
                seen.append(copy(sync.consensus()))
    clock = comm.now()
    with comm.ledger.aside():
        sync.finish()
    return {
        "trajectory": trajectory,  # the weights after each step
        "states": kept,  # what state_dict gave after each step
        "seen": seen,
        "clock": clock,  # seconds, when training was over
        "weights": weights_of(model),
        "result": copy(sync.consensus()),
        "ledger": comm.ledger.snapshot(),
        "report": sync.report(),
        "buffers": sum(buffer.numel() * buffer.element_size() for buffer in sync.buffers()),
    }


def copy(state: dict[str, Any]) -> dict[str, Any]:
    return from_bytes(to_bytes(state))


def saved_after(results: list[dict[str, Any]], step: int) -> list[bytes]:
    """What each replica would have saved after `step` steps."""
    return [to_bytes({"weights": r["trajectory"][step - 1], "sync": r["states"][step - 1]}) for r in results]


# -- the same in plain torch


def flat(weights: Weights) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def stacked(results: list[dict[str, Any]], step: int) -> Tensor:
    """[replicas, entries]: all weights after `step` (0-based)."""
    return torch.stack([flat(result["trajectory"][step]) for result in results])


class Replica:
    """A model with an optimizer of its own, as one vector."""

    def __init__(self, case: Case, seed: int, rank: int) -> None:
        self.case, self.rank, self.model = case, rank, case.start(seed)
        self._optimizer = case.optimizer(self.model.parameters())

    @property
    def vector(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach().clone()

    @vector.setter
    def vector(self, values: Tensor) -> None:
        nn.utils.vector_to_parameters(values.clone(), self.model.parameters())

    def gradient(self, step: int) -> None:
        """Into the parameters' `grad`."""
        batch = replica_batch(self.case, step, self.rank)
        self._optimizer.zero_grad()
        if batch.size > 0:
            F.cross_entropy(self.model(batch.inputs), lone(batch.targets)).backward()

    def step(self) -> None:
        self._optimizer.step()
