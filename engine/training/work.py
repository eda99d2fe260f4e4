"""The work of one worker, from its place in the world to its report. The same under every launcher."""

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from ...comm import Comm
from ...strategies.core.protocols import InRounds, end_steps
from ...strategies.core.with_servers import SyncWithServers
from ...tasks.base import Readable
from ...tasks.contents import contents
from ...tasks.partition import Partition
from ...tracking.records import NoteRecord, Resume, Start, StepRecord, metric_without_column
from ..base.failures import fills_gpu, lack_of_gpu
from ..base.stop import StopAgreement
from ..callbacks.best import drop_later
from ..config.data_sums import check_data, sums_of
from ..fabrics.assignment import Assignment
from ..features.feature import EvaluationVerdict, Parts
from ..features.models import trainings
from ..features.phases import ends_of
from ..planning.notes import untimed
from .batches import Taking
from .evaluations import Evaluations
from .feed import Batches, Feed
from .job import Job, drain
from .live_metrics import live_metrics_of
from .loop import train
from .mean_loss import said_of_loss
from .meters import Meter
from .outcome import FinishedTraining, memory_of, report
from .probe import leave_together, watched
from .saving import Saving
from .timestamps import Timestamps
from .trace import streams_beside
from .worker import Worker, set_up, set_up_again


def work(
    assignment: Assignment,
    parts: Parts,
    comm: Comm,
    device: torch.device,
    started: Callable[[], None] = lambda: None,
) -> str:
    """Takes part in the run until its end, and returns its status, "" of a probe. `started` is called once this worker
    will train, or serve, next.
    """
    try:
        return _work(assignment, parts, comm, device, started)
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or fills_gpu(error)):
            raise
        raise lack_of_gpu(error, assignment.predicted.memory) from error


def _work(assignment: Assignment, parts: Parts, comm: Comm, device: torch.device, started: Callable[[], None]) -> str:
    if assignment.trace is not None:
        comm.timeline.keep_passes()
    with comm.ledger.aside():
        worker = set_up(assignment, parts, comm, device)
    parts, timestamps = worker.parts, _timestamps(worker)
    if worker.role.kind == "server":
        comm.key_values.live_metrics = live_metrics_of(worker.role, comm, None)
        started()
        parts.sync.configure(replace(parts.sync.setting, stops_before=_stops_before_round(worker)))
        assert isinstance(parts.sync, SyncWithServers)
        parts.sync.serve()
        timestamps.tell_end(parts.sync.made_at)
        if not assignment.probe:
            return report(worker, None)
        leave_together(worker)
        return ""
    # before the data are loaded: what changes in between would be found to have changed
    saving = Saving(worker, _checked_sums(worker))
    train_split, test = parts.load()
    evaluations = Evaluations(worker, timestamps, test)
    job, feed, left_out = _job(worker, train_split, evaluations, saving)
    comm.key_values.live_metrics = live_metrics_of(worker.role, comm, job.meter)
    with feed.reading():
        if assignment.probe:
            started()
            watched(worker, job)
            return ""
        if worker.is_chief:
            _announce(worker, job, test)
        started()
        with streams_beside(assignment.trace, comm.rank, device, job.after_step) as job.after_step:
            done = train(job)
        earlier: list[dict[str, int]] = []  # memory by kind, with models before
        while done == job.until < job.steps and job.stopped is None:
            if done > job.start:
                earlier.append(memory_of(worker, job.activations))
            drain(job)
            with comm.ledger.aside():
                worker, job = _with_next_model(worker, job, evaluations, saving)
            gc.unfreeze()  # the model of before may go, also where all that was set up was kept from the collector
            timestamps = _timestamps(worker)
            evaluations.go_on(worker, timestamps)
            done = train(job)
    status = "completed" if done == job.steps or job.stopped else "interrupted"
    drain(job)
    with comm.ledger.aside():
        if _saves_at_end(worker, job, saving, status, done):
            saving.save(done, job.meter.seconds, evaluations.time_to_accuracy)
        timestamps.tell_end(job.meter.ended)
        if status == "completed":
            end_steps(worker.sync)
        # others may still be in a round that this one left early
        spread = evaluations.spread(status == "completed")
        worker.sync.finish()
        for each in worker.hooks:
            each.finish(done)
        evaluations.judge_snapshots(job)
        if status == "completed":
            evaluations.at_end(done, job, spread)
            evaluations.finish()
            saving.export()
    return report(worker, FinishedTraining(job, done, status, left_out, evaluations, saving, earlier))


