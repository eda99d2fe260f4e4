"""The outcome of a run: each worker's report, and the summary that the chief makes of all."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ...strategies import Sync
from ...strategies.core.cost import Memory, payload
from ...strategies.core.protocols import MeasuresMemory
from ...tasks.clients import Clients
from ...tracking.records import End, Status, Summary
from ..base import memory
from ..planning.notes import effective_batch
from ..predict.timetable import schedule_of
from .evaluations import Evaluations
from .job import Job
from .measured_schedule import beside
from .meters import Meter, Report, is_too_short, summarise, with_loads, without_times
from .saving import Saving
from .trace import write_trace
from .worker import Worker

MOST_REPLICAS = 100  # whose labels a summary tells


@dataclass(frozen=True)
class FinishedTraining:
    """The state of a worker at the end of its training."""

    job: Job
    done: int  # steps
    status: Status
    untimed: int  # steps that are left out of throughput and step times
    evaluations: Evaluations
    saving: Saving
    earlier: list[dict[str, int]]  # peak bytes by kind, with each model before (phases.py)


def report(worker: Worker, trained: FinishedTraining | None) -> str:
    """Reports to the chief, which writes the summary; nobody leaves before that. Returns the status of the run.

    `trained`: None on a server.
    """
    meter = Meter(worker.comm, 0, False) if trained is None else trained.job.meter
    activations = 0 if trained is None else trained.job.activations
    kinds = _peaks([] if trained is None else trained.earlier, memory_of(worker, activations))
    held = _with_process(kinds, worker.device, worker.resident)
    own = meter.report(worker.comm.rank, worker.role, held, worker.sync.report())
    own = replace(own, told=worker.hooks.merged(lambda each: each.told()))
    key_values, layout = worker.comm.key_values, worker.layout
    key_values.post(f"report/{worker.comm.rank}", json.dumps(own.as_json()))
    if worker.is_chief:
        assert trained is not None, "the chief is a worker"
        reports = [Report.from_json(plain) for plain in worker.read_of_living("report", range(layout.world_size))]
        _summarise(worker, trained, reports)
        if worker.assignment.trace is not None:
            write_trace(worker.assignment.trace, reports, worker.directory.name, worker.parts.fabric.modelled)
            _keep_schedule(worker, reports)
        key_values.post("over", trained.status)
    return key_values.read("over", layout.chief)


def _keep_schedule(worker: Worker, reports: list[Report]) -> None:
    """Writes the schedule for the report, if there is one."""
    timetable = worker.assignment.timetable
    if timetable is None:
        return
    name, modelled = schedule_of(worker.experiment), worker.parts.fabric.modelled
    kept = beside(name, timetable, reports, worker.layout, modelled)
    if kept is not None:
        worker.directory.write_schedule(kept)


def memory_of(worker: Worker, activations: int) -> dict[str, int]:
    """Peak bytes by kind, with the model that it trains now."""
    return _kinds(worker.sync, worker.module, activations, worker.strategy.measured, worker.hooks.tensors())


def _peaks(earlier: list[dict[str, int]], last: dict[str, int]) -> dict[str, int]:
    every = [*earlier, last]
    return {
        kind: max(held.get(kind, 0) for held in every)
        for kind in dict.fromkeys(kind for held in every for kind in held)
    }


def held_by(
    sync: Sync,
    module: nn.Module,
    activations: int,
    device: torch.device,
    resident: int | None,
) -> dict[str, int]:
    """Peak bytes of this worker by kind. `resident`: what its process held before; None where it is not its own."""
    return _with_process(_kinds(sync, module, activations), device, resident)


def _kinds(
    sync: Sync,
    module: nn.Module,
    activations: int,
    of_strategy: Callable[[Memory], Memory] = lambda held: held,
    beside: Mapping[str, Sequence[Tensor]] = MappingProxyType({}),
) -> dict[str, int]:
    """`beside`: what is held for the model beside it, by kind."""
    held: Memory = {
        "parameters": memory.held(module.parameters()),
        "gradients": payload(list(sync.parameters.values())),
        "optimizer": memory.held(memory.optimizer_state(sync.optimizer)),
        "activations": activations,
        "buffers": memory.held([*sync.buffers(), *module.buffers(), *beside.get("buffers", ())]),
    }
    others = {kind: memory.held(tensors) for kind, tensors in beside.items() if kind != "buffers"}
    if isinstance(sync, MeasuresMemory):
        held = sync.measured(held)
    return {**of_strategy(held), **others}


def _with_process(kinds: dict[str, int], device: torch.device, resident: int | None) -> dict[str, int]:
    if resident is not None:
        kinds = {**kinds, "other": memory.other(kinds, device, resident)}
    return {**kinds, **memory.device_peaks(device), "process_peak": memory.process_peak()}


def _labels(worker: Worker, job: Job) -> list[list[int]] | None:
    """Returns each replica's number of samples of each label, if replicas own samples with one label each and are not
    too many.
    """
    owners, spec = job.partition.owners, worker.parts.data.spec
    if not worker.parts.partitioner.owns or owners > MOST_REPLICAS:
        return None
    if spec.targets != "labels" or spec.target_shape or job.train.targets is None:
        return None
    owned = [job.partition.owned(owner) for owner in range(owners)]
    return Clients(job.train, job.train, owned).labels().tolist()


def _summarise(worker: Worker, trained: FinishedTraining, reports: list[Report]) -> None:
    experiment, layout = worker.experiment, worker.layout
    evaluations, done = trained.evaluations, trained.done
    modelled = worker.parts.fabric.modelled
    measured = summarise(reports, layout)
    short = not modelled and is_too_short(reports)  # a modelled clock is exact
    measured = measured if short or modelled else with_loads(measured, reports)
    status = trained.status
    reason = trained.job.stopped if status == "completed" else f"was asked to stop, after step {done}"
    of_workers = [each for each in reports if each.kind == "worker"]
    told, in_all = [each.told for each in of_workers], sum(each.seconds for each in of_workers)
    failed = (why for each in worker.hooks if (why := each.failure(done, told)))
    if status == "completed" and (why := next(failed, None)):
        status, reason = "failed", why
    worker.directory.write_summary(
        Summary(
            name=worker.directory.name,
            choices=worker.choices(),
            status=status,
            workers=layout.workers,
            servers=layout.servers * layout.parts,
            replicas=layout.replicas,
            stages=layout.mesh.axes.get("stage", 1),
            mesh=dict(layout.mesh.axes),
            device=worker.device.type,
            steps=done,
            epochs=done / trained.job.partition.steps_per_epoch,
            resumed_at=worker.manifest.step if worker.manifest else None,
            batch_size=experiment.batch_size,
            effective_batch=effective_batch(worker.parts.deal(), layout.replicas),
            measured_after=trained.untimed,
            seed=experiment.seed,
            modelled=modelled,
            event_digest=worker.comm.digest(),
            measured=without_times(measured) if short else measured,
            score=evaluations.last,
            target_accuracy=experiment.target_accuracy,
            time_to_accuracy=evaluations.time_to_accuracy,
            seconds=max(evaluations.last_date, *(each.seconds for each in reports)),
            model_sha256=trained.saving.exported,
            model_bytes=trained.saving.model_bytes,
            reason=reason,
            predicted=worker.assignment.predicted,
            metrics=worker.hooks.merged(lambda each: each.metrics()),
            beside=worker.hooks.merged(lambda each: each.summary(done))
            | worker.hooks.merged(lambda each: each.overall(told, in_all)),
            labels=_labels(worker, trained.job),
        ).plain()
    )
    worker.directory.add(End(status, reason))
