"""The result of a sweep, as far as its seeds can tell: its closing line, and the same for programs."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..sweep.results import measures_of
from ..tracking.columns import is_ratio, known
from ..tracking.disturbance import REPEAT, is_timed
from ..tracking.ranking import RankedSetting, compared, first, gap_of, order, rule_of
from ..tracking.selection import aim_of

if TYPE_CHECKING:
    from ..sweep.definition import Definition
    from ..sweep.study import TrialRecord

NAMED = 4  # settings in the closing line


def outcome(trials: "list[TrialRecord]", definition: "Definition", more: str) -> str:
    """Returns the sweep's result in a line: no winner that another seed would overturn. `more`: the options that add
    seeds.
    """
    metric, larger = definition.metric, definition.maximize
    whole = order(_settings(trials, metric), larger)
    if not whole:
        return ""
    if why := why_apart(trials, metric):
        return f"{metric}: no setting is named the best: {why}. The report ranks each kind by itself."
    if all(setting.seeds == 1 for setting in whole):
        if definition.method != "grid":  # a search is asked for a point to go on with
            which = f"{'highest' if larger else 'lowest'} {metric} of this search"
            point = f"{_figure(whole[0].mean)} with {whole[0].label}"
            return f"{which}: {point} (one seed: not a ranking); with more seeds: {more}"
        low, high = sorted((whole[0].mean, whole[-1].mean))
        values = f"{_figure(low)} to {_figure(high)}" if high > low else _figure(low)
        return f"{metric}: {values} (one seed each: not a ranking); to compare with more seeds: {more}"
    if is_timed(metric) and (count := sum(map(_is_disturbed, trials))):
        low, high = sorted((whole[0].mean, whole[-1].mean))
        return (
            f"{metric}: {_figure(low)} to {_figure(high)}. Other programs disturbed {count} of {len(trials)} trials: "
            f"no setting is named the best. {REPEAT}"
        )
    return _of_several_seeds(whole, metric, larger)


def why_apart(trials: "Iterable[TrialRecord]", metric: str) -> str:
    """Returns why the trials are of several kinds, which are not compared by this metric; "": they are of one."""
    summaries = [summary for done in trials if done.state == "complete" for summary in done.summaries]
    if is_timed(metric) and len({bool(summary.get("modelled")) for summary in summaries}) > 1:
        return "modelled times are never compared with measured ones"
    column = known(metric)
    targets = {aim_of([column.key if column else metric], summary.get("target_accuracy")) for summary in summaries}
    return "their targets differ" if len(targets) > 1 else ""


def _is_disturbed(done: "TrialRecord") -> bool:
    return any(summary.get("disturbed") for summary in done.summaries)


def _of_several_seeds(whole: list[RankedSetting], metric: str, larger: bool) -> str:
    """Names the leaders and their lead. If one leads alone, it names the next one, too."""
    ratio = is_ratio(metric)
    best, *near = first(whole, larger, ratio)
    others = near or [setting for setting in whole if setting is not best and setting.seeds > 1][:1]
    gaps = [gap_of(best, other, ratio) for other in others]
    told = [f"{best.label}: {best.text(_figure)}"]
    told += [f"{o.label}: {o.text(_figure)}, {gap.text(_figure)}" for o, gap in zip(others, gaps, strict=True)]
    told = [*told[:NAMED], f"and {len(told) - NAMED} more"] if len(told) > NAMED else told
    means = "mean and 95 % interval of the seeds"
    if near:
        return f"best {metric} cannot be told apart ({rule_of(gaps)}), {means}: {'; '.join(told)}"
    return f"best {metric}, {means}: {'; next '.join(told)}"


def ranking(trials: "list[TrialRecord]", definition: "Definition") -> dict[str, Any]:
    """`leading`: the best, and what it is not told apart from ([]: one seed, several kinds, or
    other programs disturbed the times); `compared`: others with the best."""
    ratio = is_ratio(definition.metric)
    settings = order(_settings(trials, definition.metric), definition.maximize)
    leading = first(settings, definition.maximize, ratio)
    is_blurred = is_timed(definition.metric) and any(map(_is_disturbed, trials))
    if is_blurred or why_apart(trials, definition.metric):
        leading = []
    return {
        "leading": [setting.label for setting in leading],
        "compared": compared(leading[0], settings, ratio) if leading else [],
    }


def _settings(trials: "list[TrialRecord]", metric: str) -> list[RankedSetting]:
    """Groups the trials by their parameters, without the seed."""
    runs: dict[str, list[tuple[Any, float | None]]] = {}
    for done in sorted(trials, key=lambda done: done.state != "complete"):  # of a seed that was repeated, that counts
        label = " ".join(f"{key}={value}" for key, value in done.trial.chosen.items() if key != "seed")
        told = [measures_of(summary).get(metric) for summary in done.summaries] if done.state == "complete" else []
        told += [None] * (len(done.trial.seeds) - len(told))
        seeds = [done.trial.chosen.get("seed") if seed is None else seed for seed in done.trial.seeds]
        known = [value if value is not None and math.isfinite(value) else None for value in told]
        runs.setdefault(label, []).extend(zip(seeds, known, strict=True))
    return [RankedSetting.of(label, each) for label, each in runs.items()]


def _figure(value: float) -> str:
    return f"{value:.5g}"
