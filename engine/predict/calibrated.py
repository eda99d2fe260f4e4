"""Predicts the time of a step on a machine that `paceline calibrate` measured: any model, by its operators.

The messages of strategies and sync modes are the ones that they state (`Sync.transfers`, `Strategy.exchanges`). Parts
that they call unmeasured are not predicted, and the reason is given.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ...cost.calibration import Calibration, read
from ...cost.expected import expected_maximum, expected_order
from ...cost.kernels import Kernel
from ...cost.predicted import NotPredicted, PredictedStep
from ...cost.rules import CostError
from ...cost.transfer import Kernels, Transfer
from ...cost.worker import FORMULAS, HostProcesses, StepWork, optimizer, seconds, transferred
from ...strategies.core.clip import NORM, Clip
from ...strategies.core.cost import Transfers, World, payload
from ...strategies.core.protocols import exchanges_of, stepped_by
from ...strategies.pipelining.simulate import Scheduled
from ..base.operators import recorded
from ..config.experiment import Experiment
from ..config.fits import batch_of
from ..fabrics import clients
from ..fabrics.layout import RunLayout as Workers
from ..fabrics.layout import share_of_cores
from ..features import injected
from ..features.feature import Parts
from ..planning.build import assemble
from .schedule_time import pipelined
from .step_work import stepped, trained, transfers, work_of_parts


def predict_calibrated(experiment: Experiment, allowed: tuple[str, ...], workers: Workers) -> PredictedStep:
    """Predicts the time of a step, by the machine's calibration. Raises `NotPredicted`."""
    hardware = experiment.hardware
    assert hardware.calibration is not None
    calibration = read(hardware.calibration)
    if (precision := experiment.choice("precision").name) != "fp32":
        raise NotPredicted(f"precision={precision}: a calibration measures float32 alone")
    parts = assemble(experiment, allowed, workers.world_size)
    for feature in parts.features:
        if feature.unpredicted:
            raise NotPredicted(f"{feature.key}={experiment.choice(feature.key).name} {feature.unpredicted}")
    placed = HostProcesses(
        parts.layout.workers,
        parts.layout.servers * parts.layout.parts,
        hardware.threads or share_of_cores(parts.fabric.processes_here(parts.layout)),
    )
    try:
        told = parts_of_step(experiment, parts, placed, calibration)
    except CostError as error:
        raise NotPredicted(str(error)) from error
    seconds_by_part, flops = told
    samples = experiment.batch_size * parts.layout.replicas
    shape, peak = parts.data.spec.input_shape, hardware.machine and hardware.machine.flops.get("float32")
    is_text = not parts.data.spec.input_dtype.is_floating_point and len(shape) == 1
    hourly = None if hardware.machine is None else hardware.machine.price_per_hour
    return PredictedStep(
        parts=seconds_by_part,
        formulas=FORMULAS,
        how=f"by its operators, on {calibration.host} as it was measured on {calibration.date}",
        samples=samples,
        tokens=samples * shape[0] if is_text else None,
        flops=flops,
        workers=parts.layout.workers,
        on="processes of this CPU",
        # `machine.flops` are those of all cores
        peak=None if not peak else peak * min(placed.threads, calibration.cores) / calibration.cores,
        dtype="float32",
        price_per_second=None if hourly is None else hourly / 3600,
    )


def parts_of_step(
    experiment: Experiment, parts: Parts, placed: HostProcesses, calibration: Calibration
) -> tuple[dict[str, float], float]:
    """Seconds by part, and the flops of all workers. Raises `NotPredicted`, `CostError`."""
    strategy, sync, replicas = parts.strategy, parts.sync, parts.layout.replicas
    if why := strategy.traits.unpredicted:
        raise NotPredicted(f"strategy={experiment.strategy.name}: {why}")
    fused = bool(experiment.optimizer.knobs.get("fused"))
    works = work_of_parts(experiment, parts)
    inputs, _ = batch_of(parts.data.spec, experiment.batch_size)
    world, slowest, flops = _world(experiment, parts), dict[str, float](), 0.0
    stated = [_stated(experiment, parts, trained(module), world) for module in parts.modules]
    for number, (work, module, told) in enumerate(zip(works, parts.modules, stated, strict=True)):
        parameters = trained(module)
        if sync.traits.steps_on_workers:
            most = max(stepped_by(sync, parameters, replicas), key=payload)  # of the replica that has most to do
            work = stepped(work, most, parts.make_optimizer, fused)
        beside = [*clipped(sync.clip, parameters)]
        beside += [kernel for feature in parts.features for kernel in feature.kernels(parameters)]
        work = replace(work, hooked=told.hooked, optimizer=(*work.optimizer, *beside))
        inside = of_norm(sync.clip, parts.layout.parts)
        if not isinstance(strategy, Scheduled):
            for size in parts.accumulation.sizes(experiment.batch_size):
                inside += transfers(exchanges_of(strategy, parts.modules, inputs[:size])[number], strategy.parts)
        found = seconds(work, placed, calibration, inside, told.sent)
        flops += work.flops * replicas
        if told.served is not None:
            served = stepped(replace(work, optimizer=()), parameters, parts.make_optimizer, fused)
            found |= _served(found, told, served, placed, calibration, replicas)
        if not slowest or sum(found.values()) > sum(slowest.values()):
            slowest = found
    if isinstance(strategy, Scheduled):
        slowest = pipelined(parts, experiment.batch_size, slowest, placed, calibration)
    return _with_stragglers(experiment, parts, stated[0], slowest), flops


