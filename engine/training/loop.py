"""The training loop of one worker."""

import math
from contextlib import nullcontext

from ...strategies.core.protocols import InRounds, at_rate
from ...strategies.core.sync import StoppedBefore
from ...strategies.core.with_servers import SyncWithServers, next_step
from ..base import memory
from ..base.errors import DivergedError
from .batches import seed_for
from .diverged import why_not_finite
from .job import Job, drain


def train(job: Job) -> int:
    """Train; returns the number of steps done, less than `until` when the run was asked to stop."""
    try:
        return _train(job)
    except StoppedBefore as stopped:
        return stopped.step


def _train(job: Job) -> int:
    done, found, hooks = job.start, memory.ActivationPeak(), job.hooks
    most = accounted = 0  # samples of the largest step so far; steps that are left to look at
    while (step := next_step(job.sync, done)) < job.until:
        if job.stop is not None and job.stop.before(step, job.meter.last):
            return done
        if acting := hooks.acting_before(step):
            drain(job)
            with job.comm.ledger.aside():
                for each in acting:
                    each.before_step(step)
        job.meter.jump(step - done)
        seed_for(job.seed, step, job.draws_as, job.device)
        size = job.partition.size(step, job.replica)
        if size > most:  # a run that goes on, or does so with another model, may begin with what an epoch has left
            most, accounted = size, job.strategy.traits.fills
        account = memory.activations(found) if job.activations == 0 or accounted > 0 else nullcontext()
        accounted -= 1
        rate = at_rate(job.sync, job.sync.setting.rate.factor(step % job.training))
        with job.meter.step(size), account, rate:
            batch = job.taking.take(step, hooks)
            job.sync.begin(batch)
            hooks.begin_step(step)
            with job.compute.step(step):
                job.comm.key_values.in_step(step)  # others wait for this worker as long as it does not stay in one
                try:
                    batch = hooks.batch(batch)
                    loss = job.accumulation.forward_backward(job.strategy, batch)
                finally:
                    job.comm.key_values.in_step(None)
            hooks.after_backward(step)
            job.took_step = _update(job)
            hooks.after_update(step, job.took_step)
            if not job.took_step:
                job.meter.discount()
            hooks.after_step(step + 1, loss)
        job.activations = found.peak
        value = None if loss is None else loss.item()
        if value is not None and not math.isfinite(value):
            why = why_not_finite(job, batch.inputs, step)
            raise DivergedError(f"worker {job.comm.rank} diverged at step {step}: the loss is {value}; {why}")
        job.after_step(job, done, step + 1, value)
        done = step + 1
        if job.stopped is not None:
            return done
    job.meter.jump(job.until - done)
    if isinstance(job.sync, InRounds):
        job.sync.is_through(job.until)
    return job.until


def _update(job: Job) -> bool:
    """Returns whether the step's samples trained the model."""
    if not job.hooks.takes_step():
        job.sync.skip()
        return False
    job.sync.update()
    return not isinstance(job.sync, SyncWithServers) or job.sync.took_step
