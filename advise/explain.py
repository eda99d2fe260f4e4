"""Explains the time of one candidate, and finds the changes that would help most by predicting each."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..cost.layout import ParallelLayout
from ..cost.links import Link, Links
from ..cost.predicted import PredictedStep
from ..cost.published import efficiency
from ..cost.step import Cluster, step_time
from .accelerators import Ground, search
from .answer import Answer
from .candidate import Predicted
from .plans import with_step
from .ranking import ranked

TIMES = 2  # that each is made better


@dataclass(frozen=True)
class PredictedSaving:
    """`saves`: of the seconds for a sample, as a share; below 0 it costs."""

    what: str
    saves: float


@dataclass(frozen=True)
class CandidateExplanation:
    row: Predicted
    step: PredictedStep | None  # None: its time is not predicted
    changes: list[PredictedSaving]  # the most helpful first


def explain(found: Answer, row: Predicted) -> CandidateExplanation:
    exact, step = with_step(found.question, row.candidate)
    if step is None or found.ground is None or row.candidate.layout is None:
        return CandidateExplanation(exact, step, [])
    return CandidateExplanation(exact, step, sorted(_changes(found.ground, row), key=lambda change: -change.saves))


def _changes(ground: Ground, row: Predicted) -> list[PredictedSaving]:
    cluster = ground.cluster(row.candidate.workers)
    before = step_time(ground.of, _layout(row), cluster, efficiency(cluster.device)).total
    found = hardware_changes(ground, row)
    machine = ground.machine
    larger = replace(ground, machine=machine.model_copy(update={"device_memory": TIMES * machine.device_memory}))
    found += _best(larger, before, "memory of each device twice as large: another layout, ", 1)
    question = replace(ground.question, batch=TIMES * ground.question.batch)
    found += _best(replace(ground, question=question), before, f"{question.batch} samples a step: ", TIMES)
    return found


def hardware_changes(ground: Ground, row: Predicted) -> list[PredictedSaving]:
    """Returns the effect of each piece of hardware twice as fast, in the same layout."""
    return [saved(ground, row, _layout(row), what, change) for what, change in _hardware(row)]


def saved(
    ground: Ground,
    row: Predicted,
    layout: ParallelLayout,
    what: str,
    change: Callable[[Cluster], Cluster] = lambda cluster: cluster,
) -> PredictedSaving:
    """Returns the effect of another layout, or of other hardware."""
    cluster, its = ground.cluster(row.candidate.workers), _layout(row)
    before = step_time(ground.of, its, cluster, efficiency(cluster.device)).total / its.batch
    after = step_time(ground.of, layout, change(cluster), efficiency(cluster.device)).total / layout.batch
    return PredictedSaving(what, 1 - after / before)


def _layout(row: Predicted) -> ParallelLayout:
    assert row.candidate.layout is not None
    return row.candidate.layout


def _hardware(row: Predicted) -> list[tuple[str, Callable[[Cluster], Cluster]]]:
    found: list[tuple[str, Callable[[Cluster], Cluster]]] = [
        ("devices twice as fast at products", _faster_products),
        (
            "memory of the devices twice as fast",
            lambda each: replace(each, device=replace(each.device, bandwidth=TIMES * each.device.bandwidth)),
        ),
        (
            "links inside a host twice as fast",
            lambda each: _links(each, replace(each.links, inside=_faster(each.links.inside))),
        ),
        ("the host link twice as fast", lambda each: replace(each, host_link=TIMES * each.host_link)),
    ]
    if row.candidate.hosts > 1:
        found.append(
            (
                "links between hosts twice as fast",
                lambda each: _links(each, replace(each.links, between=_faster(each.links.between))),
            )
        )
    return found


def _faster_products(cluster: Cluster) -> Cluster:
    peak = {dtype: TIMES * flops for dtype, flops in cluster.device.peak.items()}
    return replace(cluster, device=replace(cluster.device, peak=peak))


def _faster(link: Link) -> Link:
    return replace(link, bandwidth=TIMES * link.bandwidth)


def _links(cluster: Cluster, links: Links) -> Cluster:
    return replace(cluster, links=links)


def _best(ground: Ground, before: float, what: str, samples: int) -> list[PredictedSaving]:
    """The soonest with that changed, for each sample."""
    fit = [row for row in search(ground).fit if row.over_device <= 0 and row.over_host <= 0]
    if not fit:
        return []
    best = ranked(fit, "time")[0]
    assert best.undisturbed is not None
    which = f"{best.candidate.family} {best.candidate.group} on {best.candidate.workers}"
    return [PredictedSaving(what + which, 1 - best.undisturbed / samples / before)]
