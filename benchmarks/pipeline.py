"""Compares strategy=pipeline with torch.distributed.pipelining: step time of two stages on this host's loopback.

Both train the same stages on the same batch in the same two processes, in turn: each time the better of GPipe and 1F1B,
of ours and of torch's.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from paceline.comm.process import ProcessComm
from paceline.strategies.core.batch import Batch
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.single import LocalUpdate
from paceline.tasks.losses.cross_entropy import cross_entropy

from .measure import Outcome, alternate, in_processes

WIDTH, BATCH, STEPS = 1024, 256, 10
PEERS = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def pipeline_against_torch(rounds: int) -> list[Outcome]:
    return in_processes(2, _measure, rounds)


def model() -> nn.Sequential:
    """Two halves that take about as long: 2.1 M parameters each."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers)


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    inputs, targets = torch.randn(BATCH, WIDTH), torch.randint(WIDTH, (BATCH,))
    dist.init_process_group("gloo", store=dist.PrefixStore("peer", comm.store), rank=comm.rank, world_size=comm.size)
    outcomes = [
        alternate(
            f"pipeline step, 2 stages, m = {m}: mlp, 4.2 M parameters, batch {BATCH}",
            _best([OurPipeline(name, m, comm, inputs, targets) for name in PEERS], comm),
            _best([TorchPipelinePeer(name, m, comm, inputs, targets) for name in PEERS], comm),
            "torch.distributed.pipelining, the better of GPipe and 1F1B",
            "<= 0.95",
            rounds,
        )
        for m in (4, 16)
    ]
    dist.destroy_process_group()
    return outcomes


class OurPipeline:
    def __init__(self, schedule: str, m: int, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        self.batch = Batch(inputs, targets, total=len(inputs))
        replica, alone = comm.split(0), comm.split(comm.rank)
        assert replica is not None and alone is not None
        self.sync, self.strategy = LocalUpdate(), Pipeline(2, schedule, m, cut=[4])
        self.strategy.prepare(model(), cross_entropy, replica, self.sync.before_backward)
        module = self.strategy.module
        self.sync.prepare(dict(module.named_parameters()), torch.optim.SGD(module.parameters(), lr=0.01), alone)

    def __call__(self) -> None:
        self.sync.begin(self.batch)
        self.strategy.forward_backward(self.batch)
        self.sync.update()


class TorchPipelinePeer:
    """The code of torch's tutorial."""

    def __init__(self, schedule: str, m: int, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets, self.rank = inputs, targets, comm.rank
        part = model()[4 * comm.rank : 4 * comm.rank + 4]
        stage = PipelineStage(part, comm.rank, comm.size, torch.device("cpu"))
        self.schedule = PEERS[schedule](stage, n_microbatches=m, loss_fn=cross_entropy)
        self.optimizer = torch.optim.SGD(part.parameters(), lr=0.01)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        if self.rank == 0:
            self.schedule.step(self.inputs)
        else:
            self.schedule.step(target=self.targets, losses=[])
        self.optimizer.step()


def _best(steps: list[OurPipeline] | list[TorchPipelinePeer], comm: ProcessComm) -> Callable[[], float]:
    return lambda: min(_block(step, comm) for step in steps)


def _block(step: OurPipeline | TorchPipelinePeer, comm: ProcessComm) -> float:
    """The median step of a block, in milliseconds."""
    comm.barrier()
    times: list[float] = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
