"""What a sweep would run: every point composed, checked and planned, none run."""

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..compat.dynamo import without_dynamo
from ..engine.experiment import Experiment, VirtualHardware
from ..engine.failures import exit_code_of
from ..engine.planning import Plan
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
    from ..engine.crew import start_fork_server, without_main

    context = multiprocessing.get_context("forkserver")
    cores = len(os.sched_getaffinity(0))
    with without_main(), ProcessPoolExecutor(cores, context, initializer=_begin) as pool:
        start_fork_server(__name__, "paceline.engine.planning", "paceline.engine.session")
        yield from pool.map(one, points, chunksize=CHUNK)


def _begin() -> None:
    """In each process."""
    from ..engine.worker_process import tie_to_launcher

    tie_to_launcher()


def _points(definition: Definition) -> Iterator[Point]:
    if definition.method == "grid":
        return itertools.islice(definition.points(), definition.trials)
    from .study import sample

    return iter(sample(definition, count(definition)))


def plan_point(definition: Definition, chosen: Point) -> Planned:
    """Raises nothing for a point that is refused."""
    from ..engine.session import prepare

    directory = Path(definition.config_dir) if definition.config_dir else None
    try:
        prepared = prepare(definition.overrides(chosen, None), directory, definition.allow_modules)
        plan = prepared.plan()
        compute = _modelled_compute(prepared.experiment, definition.allow_modules, plan)
    except Exception as error:
        if exit_code_of(error) is None:
            raise
        return Planned(chosen, why=" ".join(str(error).split()))
    memory = max(sum(part.memory.values()) for part in plan.parts)
    sent, layout = plan.bytes_per_step(), plan.layout
    virtual = None
    if compute is not None and plan.steps is not None:
        virtual = max(plan.steps * compute, _seconds_of_sending(prepared.experiment, plan, plan.steps))
    return Planned(
        chosen, layout.workers, layout.servers * layout.parts, plan.steps, sent, memory, virtual, tuple(plan.notes)
    )


def _seconds_of_sending(experiment: Experiment, plan: Plan, steps: int) -> float:
    """Virtual seconds that what the busiest of workers and servers sends takes to pass its link: it may be sent while
    workers compute, and latency, stragglers and waiting come on top.
    """
    hardware = experiment.hardware
    assert isinstance(hardware, VirtualHardware)
    alone = hardware.workers_per_host == 1  # otherwise some of it may stay within the host
    bandwidth = hardware.network.bandwidth if alone else max(hardware.network.bandwidth, hardware.inside.bandwidth)
    sent = [sum(costs.values()) for part in plan.parts for costs in (part.worker, part.server) if costs is not None]
    return steps * max(sent, default=0.0) / bandwidth


@without_dynamo()
def _modelled_compute(experiment: Experiment, allowed: tuple[str, ...], plan: Plan) -> float | None:
    """A step's, on average over an epoch: its last batch is smaller. Of a replica of one part; what a part of several
    is given is only known once it runs.
    """
    if not isinstance(experiment.hardware, VirtualHardware) or experiment.hardware.compute != "modelled":
        return None

    from ..engine.build import assemble
    from ..engine.fits import batch_of

    parts = assemble(experiment, allowed)
    if len(parts.modules) > 1 or parts.compute is None or plan.steps_per_epoch is None:
        return None
    spec = parts.data.spec
    parts.compute.keep(0, parts.modules[0])
    compute, (inputs, _) = parts.compute, batch_of(spec, experiment.batch_size)
    costs = [compute.of(0, inputs[:size]) for size in parts.accumulation.sizes(experiment.batch_size)]
    places = plan.steps_per_epoch * plan.layout.replicas * experiment.batch_size  # for samples, in an epoch
    return sum(cost.forward + cost.backward for cost in costs) * min(1.0, (spec.train_size or places) / places)
