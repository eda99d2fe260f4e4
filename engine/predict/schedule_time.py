"""A pipeline's step on a machine that was measured: its schedule, simulated with each stage's own times."""

import torch
from torch import Tensor, nn

from ...compat.dynamo import without_dynamo
from ...cost.calibration import Calibration
from ...cost.predicted import NotPredicted
from ...cost.worker import HostProcesses, taking_turns
from ...strategies.core.batch import PassTime
from ...strategies.core.copies import without_data
from ...strategies.pipelining.simulate import simulation_of
from ..base.memory import AttentionOf
from ..base.operators import Traced, trace
from ..config.fits import batch_of
from ..features.feature import Parts


@without_dynamo()
def pipelined(
    parts: Parts, batch_size: int, found: dict[str, float], placed: HostProcesses, calibration: Calibration
) -> dict[str, float]:
    """`found`: of the busiest stage, by part, with all its micro-batches -> with the schedule's bubble. The workers of
    all stages and replicas share the cores, a stage's tensor workers among them.
    """
    rates, link = placed.rates(calibration), calibration.link("send", 2)
    traced: dict[tuple[object, ...], Traced] = {}

    def time(part: int, inputs: Tensor, chunk: int) -> PassTime:
        key = (part, tuple(inputs.shape), inputs.requires_grad, chunk)
        if key not in traced:
            traced[key] = _passes(parts.modules[part], inputs, chunk)
        each = traced[key]
        modules = sum(1 for _ in parts.modules[part].modules())
        back = rates.backward(each.backward)
        return PassTime(rates.forward(each.forward, modules), back, back / 2 if inputs.requires_grad else 0.0)

    def message(nbytes: int, one: int, other: int) -> float:
        return link.seconds(nbytes)

    inputs, _ = batch_of(parts.data.spec, batch_size)
    parts.model.train()
    with AttentionOf(torch.device("cpu")):
        simulation = simulation_of(parts.strategy, parts.modules, inputs, time, message)
    if simulation is None:
        raise NotPredicted("the strategy has no schedule")
    intervals = [(event.start, event.end) for row in simulation.events for event in row]
    alike = parts.layout.workers / len(simulation.events) * placed.threads
    step = taking_turns(intervals, simulation.seconds, alike, calibration.cores) / simulation.steps
    most = max(simulation.busy) / simulation.steps
    return found | {"compute": most, "bubble": step - most}


def _passes(part: nn.Module, inputs: Tensor, chunk: int) -> Traced:
    module = without_data(part)
    x = inputs.detach().to("meta").requires_grad_(inputs.requires_grad)
    return trace(lambda: module(x, chunk))
