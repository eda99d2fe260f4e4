"""Recommends the best candidate: its limits, the next best and why it loses, and one thing to try."""

from dataclasses import asdict, dataclass, replace

from ..cost.published import Published, efficiency, published
from ..cost.step import step_time
from ..engine.predict.device_use import DeviceUse, device_use
from .accelerators import traits_by_name
from .answer import Answer
from .candidate import Predicted
from .explain import TIMES, PredictedSaving, hardware_changes, saved
from .plans import with_step
from .ranking import ranked

LIMITS = {  # of a step's parts; the other parts are the network's
    "compute": "compute",
    "optimizer": "memory",
    "offload": "memory",
    "bubble": "bubble",
    "input": "host",
    "host": "host",
}
WORTH = 0.02  # of the time, to name a larger batch before faster hardware


@dataclass(frozen=True)
class Recommendation:
    """The first row of an answer.

    Args:
        room: bytes that a device has, or the host where workers compute on the CPU. None: not known.
        limits: shares of the step, the largest first; none where times are not predicted.
        after: the best of the next best family; of the same one where there is no other.
        longer: the part of `after` that takes the most seconds more, and how many; None where none does.
        change: what would help.
        published: how long runs of the same software took beside predictions; None where none are known.
        use: the memory of a device, with the runtime's; None where workers compute on the CPU.
    """

    row: Predicted
    room: int | None
    limits: dict[str, float]
    after: Predicted | None
    longer: tuple[str, float] | None
    change: PredictedSaving | None
    published: Published | None
    use: DeviceUse | None


def recommend(found: Answer) -> Recommendation:
    """`found` has a row."""
    row = found.rows[0]
    parts, after = _parts(found, row), _after(found, row)
    longer = None
    if parts and after is not None and (its := _parts(found, after)):
        part = max(its, key=lambda name: its[name] - parts.get(name, 0.0))
        more = its[part] - parts.get(part, 0.0)
        longer = (part, more) if more > 0 else None
    limits: dict[str, float] = {}
    for name, seconds in parts.items():
        limit = LIMITS.get(name, "network")
        limits[limit] = limits.get(limit, 0.0) + seconds / sum(parts.values())
    limits = dict(sorted(limits.items(), key=lambda each: -each[1]))
    return Recommendation(
        row, _room(row), limits, after, longer, _change(found, row), _published(found, row), _use(found, row)
    )


def _published(found: Answer, row: Predicted) -> Published | None:
    traits = traits_by_name().get(row.candidate.family)
    if found.ground is None or traits is None:
        return None
    return published(traits.software, found.ground.cluster(row.candidate.workers).device.name)


def _use(found: Answer, row: Predicted) -> DeviceUse | None:
    machine, traits = found.question.experiment.hardware.machine, traits_by_name().get(row.candidate.family)
    if machine is None or not machine.devices or traits is None:
        return None
    return device_use(row.device, machine.device_memory, traits.software)


def _room(row: Predicted) -> int | None:
    if row.over_device:
        return row.device - row.over_device
    return row.host - row.over_host if row.over_host else None


def _after(found: Answer, row: Predicted) -> Predicted | None:
    best = [each.best for each in found.families if each.best is not None and each.name != row.candidate.family]
    same = [each for each in best if not each.candidate.raced] or best
    return next(iter(ranked(same, found.sort) or found.rows[1:]), None)


def _parts(found: Answer, row: Predicted) -> dict[str, float]:
    """Returns the seconds of each part; {} where they are not predicted."""
    if row.seconds is None:
        return {}
    if found.ground is None or row.candidate.layout is None:
        step = with_step(found.question, row.candidate)[1]
        return {} if step is None else dict(step.parts)
    cluster = found.ground.cluster(row.candidate.workers)
    return asdict(step_time(found.ground.of, row.candidate.layout, cluster, efficiency(cluster.device)))


def _change(found: Answer, row: Predicted) -> PredictedSaving | None:
    """Returns a larger batch in the same layout, or faster hardware, whichever is worth it."""
    layout = row.candidate.layout
    if found.ground is None or layout is None or row.seconds is None:
        return None
    batch = TIMES * layout.batch
    typed = found.question.fixes("strategy.micro_batches")
    if row.candidate.schedule != "gpipe" and not typed:  # which keeps each micro-batch
        larger = saved(found.ground, row, replace(layout, batch=batch), f"--batch {TIMES * found.question.batch}")
        if larger.saves >= WORTH:
            return larger
    return max(hardware_changes(found.ground, row), key=lambda change: change.saves)
