"""torch's own DistributedDataParallel: the reference that a user would pick instead of data_parallel with sync=bsp.

Its gradients travel by torch's communication hook, so that the ledger sees them; torch waits for them inside backward.
Uneven batches are weighted through the loss, as DDP averages over replicas: loss_j * K n_j / sum_i n_i. Of several
micro-batches (accumulation.py) all but the last are in `no_sync`.

torch puts its buckets into another order after the first step of a process. Among three workers or more, sums are then
made in another order, too, and a resumed run may differ in the last bits; with `find_unused` it keeps the first order.

With `zero_optimizer` torch's ZeroRedundancyOptimizer shares out the optimizer's state (ZeRO-1; Rajbhandari et al. 2020,
arXiv 1910.02054): each tensor of the model has an owner, which steps on it and broadcasts it. A replica holds the state
of its own tensors.

Cost per step and worker, S bytes of gradient, K replicas: all_reduce 2 (K-1)/K S; with `zero_optimizer` also broadcast,
(K-1)/K S on the average.

Use it to set strategy=data_parallel sync=bsp beside what torch has, on the same model and meters;
`torch_zero_optimizer` beside sync=bsp sync.shard=optimizer.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB);
torch.nn.parallel.DistributedDataParallel.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Annotated

import torch
import torch.distributed as dist
from annotated_types import Gt
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..batches import call
from ..comm import Comm
from ..comm.process import ProcessComm
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from ..cost.transfer import Transfer, passes
from ..exchange.buckets import grouped
from ..exchange.clip import Clip
from ..exchange.collectives import Fabric
from ..exchange.elementwise import check_dense, check_saved, check_uncoupled
from .core.batch import Batch, BeforeBackward
from .core.cost import Transfers, World, payload
from .core.loss import Loss
from .core.state import State
from .core.strategy import Strategy, StrategyTraits
from .core.sync import Sync, SyncTraits
from .external.zero_redundancy import ZeroRedundancy, shares_of
from .schedules import scaled


class TorchDDP(Strategy):
    """A replica is one worker; torch owns the exchange of gradients."""

    traits = StrategyTraits(needs_processes=True, steps_whole=True)

    def __init__(
        self,
        bucket_mb: Annotated[float, Gt(0)] = 25.0,
        find_unused: bool = False,
        zero_optimizer: bool = False,
        clip: Clip | None = None,
    ) -> None:
        """`clip`: of the mean gradient; None for none."""
        self.bucket_mb, self.find_unused, self.zero_optimizer = bucket_mb, find_unused, zero_optimizer
        self.traits = replace(self.traits, steps_whole=not zero_optimizer)
        self.clip = clip
        self.buffers = 0  # bytes of what is no parameter (BatchNorm's), which replica 0 broadcasts

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        return None if self.zero_optimizer else ReplicaLayout(accumulate, zero=0)

    def own_sync(self) -> Sync:
        return _DDPUpdate(self)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if self.zero_optimizer:
            for check in (check_uncoupled, check_saved):
                check(optimizer, "strategy.zero_optimizer=true", "strategy.zero_optimizer=false")

    def split(self, model: nn.Module) -> list[nn.Module]:
        check_dense(model, "strategy=torch_ddp", "reduced")
        dtypes = sorted({str(parameter.dtype) for parameter in model.parameters() if parameter.requires_grad})
        if self.zero_optimizer and len(dtypes) > 1:
            raise ConfigError(
                "strategy.zero_optimizer=true: torch's ZeroRedundancyOptimizer wants parameters of one dtype, these "
                f"are {', '.join(dtypes)}. Choose strategy.zero_optimizer=false, or strategy=data_parallel "
                "sync.shard=optimizer."
            )
        self.buffers = payload(list(model.buffers()))
        return [model]

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss = model, loss
        self.wrapped: nn.Module = model
        self.replicas = 1
        self.comm: ProcessComm | None = None  # of the replicas

    def wrap(self, ddp: DistributedDataParallel, comm: ProcessComm) -> None:
        """The replicas have met."""
        self.wrapped, self.replicas, self.comm = ddp, comm.size, comm

    def forward_backward(self, batch: Batch) -> Tensor | None:
        with self._sending(batch.last):
            with _naming(self.comm, "DistributedDataParallel"):  # it broadcasts buffers
                outputs = call(self.wrapped, batch.inputs)
            if batch.size == 0:  # DDP needs a backward pass on every replica
                self._backward(outputs.sum() * 0)
                return None
            loss = self._loss(outputs, batch.targets)
            weight = batch.share * self.replicas
            self._backward(loss if weight == 1 else loss * weight)
            return loss.detach()

    def _sending(self, gradients: bool) -> AbstractContextManager[None]:
        if gradients or not isinstance(self.wrapped, DistributedDataParallel):
            return nullcontext()
        return self.wrapped.no_sync()

    def _backward(self, loss: Tensor) -> None:
        with _naming(self.comm, "all_reduce"):
            loss.backward()
        if self.comm is not None:
            self.comm.wait_for_futures()


@contextmanager
def _naming(comm: ProcessComm | None, what: str) -> Iterator[None]:
    """Names the worker for which torch itself waited in vain. Its error says nothing of workers."""
    try:
        yield
    except RuntimeError as error:
        if comm is None or not (comm.future_failed or "/gloo/" in str(error)):
            raise
        raise comm.waits.explained(error, f"in {what} of {comm.name}") from error


class _DDPUpdate(Sync):
    traits = SyncTraits(steps_together=True)

    def __init__(self, strategy: TorchDDP) -> None:
        self._strategy, self.clip = strategy, strategy.clip
        self.traits = replace(self.traits, may_begin_anew=not strategy.zero_optimizer)
        self._seen: dict[int, Tensor] = {}  # DDP's buckets, by index
        self._reduced = True  # the last of them was, in this step

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._zero: ZeroRedundancy | None = None
        if comm.size == 1:
            return
        assert isinstance(comm, ProcessComm)
        strategy = self._strategy
        with _naming(comm, "DistributedDataParallel"):  # it broadcasts the model
            ddp = DistributedDataParallel(
                strategy.module,
                process_group=comm.group,
                bucket_cap_mb=strategy.bucket_mb,
                find_unused_parameters=strategy.find_unused,
            )

        def reduce(comm: ProcessComm, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            self._seen[bucket.index()] = bucket.buffer()
            self._reduced = self._reduced or bucket.is_last()
            gradient = bucket.buffer().div_(comm.size)
            with comm.timeline.named("gradients"):
                return comm.all_reduce_future(gradient, blocks=bucket.is_last()).then(lambda done: done.value()[0])

        ddp.register_comm_hook(comm, reduce)
        strategy.wrap(ddp, comm)
        if strategy.zero_optimizer:
            self._zero = ZeroRedundancy(optimizer, comm)

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """ZeroRedundancyOptimizer has groups of its own, whose rates it copies to the optimizer as it steps."""
        with scaled([self.optimizer, *([self._zero.torchs] if self._zero else [])], factor):
            yield

    def begin(self, batch: Batch) -> None:
        (self._zero.torchs if self._zero else self.optimizer).zero_grad()  # the second may have some alone
        self._reduced = self.comm.size == 1

    def update(self) -> None:
        if not self._reduced:  # torch says so in the next step, and in none after the last
            raise ConfigError(
                f"strategy.find_unused={str(self._strategy.find_unused).lower()}: a parameter had no gradient in this "
                "step, for which DistributedDataParallel waits. Choose strategy.find_unused=true, or "
                "strategy=data_parallel."
            )
        self.clip_gradients()
        (self._zero.torchs if self._zero else self.optimizer).step()

    def state_dict(self) -> State:
        return self._zero.state_dict() if self._zero else super().state_dict()

    def load_state_dict(self, state: State) -> None:
        if self._zero:
            self._zero.load_state_dict(state)
        else:
            super().load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return list(self._seen.values())

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        size, replicas, strategy = payload(parameters), world.replicas, self._strategy
        capacity = int(strategy.bucket_mb * 2**20)  # of the first one, too: torch makes it smaller by default alone
        buckets = [[parameters[i] for i in members] for members in grouped(parameters, capacity, capacity)]
        sums = [each for bucket in buckets for each in Fabric().transfers(payload(bucket), world)]
        sent = [replace(each, operation="gloo", primitive="all_reduce") for each in sums]
        if sent and replicas > 1:  # into buckets and out of them; each is divided
            copies = [passes("copy_", each.numel(), 2) for each in parameters]
            divisions = [passes("mul_", sum(each.numel() for each in bucket)) for bucket in buckets]
            sent[0] = replace(sent[0], kernels=tuple(chain(*copies, *divisions)))
        if strategy.buffers and replicas > 1:  # before the forward pass, past the ledger
            sent.append(Transfer("broadcast", replicas, 0, messages=((strategy.buffers, 1.0),)))
        if strategy.zero_optimizer:
            sent += [_broadcast(payload([each]), replicas) for each in parameters]
        return Transfers(sent, buffers=size if replicas > 1 else 0)

    def stepped(self, parameters: Sequence[Tensor], replicas: int) -> list[Sequence[Tensor]]:
        return [*shares_of(parameters, replicas)] if self._strategy.zero_optimizer else [parameters]


def _broadcast(nbytes: int, replicas: int) -> Transfer:
    """One tensor, by the replica that owns it."""
    return Transfer("broadcast", replicas, (replicas - 1) * nbytes / replicas, messages=((nbytes, 1.0),))