def _saves_at_end(worker: Worker, job: Job, saving: Saving, status: str, done: int) -> bool:
    """A run that came to its end before its first checkpoint was due leaves one, unless it was to have none."""
    if not worker.saves or saving.saved_at == done:
        return False
    if status == "interrupted" or job.stopped is not None:
        return True
    wanted = worker.experiment.checkpoint.every > 0 or worker.experiment.checkpoint.every_steps is not None
    return wanted and saving.saved_at is None and worker.manifest is None


def _timestamps(worker: Worker) -> Timestamps:
    return Timestamps(worker.comm.key_values, worker.comm.rank, worker.layout, worker.sync, worker.read_of_living)


def _with_next_model(worker: Worker, job: Job, evaluations: Evaluations, saving: Saving) -> tuple[Worker, Job]:
    """The last step of a phase is made; see phases.py."""
    end_steps(worker.sync)
    worker.sync.finish()
    again = set_up_again(worker)
    saving.go_on(again)
    until = ends_of(again.parts, job.partition.steps_per_epoch)
    assert until is not None
    return again, replace(
        job,
        strategy=again.strategy,
        sync=again.sync,
        compute=again.compute,
        start=job.until,
        until=until,
        after_step=partial(_after_step, again, evaluations, saving),
        hooks=again.hooks,
        accumulation=again.parts.accumulation,
    )


def _checked_sums(worker: Worker) -> dict[str, str]:
    """The checksums of the data's files, which are those that the checkpoint was trained on; on the chief."""
    sums = sums_of(worker.parts.data) if worker.is_chief and worker.saves else {}
    if worker.is_chief and worker.manifest:
        check_data(worker.directory, sums, worker.manifest.data)
    return sums


def _job(worker: Worker, train_split: Readable, evaluations: Evaluations, saving: Saving) -> tuple[Job, Feed, int]:
    """Returns what the loop works with, what reads its batches, and how many of its first steps are not timed."""
    experiment, layout, replica = worker.experiment, worker.layout, worker.role.replica
    partition, manifest, comm = worker.parts.deal(), worker.manifest, worker.comm
    training = experiment.steps_in_all(partition.steps_per_epoch)
    until = ends_of(worker.parts, partition.steps_per_epoch)
    assert training is not None and until is not None
    steps = training * trainings(worker.parts.features)
    start = manifest.step if manifest else 0
    left_out = untimed(experiment.measure.after, steps - start)
    group = replica // worker.parts.partitioner.copies  # of those that take the same samples, and draw alike
    together = worker.sync.traits.synchronous
    pauses = not together or worker.parts.fabric.modelled  # modelled ones take as long as training goes on in them
    feed = _feed(worker, train_split, partition, steps)
    job = Job(
        strategy=worker.strategy,
        sync=worker.sync,
        comm=comm,
        replica=replica,
        train=train_split,
        taking=Taking(train_split, feed, partition, replica, worker.device, together),
        partition=partition,
        device=worker.device,
        seed=experiment.seed,
        draws_as=layout.mesh.drawing(comm.rank - (replica - group) * layout.parts),
        start=start,
        steps=steps,
        until=until,
        meter=Meter(comm, left_out, pauses, manifest.seconds if manifest else 0.0, compiler=worker.compiler),
        stop=None if isinstance(worker.sync, InRounds) else _stop_agreement(worker, start),
        compute=worker.compute,
        after_step=partial(_after_step, worker, evaluations, saving),
        hooks=worker.hooks,
        accumulation=worker.parts.accumulation,
        training=training,
    )
    return job, feed, left_out


def _stop_agreement(worker: Worker, start: int) -> StopAgreement:
    layout, key_values, replica, together = (
        worker.layout,
        worker.comm.key_values,
        worker.role.replica,
        worker.sync.traits.synchronous,
    )
    return StopAgreement(
        key_values,
        worker.comm.rank,
        layout.chief if together else replica * layout.parts + layout.loss_part,
        "all" if together else f"replica {replica}",
        start,
        None if worker.parts.fabric.modelled else time.monotonic,
        alone=not together and layout.parts == 1,
    )


