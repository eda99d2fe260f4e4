"""torch's own DistributedDataParallel: the reference that a user would pick instead of data_parallel with sync=bsp.

Its gradients travel by torch's communication hook, so that the ledger sees them; torch waits for them inside backward.
Uneven batches are weighted through the loss, as DDP averages over replicas: loss_j * K n_j / sum_i n_i.

Cost per step and worker, S bytes of gradient, K replicas: all_reduce 2 (K-1)/K S.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.distributed as dist
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..comm import Comm
from ..comm.process import ProcessComm
from .base import Batch, BeforeBackward, Cost, Loss, Strategy, Sync, World, payload
from .exchange.collectives import Fabric


class TorchDDP(Strategy):
    """A replica is one worker; torch owns the exchange of gradients."""

    needs_processes = True

    def __init__(self, bucket_mb: Annotated[float, Gt(0)] = 25.0, find_unused: bool = False) -> None:
        self.bucket_mb, self.find_unused = bucket_mb, find_unused

    def own_sync(self) -> Sync:
        return _DDPUpdate(self)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss = model, loss
        self.wrapped: nn.Module = model
        self.replicas = 1
        self.comm: ProcessComm | None = None  # of the replicas

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:  # DDP needs a backward pass on every replica
            self._backward(self.wrapped(batch.inputs).sum() * 0)
            return None
        loss = self._loss(self.wrapped(batch.inputs), batch.targets)
        weight = batch.share * self.replicas
        self._backward(loss if weight == 1 else loss * weight)
        return loss.detach()

    def _backward(self, loss: Tensor) -> None:
        try:
            loss.backward()
        except RuntimeError as error:
            if self.comm is None or not self.comm.future_failed:
                raise
            raise self.comm.explained(error, f"in all_reduce of {self.comm.name}") from error


class _DDPUpdate(Sync):
    def __init__(self, strategy: TorchDDP) -> None:
        self._strategy = strategy
        self._seen: dict[int, Tensor] = {}  # DDP's buckets, by index

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        if comm.size == 1:
            return
        assert isinstance(comm, ProcessComm)
        strategy = self._strategy
        ddp = DistributedDataParallel(
            strategy.module,
            process_group=comm.group,
            bucket_cap_mb=strategy.bucket_mb,
            find_unused_parameters=strategy.find_unused,
        )

        def reduce(comm: ProcessComm, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            self._seen[bucket.index()] = bucket.buffer()
            gradient = bucket.buffer().div_(comm.size)
            with comm.timeline.named("gradients"):
                return comm.all_reduce_future(gradient, blocks=bucket.is_last()).then(lambda done: done.value()[0])

        ddp.register_comm_hook(comm, reduce)
        strategy.wrapped, strategy.replicas, strategy.comm = ddp, comm.size, comm

    def update(self) -> None:
        self.optimizer.step()

    def buffers(self) -> list[Tensor]:
        return list(self._seen.values())

    def cost(self, parameters: Sequence[Tensor], world: World) -> Cost:
        size = payload(parameters)
        return Cost(worker=Fabric().traffic(size, world), buffers=size if world.replicas > 1 else 0)
