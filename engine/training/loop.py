"""The training loop of one worker."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...batches import tensors_of
from ...comm import Comm
from ...comm.board import Board
from ...strategies import Batch, Strategy, Sync
from ...strategies.adapt import While
from ...strategies.core.accumulation import Accumulation
from ...strategies.core.protocols import InRounds, what_may_help
from ...strategies.core.sync import StoppedBefore
from ...strategies.precision import LossScale
from ...tasks.base import Readable, Taken
from ...tasks.partition import Partition
from ..base import memory
from ..base.errors import DivergedError
from ..base.stop import StopAgreement
from ..base.trained import TrainedSet
from ..config.fits import weighted
from ..fabrics.compute import ModelledCompute, RealCompute
from ..features.adversary import Adversary
from ..features.averaging import Averaging
from ..features.distilling import Teacher
from ..features.gradient_norms import GradientNorms
from .feed import Feed
from .meters import Meter


@dataclass
class Job:
    """All that one worker's loop works with."""

    strategy: Strategy
    sync: Sync
    comm: Comm
    replica: int
    train: Readable
    feed: Feed
    partition: Partition
    device: torch.device
    seed: int
    draws_as: int  # the rank whose random numbers this worker draws: see Mesh.drawing
    start: int  # the first step
    steps: int  # of the whole run
    until: int  # the step to end before: `steps`, but where the model becomes another one before it (phases.py)
    meter: Meter
    stop: StopAgreement | None  # None where the sync mode says when: see `Sync.server_stops`
    compute: ModelledCompute | RealCompute
    after_step: Callable[["Job", int, int, float | None], None]  # (steps done before, now, loss): records, ...
    trained: TrainedSet | None = None  # what user code must leave as it is
    accumulation: Accumulation = field(default_factory=Accumulation)  # with which the strategy was prepared
    scale: LossScale | None = None  # of precision=fp16
    each_step: Callable[["Job", int, Tensor], None] | None = None  # (steps done, loss): callbacks, in the step's time
    norms: GradientNorms | None = None  # where a callback sees them
    adversary: Adversary | None = None  # what batches are changed by before they are learnt
    average: Averaging | None = None  # of weights over steps, where this worker keeps one
    meanwhile: While | None = None  # what is done to the model as it trains
    before_step: Callable[["Job", int], None] | None = None  # (step), where it has something to do there
    poison: Callable[[Taken, int], Taken] | None = None  # (batch, step), where this replica lies about its samples
    teacher: Teacher | None = None  # whose outputs are learnt, too
    training: int = sys.maxsize  # steps after which a schedule of the rate begins anew
    stopped: str | None = None  # why the run ends before its last step; all that step together have it at once
    activations: int = field(default=0)  # measured in the first steps
    took_step: bool = True  # the last step's samples trained the model


def train(job: Job) -> int:
    """Train; returns the number of steps done, less than `until` when the run was asked to stop."""
    try:
        return _train(job)
    except StoppedBefore as stopped:
        return stopped.step


def _train(job: Job) -> int:
    done, found = job.start, memory.ActivationPeak()
    most = accounted = 0  # samples of the largest step so far; steps that are left to look at
    while (step := job.sync.next_step(done)) < job.until:
        if job.stop is not None and job.stop.before(step, job.meter.last):
            return done
        if job.before_step is not None:
            job.before_step(job, step)
        job.meter.jump(step - done)
        seed_step(job, step)
        size = job.partition.size(step, job.replica)
        if size > most:  # a run that goes on, or does so with another model, may begin with what an epoch has left
            most, accounted = size, job.strategy.traits.fills
        account = memory.activations(found) if job.activations == 0 or accounted > 0 else nullcontext()
        accounted -= 1
        at_rate = job.sync.at_rate(job.sync.setting.rate.factor(step % job.training))
        with job.meter.step(size), account, at_rate:
            batch = take(job, step)
            job.sync.begin(batch)
            if job.average is not None:
                job.average.begins(step)
            with job.compute.step(step), _in(step, job.comm.board):
                if job.adversary is not None:
                    batch = _changed(job, job.adversary, batch, step)
                if job.teacher is not None:
                    batch = job.teacher.teach(batch, job.device, job.compute)
                loss = job.accumulation.forward_backward(job.strategy, batch)
            if job.trained is not None:
                job.trained.check(step)
            if job.norms is not None:
                job.norms.after_backward(step)
            job.took_step = _update(job)
            if job.meanwhile is not None:
                job.meanwhile.after_update()
            if job.norms is not None and job.took_step:
                job.norms.after_update(step)
            if job.average is not None:
                job.average.ends(step + 1)
            if not job.took_step:
                job.meter.discount()
            if job.each_step is not None and loss is not None:
                job.each_step(job, step + 1, loss)
        job.activations = found.peak
        value = None if loss is None else loss.item()
        if value is not None and not math.isfinite(value):
            raise DivergedError(
                f"worker {job.comm.rank} diverged at step {step}: the loss is {value}; {_why(job, batch, step)}"
            )
        job.after_step(job, done, step + 1, value)
        done = step + 1
        if job.stopped is not None:
            return done
    job.meter.jump(job.until - done)
    if isinstance(job.sync, InRounds):
        job.sync.is_through(job.until)
    return job.until


