"""Local SGD against torch's PostLocalSGDOptimizer: step time of two workers on this host's loopback, H = 4.

Both train the same model on the same batch in the same two processes, in turn. A block is a whole number of rounds, and
its time is divided by its steps. Torch's comes in two forms: as its documentation writes it (DDP with
post_localSGD_hook, in a subgroup of one worker, where gradients then stay local), and without DDP.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from paceline.comm.process import ProcessComm
from paceline.strategies.core.batch import Batch
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.mlp import MLP

from .measure import Outcome, alternate, in_processes

IMAGES = DataSpec((1, 28, 28), torch.float32, (), 10, 60_000, 10_000)
PERIOD, ROUNDS = 4, 10  # H, and how many rounds a block has
LR = 0.01


def local_sgd_against_torch(rounds: int) -> list[Outcome]:
    return in_processes(2, _measure, rounds)


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    torch.manual_seed(comm.rank)
    inputs, targets = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    ours = OurLocalSGD(_model(), comm, inputs, targets)
    peers = {"PostLocalSGDOptimizer, DDP": True, "PostLocalSGDOptimizer alone": False}
    return [
        alternate(
            "local sgd step, 2 workers: mlp, 2.9 M parameters, batch 64",
            lambda: _block(ours, comm),
            lambda peer=TorchLocalSGDPeer(_model(), comm, inputs, targets, ddp): _block(peer, comm),
            name,
            "<= 1.0",
            rounds,
        )
        for name, ddp in peers.items()
    ]


def _model() -> nn.Module:
    return MLP(IMAGES, [1024, 1024, 1024])


class OurLocalSGD:
    def __init__(self, model: nn.Module, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        self.batch = Batch(inputs, targets, total=2 * len(inputs))
        alone, replicas = comm.split(comm.rank), comm.split(0)
        assert alone is not None and replicas is not None
        self.sync, self.strategy = LocalSGD(PERIOD), DataParallel()
        self.strategy.prepare(model, cross_entropy, alone, self.sync.before_backward)
        self.sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=LR), replicas)

    def __call__(self) -> None:
        self.sync.begin(self.batch)
        self.strategy.forward_backward(self.batch)
        self.sync.update()


class TorchLocalSGDPeer:
    """The code of torch's tutorial; with `ddp`, of torch's documentation of PostLocalSGDOptimizer."""

    def __init__(self, model: nn.Module, comm: ProcessComm, inputs: Tensor, targets: Tensor, ddp: bool) -> None:
        replicas = comm.split(0)
        assert replicas is not None
        alone = comm.make_group(dist.PrefixStore(f"alone/{comm.rank}", comm.store), rank=0, size=1)
        self.inputs, self.targets, self.model = inputs, targets, model
        if ddp:
            self.model = DistributedDataParallel(model, process_group=replicas.group)
            state = PostLocalSGDState(replicas.group, alone, start_localSGD_iter=0)
            self.model.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=PERIOD, warmup_steps=0, process_group=replicas.group)
        self.optimizer = PostLocalSGDOptimizer(torch.optim.SGD(self.model.parameters(), lr=LR), averager)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


def _block(step: Callable[[], None], comm: ProcessComm) -> float:
    """Milliseconds for each step of a block."""
    comm.barrier()
    start = time.perf_counter()
    for _ in range(PERIOD * ROUNDS):
        step()
    return (time.perf_counter() - start) * 1e3 / (PERIOD * ROUNDS)
