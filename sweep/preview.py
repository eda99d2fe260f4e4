"""A dry run of a sweep: every point composed, checked and planned, none run."""

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..compat import fork_server
from ..compat.dynamo import without_dynamo
from ..engine.base.failures import exit_code_of
from ..engine.config.experiment import Experiment, VirtualHardware
from ..engine.fabrics import fabric_of
from ..engine.planning.planned import Plan, PlanPhase
from ..engine.predict.device_use import DeviceUse, device_use_of
from .definition import Definition, Point

SAMPLED = 10  # points of a search that depends on its results
MANY = 100  # points that are worth a process for each core
CHUNK = 10


@dataclass(frozen=True)
class Planned:
    """A point. `why`: it is refused, and nothing else is known. Bytes; None: nobody can say beforehand."""

    chosen: Point
    workers: int = 0  # that train
    servers: int = 0  # beside them
    steps: int | None = None
    bytes_per_step: float | None = None
    memory: int = 0  # of the largest worker
    device: DeviceUse | None = None  # None: no device is described
    virtual_seconds: float | None = None  # at least, of the whole run; None: not known, or no virtual cluster
    notes: tuple[str, ...] = ()  # what it does other than one may think
    why: str = ""


def count(definition: Definition) -> int:
    """Points to plan."""
    if definition.method == "grid":
        return min(definition.size(), definition.trials or definition.size())
    return min(definition.trials or SAMPLED, SAMPLED)


def preview(definition: Definition, progress: Callable[[int], None] = lambda _: None) -> Iterator[Planned]:
    """Every point of a grid; of another search as many as `count`, drawn at random: what it will choose depends on its
    results.
    """
    for done, planned in enumerate(_all_planned(definition)):
        progress(done + 1)
        yield planned


def _all_planned(definition: Definition) -> Iterator[Planned]:
    points, one = _points(definition), partial(plan_point, definition)
    if count(definition) < MANY:
        yield from map(one, points)
        return
    from ..engine.launch.local_workers import start_fork_server, without_main

    context = multiprocessing.get_context("forkserver")
    cores = len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(cores, context, initializer=_begin)
    with without_main(), fork_server.kept_awake(), pool:
        start_fork_server(__name__, "paceline.engine.planning.make_plan", "paceline.engine.api.preparing")
        yield from pool.map(one, points, chunksize=CHUNK)


def _begin() -> None:
    """Prepares each process."""
    from ..engine.launch.worker_process import tie_to_launcher

    tie_to_launcher()


def _points(definition: Definition) -> Iterator[Point]:
    if definition.method == "grid":
        return itertools.islice(definition.points(), definition.trials)
    from .study import sample

    return iter(sample(definition, count(definition)))


def plan_point(definition: Definition, chosen: Point) -> Planned:
    """Raises nothing for a point that is refused."""
    from ..engine.api.preparing import prepare

    directory = Path(definition.config_dir) if definition.config_dir else None
    try:
        prepared = prepare(definition.overrides(chosen, None), directory, definition.allow_modules)
        plan = prepared.plan()
        compute = _modelled_compute(prepared.experiment, definition.allow_modules, plan)
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return Planned(chosen, why=" ".join(str(error).split()))
    memory = plan.largest()
    sent, layout = plan.bytes_per_step(), plan.layout
    virtual = None
    if compute is not None and plan.steps is not None:
        steps = [phase.steps or 0 for phase in plan.phases]
        computing = sum(count * seconds for count, seconds in zip(steps, compute, strict=True))
        virtual = max(computing, _seconds_of_sending(prepared.experiment, plan))
    return Planned(
        chosen,
        layout.workers,
        layout.servers * layout.parts,
        plan.steps,
        sent,
        memory,
        device_use_of(plan),
        virtual,
        tuple(plan.notes),
    )


def _seconds_of_sending(experiment: Experiment, plan: Plan) -> float:
    """Virtual seconds that what the busiest of workers and servers sends takes to pass its link: it may be sent while
    workers compute, and latency, stragglers and waiting come on top.
    """
    hardware = experiment.hardware
    assert isinstance(hardware, VirtualHardware)
    network = fabric_of(experiment).network(hardware)
    assert network is not None
    worker, server = network.between.up, (network.server or network.between).up
    if network.workers_per_host > 1:  # some of it may stay within the host
        worker = server = max(worker, network.inside.up)
    return sum((phase.steps or 0) * _seconds_of_the_busiest(phase, worker, server) for phase in plan.phases)


def _seconds_of_the_busiest(phase: PlanPhase, worker: float, server: float) -> float:
    """A step's, of workers and servers that send so many bytes a second."""
    each = [
        sum(costs.values()) / bandwidth
        for sent in phase.sent
        for costs, bandwidth in ((sent.worker, worker), (sent.server, server))
        if costs is not None
    ]
    return max(each, default=0.0)


@without_dynamo()
def _modelled_compute(experiment: Experiment, allowed: tuple[str, ...], plan: Plan) -> list[float] | None:
    """A step's in each phase, on average over an epoch: its last batch is smaller. Of a replica of one part; what a
    part of several is given is only known once it runs.
    """
    if not isinstance(experiment.hardware, VirtualHardware) or experiment.hardware.compute != "modelled":
        return None

    from ..engine.config import looking
    from ..engine.config.fits import batch_of
    from ..engine.features.feature import Parts
    from ..engine.planning.build import assemble

    parts = assemble(experiment, allowed)
    if looking.tried(experiment) is looking.Tried.REAL:
        return None
    if len(parts.modules) > 1 or parts.compute is None or plan.steps_per_epoch is None:
        return None
    spec, (inputs, _) = parts.data.spec, batch_of(parts.data.spec, experiment.batch_size)
    places = plan.steps_per_epoch * plan.layout.replicas * experiment.batch_size  # for samples, in an epoch
    filled = 1.0 if parts.partitioner.draws else min(1.0, (spec.train_size or places) / places)
    found: list[float] = []
    of_phase: Parts | None = parts
    while of_phase is not None and (compute := of_phase.compute) is not None:
        compute.keep(0, of_phase.modules[0])
        costs = [compute.of(0, inputs[:size]) for size in of_phase.accumulation.sizes(experiment.batch_size)]
        found.append(sum(cost.forward + cost.backward for cost in costs) * filled)
        of_phase = of_phase.following
    return found
