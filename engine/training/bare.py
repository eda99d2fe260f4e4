"""A job for timing the loop itself: one worker, one model, no features and no checkpoints."""

from collections.abc import Callable

import torch
from torch import nn

from ...comm import Comm
from ...strategies.single import Single
from ...tasks.base import Split
from ...tasks.losses.cross_entropy import cross_entropy
from ...tasks.partition import ShuffledPartition
from ..base.stop import StopAgreement
from ..fabrics.compute import RealCompute
from ..fabrics.stragglers import NoStragglers
from .batches import Taking
from .feed import Batches, Feed
from .job import Job
from .meters import Meter


def bare_job(
    model: nn.Module,
    data: Split,
    batch_size: int,
    steps: int,
    lr: float,
    momentum: float,
    comm: Comm,
    key: str,
    after_step: Callable[[Job, int, int, float | None], None],
) -> Job:
    """Returns a job that trains `model` by SGD. `key`: of its own among the jobs of `comm`."""
    strategy = Single()
    sync = strategy.own_sync()
    assert sync is not None, "it steps by itself"
    strategy.prepare(model, cross_entropy, comm, sync.before_backward)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    sync.prepare(dict(model.named_parameters()), optimizer, comm)
    partition, device = ShuffledPartition(len(data), 1, batch_size, 0), torch.device("cpu")
    feed = Feed(Batches(data, partition, 0, 0, lambda *_: None), steps, 0, 60.0)
    return Job(
        strategy=strategy,
        sync=sync,
        comm=comm,
        replica=0,
        train=data,
        taking=Taking(data, feed, partition, 0, device, together=True),
        partition=partition,
        device=device,
        seed=0,
        draws_as=0,
        start=0,
        steps=steps,
        until=steps,
        meter=Meter(comm, 0, False),
        stop=StopAgreement(comm.key_values, comm.rank, comm.rank, key, 0),
        compute=RealCompute(comm, NoStragglers()),
        after_step=after_step,
    )