def _stops_before_round(worker: Worker) -> Callable[[int], bool]:
    """Returns for a server whether it stops before a round. Each part of a replica has its own server, and all of them
    end before the same round.
    """
    comm, first, alone = worker.comm, worker.layout.workers, worker.layout.parts == 1
    agreement = StopAgreement(comm.key_values, comm.rank, first, "servers", 0, comm.now, alone=alone)
    return lambda number: agreement.before(number, 0.0)


def _feed(worker: Worker, split: Readable, partition: Partition, steps: int) -> Feed:
    """Returns the worker's feed. Nobody reads ahead where the clock is modelled, and workers are threads of one
    process.
    """
    parts, experiment = worker.parts, worker.experiment
    batches = Batches(split, partition, worker.role.replica, experiment.seed, parts.task.check_targets)
    ahead = 0 if parts.fabric.modelled else parts.data.loader_workers
    return Feed(batches, steps, ahead, experiment.hardware.timeout)


def _announce(worker: Worker, job: Job, test: Readable) -> None:
    data, metric = worker.parts.data, worker.parts.task.metric
    if worker.manifest:
        dropped = drop_later(worker.directory, worker.manifest.step)
        worker.directory.add(Resume(worker.manifest.step))
        if dropped is not None:
            worker.directory.add(NoteRecord(dropped))
    worker.directory.add(
        Start(
            name=worker.directory.name,
            steps=job.steps,
            epochs=job.steps / job.partition.steps_per_epoch,
            samples=len(job.train),
            workers=worker.layout.workers,
            servers=worker.layout.servers * worker.layout.parts,
            modelled=worker.parts.fabric.modelled,
            together=worker.sync.traits.synchronous,
            target_accuracy=worker.experiment.target_accuracy,
            choices=worker.choices(),
            contents=contents(data.source.spec, data.described(), len(job.train), len(test)).plain(),
            metric=metric_without_column(metric.name, metric.larger_is_better),
        )
    )
    shared, judged = worker.layout.replicas > 1 or job.accumulation.micro_batches > 1, worker.judged
    if shared and judged is not None and (text := said_of_loss(worker.parts, judged, job.train, worker.device)):
        worker.directory.add(NoteRecord(text))


def _after_step(
    worker: Worker, evaluations: Evaluations, saving: Saving, job: Job, before: int, done: int, loss: float | None
) -> None:
    """`before`: the steps done when this one began; a worker may have left some out."""
    if worker.is_chief and loss is not None:
        _record_step(worker, job, done, loss)
    experiment, per_epoch = worker.experiment, job.partition.steps_per_epoch

    def is_due(every: int) -> bool:
        return every > 0 and done // every > before // every

    # the last evaluation is made at the end; where hooks count them, before the checkpoint that has their state
    counts = worker.hooks.count_evaluations()
    evaluates = is_due(per_epoch * experiment.evaluate.every) and (done < job.steps or counts)
    saves = is_due(experiment.checkpoint.every_steps or per_epoch * experiment.checkpoint.every) and worker.saves
    if not (evaluates or saves):
        return
    drain(job)
    with worker.comm.ledger.aside():
        verdict = EvaluationVerdict()
        if evaluates:
            evaluations.during(done, job)
            verdict = worker.hooks.verdict(done)
        if verdict.keep:
            saving.best = done
        job.stopped = verdict.stop
        if saves or (verdict.keep and worker.saves):
            saving.save(done, job.meter.seconds, evaluations.time_to_accuracy)
        if worker.sync.traits.synchronous and not worker.sync.traits.survives:
            assert worker.workers is not None
            worker.workers.barrier()


def _record_step(worker: Worker, job: Job, done: int, loss: float) -> None:
    partition, step = job.partition, done - 1
    # asynchronously, others go at paces of their own
    samples = partition.total(step) if worker.sync.traits.synchronous else partition.size(step, worker.role.replica)
    samples *= job.took_step
    took, of_step = job.meter.last, worker.hooks.merged(lambda each: each.numbers())
    worker.directory.add(
        StepRecord(done, done / partition.steps_per_epoch, loss, samples / took, took, job.meter.seconds, of_step)
    )
