"""Timetable of a step by a strategy's schedule: which worker does which action when, before anything runs."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...comm.network import ModelledNetwork
from ...compat.dynamo import without_dynamo
from ...strategies.core.batch import PassTime
from ...strategies.pipelining.check import placement
from ...strategies.pipelining.simulate import Simulation, in_flight, live_versions, simulation_of
from ..config.experiment import Experiment
from ..config.fits import batch_of
from ..fabrics import fabric_of
from ..fabrics.compute import ComputeModel
from ..planning.build import assemble


@dataclass(frozen=True)
class Timetable:
    """The timetable of one replica's forward and backward passes, without the update and the sums over replicas.

    Without a flush, it is of some steps of steady state.
    """

    simulation: Simulation
    seconds: bool  # messages are in it; else time is in floating-point operations, and messages take none

    def as_dict(self) -> dict[str, Any]:
        found, held = self.simulation, in_flight(self.simulation.schedule)
        versions, busy = live_versions(found.schedule, found.versions), found.busy
        return {
            "unit": "seconds" if self.seconds else "floating-point operations",
            "time": found.seconds,
            "steps": found.steps,
            "steady": found.window is not None,
            "bubble": found.bubble,
            "stages": [
                {"stage": stage, "worker": worker, "in_flight": held[stage], "versions": versions[stage]}
                for stage, worker in enumerate(placement(found.schedule))
            ],
            "workers": [
                {
                    "bubble": 1 - busy[worker] / found.seconds,
                    "actions": [{"action": str(event.action), "start": event.start, "end": event.end} for event in row],
                }
                for worker, row in enumerate(found.events)
            ],
        }


def schedule_of(experiment: Experiment) -> str:
    """Returns the name of the schedule; "of your own" for a user's, which was read and is known by its content."""
    schedule = experiment.strategy.knobs.get("schedule", "")
    return schedule if isinstance(schedule, str) else "of your own"


@without_dynamo()
def make_timetable(
    experiment: Experiment, allowed: tuple[str, ...] = (), world_size: int | None = None
) -> Timetable | None:
    """Returns the timetable, as the virtual cluster models it where that computes by a model; else in floating-point
    operations.

    None where the strategy has no schedule.
    """
    parts = assemble(experiment, allowed, world_size)
    fabric, hardware, layout = fabric_of(experiment), experiment.hardware, parts.layout
    model, described = parts.compute, fabric.network(hardware)
    network = None if described is None else ModelledNetwork(described, layout.workers)
    modelled = fabric.modelled and model is not None and not model.is_measured and network is not None
    if not modelled or model is None:
        model = ComputeModel(1.0, 0.0, False)
        model.precision = parts.precision
    parts.model.train()
    for i, module in enumerate(parts.modules):
        model.keep(i, module)

    def time(part: int, inputs: Tensor, chunk: int) -> PassTime:
        cost = model.of(part, inputs, chunk)
        return PassTime(cost.forward, cost.backward, cost.to_input)

    def message(nbytes: int, one: int, other: int) -> float:
        if not modelled or network is None:
            return 0.0
        return network.alone(one, other, nbytes)

    inputs, _ = batch_of(parts.data.spec, experiment.batch_size)
    with parts.precision.estimated(fabric.device(experiment, layout)):
        found = simulation_of(parts.strategy, parts.modules, inputs, time, message)
    return None if found is None else Timetable(found, modelled)