def _world(experiment: Experiment, parts: Parts) -> World:
    """The replicas, on one host, in a run without end."""
    layout, samples, each = parts.layout, parts.data.spec.train_size, None
    if samples is not None:
        each = clients.steps_per_epoch(parts.partitioner, samples, parts.sync, layout, experiment.batch_size)
    return World(layout.replicas, each, hosts=(0,) * layout.replicas)


def _stated(experiment: Experiment, parts: Parts, parameters: Sequence[Tensor], world: World) -> Transfers:
    """Returns the transfers that the sync mode states of a part, with the operators that it rehearses.

    Raises `NotPredicted`.
    """
    told = parts.sync.transfers(parameters, world)
    if why := told.unpredicted or (told.varies if not told.sent else ""):
        raise NotPredicted(injected.named(why, experiment))
    return replace(told, sent=[_with_rehearsed(each) for each in told.sent])


def _with_rehearsed(transfer: Transfer) -> Transfer:
    if transfer.profile is None:
        return transfer
    return replace(transfer, kernels=(*transfer.kernels, *recorded(transfer.profile())))


def clipped(clip: Clip | None, parameters: Sequence[Tensor]) -> Kernels:
    """The operators of a clip: one pass over a gradient for its norm, where it takes one, and one to change it."""
    if clip is None or not clip.clips:
        return ()
    tables = ("sum", "mul_") if clip.measures else ("mul_",)
    return tuple(Kernel(table, (float(max(each.numel(), 1)),)) for each in parameters for table in tables)


def of_norm(clip: Clip | None, parts: int) -> list[Transfer]:
    """The squares of a norm, summed among the workers of a replica."""
    if clip is None or not clip.measures or parts == 1:
        return []
    return [Transfer("all_reduce", parts, 2 * (parts - 1) / parts * NORM)]


def _served(
    found: dict[str, float],
    told: Transfers,
    work: StepWork,
    placed: HostProcesses,
    calibration: Calibration,
    replicas: int,
) -> dict[str, float]:
    """A round trip to the server, and its share of the cores. `work`: with the server's optimizer step.

    A worker waits for its own exchange and for its server; no step is quicker than all that is done in a step over all
    cores, nor than the server takes for the pushes of all.
    """
    step = optimizer(work, placed.rates(calibration))
    trip = transferred(told.sent, calibration)
    alone = sum(part for name, part in found.items() if name != "communication")
    service = trip / 2 + (step if told.served == "each" else step / replicas)
    turns = placed.turns(calibration.cores)
    all_done = replicas * (alone / turns + trip / 2 + service) / calibration.cores
    whole = max(alone + trip + step, all_done, replicas * service)
    return {"communication": trip, "waiting": whole - alone - trip}


def _with_stragglers(
    experiment: Experiment, parts: Parts, told: Transfers, found: dict[str, float]
) -> dict[str, float]:
    """Workers that wait for one another wait for the slowest; others are as slow as they are on average."""
    chosen, replicas = experiment.stragglers, parts.layout.replicas
    if chosen.name == "none":
        return found
    if told.unpredicted_stragglers:
        raise NotPredicted(f"stragglers={chosen.name}: {told.unpredicted_stragglers}")
    together = parts.layout.workers if parts.sync.traits.synchronous else parts.layout.parts
    factor = expected_maximum(chosen.name, chosen.knobs, together, least=1.0)
    if told.waits_for is not None:  # replicas of one worker each
        factor = expected_order(chosen.name, chosen.knobs, replicas, told.waits_for, least=1.0)
    return found | {"waiting": found.get("waiting", 0.0) + (factor - 1) * found["compute"]}