def _update(job: Job) -> bool:
    """Returns whether the step's samples trained the model: it is left out where scaled gradients overflowed."""
    if job.scale is not None and job.scale.overflowed(job.comm.rank):
        job.sync.skip()
        return False
    job.sync.update()
    return job.sync.took_step


@contextmanager
def _in(step: int, board: Board) -> Iterator[None]:
    """Others may wait for this worker only as long as it does not stay in one step."""
    board.in_step(step)
    try:
        yield
    finally:
        board.in_step(None)


def _why(job: Job, batch: Batch, step: int) -> str:
    """What may help, once the loss is no longer finite."""
    if any(each.is_floating_point() and not bool(each.isfinite().all()) for each in tensors_of(batch.inputs)):
        return "the batch itself holds values that are NaN or infinite: look at the data"
    if step == 0 and job.sync.traits.synchronous:
        return "nothing was updated yet, so that it is the model as it begins that gives this, at any optimizer.lr"
    return what_may_help(job.sync)


def take(job: Job, step: int) -> Batch:
    """This replica's batch of `step`, on the device."""
    taken = job.feed.take(step)
    if job.poison is not None:
        taken = job.poison(taken, step)
    targets = weighted(taken.targets, None if taken.weights is None else _of_mean_one(job, step, taken.weights))
    inputs, targets, expected = taken.inputs.to(job.device), targets.to(job.device), job.partition.expected
    if expected is None:
        return Batch(inputs, targets, job.partition.total(step), step)
    return Batch(inputs, targets, expected, step, expected=expected / job.partition.replicas)


def _changed(job: Job, adversary: Adversary, batch: Batch, step: int) -> Batch:
    numbers, sizes = job.partition.indices(step, job.replica), job.accumulation.sizes(batch.size)
    return adversary.change(job.strategy, batch, numbers, sizes, job.compute)


def _of_mean_one(job: Job, step: int, weights: Tensor) -> Tensor:
    """The weights of a batch over their mean: over the samples of all replicas where these step together, so that the
    mean of their gradients is that of the weighted mean over all samples, sum_i w_i l_i / sum_i w_i.
    """
    if job.sync.traits.synchronous:
        replicas = [job.partition.indices(step, replica) for replica in range(job.partition.replicas)]
        shape = torch.Size([sum(map(len, replicas)), *weights.shape[1:]])
        everyone = job.train.weights_of(torch.cat(replicas), shape)
        assert everyone is not None, "a batch has weights because the split has"
    else:
        everyone = weights
    return of_mean_one(weights, everyone)


def of_mean_one(weights: Tensor, everyone: Tensor) -> Tensor:
    """`weights` over the mean of `everyone`'s; zeros where all of these are."""
    mean = everyone.double().mean()
    return (weights / mean if mean > 0 else torch.zeros_like(weights, dtype=torch.float64)).float()


def seed_step(job: Job, step: int) -> None:
    """A worker's randomness in a step depends on (seed, step, place in the mesh) alone: a resumed run repeats it."""
    seed_for(job.seed, step, job.draws_as, job.device)


def seed_for(seed: int, step: int, draws_as: int, device: torch.device) -> None:
    """`draws_as`: 0 is a lone worker's."""
    seed = ((seed * 1_000_003 + step) * 65_537 + draws_as) % 2**63  # what torch's generators take
    # not torch.manual_seed: before CUDA is used it keeps every call, with its stack, for later
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
