"""Built-in bucketed BSP against torch's DistributedDataParallel: step time of two workers on this host's loopback.

Both train the same model on the same batch in the same two processes, in turn.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from paceline.comm.process import ProcessComm
from paceline.strategies.core.batch import Batch
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.mlp import MLP

from .measure import Outcome, alternate, in_processes

IMAGES = DataSpec((1, 28, 28), torch.float32, (), 10, 60_000, 10_000)
MODELS = {
    "mlp, 2.9 M parameters, batch 256": (lambda: MLP(IMAGES, [1024, 1024, 1024]), 256, 20, "<= 0.85"),
    "cnn, 108 k parameters, batch 256": (lambda: CNN(IMAGES), 256, 10, "<= 0.95"),
}


def bsp_against_ddp(rounds: int) -> list[Outcome]:
    return in_processes(2, _measure, rounds)


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for name, (make, batch_size, steps, target) in MODELS.items():
        torch.manual_seed(comm.rank)
        inputs, targets = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
        ours = OurBSP(make(), comm, inputs, targets)
        peer = TorchDDPPeer(make(), comm, inputs, targets)
        outcome = alternate(
            f"bsp step, 2 workers: {name}",
            lambda ours=ours, steps=steps: timed(ours, comm, steps),
            lambda peer=peer, steps=steps: timed(peer, comm, steps),
            "torch DDP",
            target,
            rounds,
        )
        outcomes.append(outcome)
    return outcomes


class OurBSP:
    def __init__(self, model: nn.Module, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        self.batch = Batch(inputs, targets, total=2 * len(inputs))
        alone, replicas = comm.split(comm.rank), comm.split(0)
        assert alone is not None and replicas is not None
        self.sync, self.strategy = BSP(), DataParallel()
        self.strategy.prepare(model, cross_entropy, alone, self.sync.before_backward)
        self.sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.01), replicas)

    def __call__(self) -> None:
        self.sync.begin(self.batch)
        self.strategy.forward_backward(self.batch)
        self.sync.update()


class TorchDDPPeer:
    """The code of torch's tutorial."""

    def __init__(self, model: nn.Module, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        replicas = comm.split(0)
        assert replicas is not None
        self.inputs, self.targets = inputs, targets
        self.model = DistributedDataParallel(model, process_group=replicas.group)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


def timed(step: Callable[[], None], comm: ProcessComm, steps: int) -> float:
    """The median step of a block, in milliseconds."""
    comm.barrier()
    times: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3
