"""strategy=tensor against torch's own tensor parallel (DTensor, `parallelize_module`): step time of two workers.

Both train the same model on the same batch in the same two processes, in turn; torch's sums go through gloo.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from paceline.comm.process import ProcessComm
from paceline.strategies.core.batch import Batch
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.tensor import TensorParallel
from paceline.strategies.tensor_parallel.find import all_pairs
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.gpt import TransformerBlock
from paceline.tasks.models.mlp import MLP

from .ddp import timed
from .measure import Outcome, alternate, in_processes

IMAGES = DataSpec((1, 28, 28), torch.float32, (), 10, 60_000, 10_000)


@dataclass(frozen=True)
class TensorWorkload:
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    steps: int


def _block() -> nn.Module:
    """Returns a block behind a trained layer, so that its input wants a gradient."""
    return nn.Sequential(nn.LayerNorm(512), TransformerBlock(512, 8, 8, dropout=0.0))


TASKS = {
    "mlp of width 1,024, batch 256": TensorWorkload(
        lambda: MLP(IMAGES, [1024, 1024, 1024]),
        lambda: (torch.randn(256, 1, 28, 28), torch.randint(10, (256,))),
        cross_entropy,
        10,
    ),
    "gpt block of width 512, 8 x 128 tokens": TensorWorkload(
        _block, lambda: (torch.randn(8, 128, 512), torch.randn(8, 128, 512)), F.mse_loss, 4
    ),
}


def tensor_against_torch(rounds: int) -> list[Outcome]:
    return in_processes(2, _measure, rounds)


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    dist.init_process_group("gloo", store=dist.PrefixStore("peer", comm.store), rank=comm.rank, world_size=2)
    outcomes: list[Outcome] = []
    for name, task in TASKS.items():
        torch.manual_seed(0)
        model, (inputs, targets) = task.model(), task.batch()
        ours = OurTensorParallel(copy.deepcopy(model), task, comm, inputs, targets)
        peer = TorchTensorPeer(copy.deepcopy(model), task, inputs, targets)
        outcome = alternate(
            f"tensor step, 2 workers: {name}",
            lambda ours=ours, steps=task.steps: timed(ours, comm, steps),
            lambda peer=peer, steps=task.steps: timed(peer, comm, steps),
            "torch's parallelize_module, gloo",
            "<= 0.95",
            rounds,
        )
        if comm.rank == 0:
            assert abs(ours.loss - peer.loss) < 1e-3 * abs(peer.loss), (ours.loss, peer.loss)
        outcomes.append(outcome)
    dist.destroy_process_group()
    return outcomes


class OurTensorParallel:
    def __init__(
        self, model: nn.Module, task: TensorWorkload, comm: ProcessComm, inputs: Tensor, targets: Tensor
    ) -> None:
        self.batch = Batch(inputs, targets, total=len(inputs))
        replica, alone = comm.split(0), comm.split(comm.rank)
        assert alone is not None and replica is not None
        self.sync, self.strategy = BSP(), TensorParallel(2)
        self.strategy.prepare(model, task.loss, replica, self.sync.before_backward)
        parameters = dict(self.strategy.module.named_parameters())
        self.sync.prepare(parameters, torch.optim.SGD(parameters.values(), lr=0.01), alone)
        self.loss = 0.0

    def __call__(self) -> None:
        self.sync.begin(self.batch)
        loss = self.strategy.forward_backward(self.batch)
        self.sync.update()
        self.loss = self.loss if loss is None else loss.item()


class TorchTensorPeer:
    """The code of torch's tutorial."""

    def __init__(self, model: nn.Module, task: TensorWorkload, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets, self.task = inputs, targets, task
        pairs = all_pairs(model)
        plan: dict[str, ParallelStyle] = {first: ColwiseParallel() for first, _ in pairs}
        plan |= {second: RowwiseParallel() for _, second in pairs}
        self.model = parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.loss = 0.0

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        self.loss = loss.item()
