"""Finds changes that would speed up a run: one knob at a time, by a new prediction, or else by an upper bound.

A change is only listed if a run with it would be accepted. A prediction gives its speed-up. A bound is the speed-up if
all of the measured waiting, or of the exposed communication, that the change addresses were gone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...conf.errors import ConfigError
from ...cost.predicted import NotPredicted, PredictedStep
from ..config.repeat import allowing, quoted
from .preparing import Prepared, prepare

LEAST = 1.01  # a change that makes less of it is not told
TOLD = 3
HALF = 0.5  # of what is sent is left


@dataclass(frozen=True)
class Change:
    """`speedup`: of samples a second. `bound`: it is the most that there can be, by what was measured."""

    overrides: tuple[str, ...]
    speedup: float
    bound: bool
    why: str
    command: str


@dataclass(frozen=True)
class StepShares:
    """Shares of a measured step: waiting, and communication that nothing hid."""

    waiting: float
    communication: float
    straggler: int | None = None


def changes(overrides: Sequence[str], allowed: Sequence[str], shares: StepShares | None) -> list[Change]:
    """The three that help most, of a run with these overrides. Raises nothing where there is none."""
    base = _predicted(overrides, allowed)
    if base is not None:
        found = list(_by_prediction(overrides, allowed, base))
    else:
        found = [] if shares is None else list(_by_measurement(overrides, allowed, shares))
    return sorted(found, key=lambda change: -change.speedup)[:TOLD]


def _by_prediction(overrides: Sequence[str], allowed: Sequence[str], base: PredictedStep) -> Iterator[Change]:
    for change in dict.fromkeys(_knobs(overrides, allowed)):
        step = _predicted([*_without(overrides, change), *change], allowed)
        if step is None:
            continue
        speedup = (step.samples / step.seconds) / (base.samples / base.seconds)
        if speedup >= LEAST and step.workers == base.workers:
            most = _where(base, step)
            yield _change(overrides, allowed, change, speedup, False, f"predicted; most of it is {most}")


def _where(base: PredictedStep, step: PredictedStep) -> str:
    """The part of which a sample takes less, by most."""
    saved = {part: time / base.samples - step.parts.get(part, 0.0) / step.samples for part, time in base.parts.items()}
    return max(saved, key=lambda part: saved[part])


def _knobs(overrides: Sequence[str], allowed: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """One knob each, of those that change how long a step takes."""
    experiment = prepare(overrides, None, allowed).experiment
    knobs, batch = experiment.strategy.knobs, experiment.batch_size
    yield (f"batch_size={2 * batch}",)
    if experiment.accumulate > 1:
        yield (f"accumulate={experiment.accumulate // 2}",)
    if (count := knobs.get("micro_batches")) is not None and isinstance(count, int):
        yield from ((f"strategy.micro_batches={more}",) for more in (2 * count, 4 * count, max(count // 2, 1)))
    if knobs.get("recompute"):
        yield ("strategy.recompute=false",)
    if experiment.model.knobs.get("recompute"):
        yield ("model.recompute=false",)
    if experiment.choice("precision").name == "fp32":
        yield ("precision=bf16",)
    if knobs.get("offload") not in (None, "none"):
        yield ("strategy.offload=none",)
    if isinstance(stage := knobs.get("stage"), int):
        yield from ((f"strategy.stage={other}",) for other in range(4) if other != stage)
    if knobs.get("schedule") in ("naive", "gpipe", "1f1b"):
        yield from ((f"strategy.schedule={each}",) for each in ("1f1b", "interleaved") if each != knobs["schedule"])
    for degree in ("tensor", "stages"):
        if isinstance(size := knobs.get(degree), int):
            yield from ((f"strategy.{degree}={other}",) for other in (2 * size, size // 2) if other >= 1)


def _by_measurement(overrides: Sequence[str], allowed: Sequence[str], shares: StepShares) -> Iterator[Change]:
    """Yields upper bounds: the speed-up if the share of a step that a change addresses were gone, or half of it."""
    late = "" if shares.straggler is None else f" (worker {shares.straggler} is late)"
    waits = f"{shares.waiting:.0%} of a step is waiting{late}"
    sends = f"{shares.communication:.0%} of a step is communication that nothing hides"
    candidates = (
        (("sync=backup_workers",), shares.waiting, f"{waits}: a step takes the first gradients"),
        (("sync=asp",), shares.waiting, f"{waits}: nobody waits for another"),
        # against one that is slow all the time it does not help
        (
            ("sync=ssp",),
            shares.waiting if shares.straggler is None else 0.0,
            f"{waits}: nobody waits but for who is far behind",
        ),
        (("sync=local_sgd",), shares.communication, f"{sends}: it meets every few steps"),
        (("compress=bf16",), HALF * shares.communication, f"{sends}: half of the bytes"),
        (
            (f"batch_size={2 * _batch(overrides, allowed)}",),
            HALF * shares.communication,
            f"{sends}: half for each sample",
        ),
    )
    for change, share, why in candidates:
        given = [*_without(overrides, change), *change]
        speedup = 1 / (1 - min(share, 0.99))
        if speedup >= LEAST and change[0] not in overrides and _is_accepted(given, allowed):
            yield _change(overrides, allowed, change, speedup, True, why)


def _batch(overrides: Sequence[str], allowed: Sequence[str]) -> int:
    return prepare(overrides, None, allowed).experiment.batch_size


def _change(
    overrides: Sequence[str], allowed: Sequence[str], change: tuple[str, ...], speedup: float, bound: bool, why: str
) -> Change:
    words = ["paceline", "train", *_without(overrides, change), *change, *allowing(allowed)]
    return Change(change, speedup, bound, why, quoted(words))


def _without(overrides: Sequence[str], change: tuple[str, ...]) -> list[str]:
    """Returns the overrides without those that the change replaces. A group's knobs go with its choice."""
    keys = {each.partition("=")[0] for each in change}
    return [
        each
        for each in overrides
        if (key := each.lstrip("+").partition("=")[0]) not in keys and key.partition(".")[0] not in keys
    ]


def _predicted(overrides: Sequence[str], allowed: Sequence[str]) -> PredictedStep | None:
    try:
        prepared = prepare(overrides, None, allowed)
        return prepared.step_time(prepared.plan())
    except (NotPredicted, ConfigError):
        return None


def _is_accepted(overrides: Sequence[str], allowed: Sequence[str]) -> bool:
    try:
        prepare(overrides, None, allowed).plan()
    except ConfigError:
        return False
    return True


def step_of(overrides: Sequence[str], allowed: Sequence[str]) -> tuple[PredictedStep | None, str]:
    """The prediction of a run with these overrides, as it is made now; or None, and why.

    Raises `ConfigError` where there can be no such run here.
    """
    prepared: Prepared = prepare(overrides, None, allowed)
    plan = prepared.plan()
    try:
        return prepared.step_time(plan), ""
    except NotPredicted as error:
        return None, str(error)


def as_dict(change: Change) -> dict[str, Any]:
    return {**vars(change), "overrides": list(change.overrides)}
