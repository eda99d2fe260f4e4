"""How long a step will take on a machine that `paceline calibrate` measured: any model, by its operators.

What of a strategy or a sync mode has no formula here is not predicted, and the reason is said.
"""

from dataclasses import replace

from ...cost.calibration import Calibration, read
from ...cost.expected import expected_maximum, expected_order
from ...cost.predicted import NotPredicted, PredictedStep
from ...cost.rules import CostError
from ...cost.worker import FORMULAS, HostProcesses, StepWork, exchanged, optimizer, seconds
from ...strategies.data_parallel import DataParallel
from ...strategies.domain import DomainParallel
from ...strategies.hybrid import Hybrid
from ...strategies.pipeline import Pipeline
from ...strategies.single import Single
from ...strategies.sync.backup_workers import BackupWorkers
from ...strategies.sync.fedavg import FedAvg
from ...strategies.tensor import TensorParallel
from ...strategies.torch_ddp import TorchDDP
from ..config.experiment import Experiment
from ..config.fits import batch_of
from ..fabrics.layout import RunLayout as Workers
from ..fabrics.layout import share_of_cores
from ..features.feature import Parts
from ..planning.build import assemble
from .exchanges_of_ddp import of_ddp, owned
from .exchanges_of_sync import Between, between, clipped, of_norm
from .schedule_time import pipelined
from .step_work import exchanges, stepped, trained, work_of_parts


def predict_calibrated(experiment: Experiment, allowed: tuple[str, ...], workers: Workers) -> PredictedStep:
    """Raises `NotPredicted`."""
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
    if not isinstance(strategy, Single | DataParallel | TensorParallel | Pipeline | Hybrid | DomainParallel | TorchDDP):
        raise NotPredicted(
            f"strategy={experiment.strategy.name}: its engine is not ours, and what that takes beside was not measured"
        )
    fused = bool(experiment.optimizer.knobs.get("fused"))
    works = work_of_parts(experiment, parts)
    if sync.traits.steps_on_workers:
        works = [
            stepped(work, owned(strategy, trained(module), replicas), parts.make_optimizer, fused)
            for work, module in zip(works, parts.modules, strict=True)
        ]
    inputs, _ = batch_of(parts.data.spec, experiment.batch_size)
    slowest: dict[str, float] = {}
    flops = 0.0
    for number, (work, module) in enumerate(zip(works, parts.modules, strict=True)):
        if isinstance(strategy, TorchDDP):
            talk = of_ddp(strategy, module, replicas)
        else:
            talk = between(experiment, parts, trained(module), replicas)
        beside = [*clipped(sync.clip, trained(module))]
        beside += [kernel for feature in parts.features for kernel in feature.kernels(trained(module))]
        optimized = (*work.optimizer, *beside)
        work = replace(work, hooked=talk.hooked, moved=talk.moved, every=talk.every, optimizer=optimized)
        inside = of_norm(sync.clip, parts.layout.parts)
        if isinstance(strategy, TensorParallel | DomainParallel):
            for size in parts.accumulation.sizes(experiment.batch_size):
                inside += exchanges(strategy.exchanges(parts.modules, inputs[:size])[number], strategy.parts)
        found = seconds(work, placed, calibration, inside, talk.exchanges)
        flops += work.flops * replicas
        if talk.served is not None:
            served = stepped(replace(work, optimizer=()), trained(module), parts.make_optimizer, fused)
            found |= _served(found, talk, served, placed, calibration, replicas)
        if not slowest or sum(found.values()) > sum(slowest.values()):
            slowest = found
    if isinstance(strategy, Pipeline | Hybrid):
        slowest = pipelined(parts, experiment.batch_size, slowest, placed, calibration)
    return _with_stragglers(experiment, parts, slowest), flops


def _served(
    found: dict[str, float],
    talk: Between,
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
    trip = exchanged(talk.exchanges, calibration)
    alone = sum(part for name, part in found.items() if name != "communication")
    service = trip / 2 + (step if talk.served == "each" else step / replicas)
    turns = placed.turns(calibration.cores)
    all_done = replicas * (alone / turns + trip / 2 + service) / calibration.cores
    whole = max(alone + trip + step, all_done, replicas * service)
    return {"communication": trip, "waiting": whole - alone - trip}


def _with_stragglers(experiment: Experiment, parts: Parts, found: dict[str, float]) -> dict[str, float]:
    """Workers that wait for one another wait for the slowest; others are as slow as they are on average."""
    chosen = experiment.stragglers
    if chosen.name == "none":
        return found
    together = parts.layout.workers if parts.sync.traits.synchronous else parts.layout.parts
    factor = expected_maximum(chosen.name, chosen.knobs, together, least=1.0)
    if isinstance(parts.sync, BackupWorkers):  # replicas of one worker each
        replicas = parts.layout.replicas
        factor = expected_order(chosen.name, chosen.knobs, replicas, replicas - parts.sync.backups, least=1.0)
    elif isinstance(parts.sync, FedAvg):  # a round waits for the slowest, whose steps are slow by turns
        raise NotPredicted(
            f"stragglers={chosen.name} under sync=fedavg: the slowest sum over a round has no formula here"
        )
    return found | {"waiting": found.get("waiting", 0.0) + (factor - 1) * found["compute"]}
