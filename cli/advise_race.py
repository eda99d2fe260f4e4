"""`paceline advise --race`: real runs decide."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..conf.errors import ConfigError
from .output import aligned, note, note_counted, shortest, show, show_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..advise.question import Question
    from ..advise.race import Raced, RaceEntry
    from ..sweep.definition import Definition
    from ..tracking.ranking import RankedSetting

PLANNING = 60.0  # seconds of the processor for exact plans, before hours of training


def race_of(
    question: "Question", asked: list[str], target: float | None, seeds: int, name: str | None, format: str
) -> None:
    from ..advise.race import RaceFailedError, check_asked, race, round_name
    from ..engine import ROOT
    from ..tracking.run_directory import claimed

    if format not in ("table", "json"):
        raise ConfigError(f"--format {format}: a race has a table, or json")
    check_asked(question, target, seeds)
    ways = _ways(question, asked)
    for way in ways:
        note(f"{way.name}: {' '.join(way.overrides)}")
    with claimed(Path(ROOT), name, time.strftime("race-%m%d-%H%M%S"), round_name("", 1)) as chosen:
        found = _until_the_end(lambda: race(question, chosen, ways, target, seeds, run_round), chosen)
    if format == "json":
        show_json(raw(found, chosen))
    else:
        show(told(found, question, target))
    if len(found.failed) == len(found.ways):
        raise RaceFailedError("every run of the race failed; the reasons are above")
    where = shortest(Path("runs"))
    note(f"everything of this race: {where}/{chosen}-round*; to go on with it: the same, --name {chosen}")
    note(
        "to confirm it by all seeds of all that took part: "
        f"paceline sweep {where}/{chosen}-round1/sweep.yaml --seeds {seeds} --name {chosen}-full"
    )


def _until_the_end(run: "Callable[[], Raced]", name: str) -> "Raced":
    """Raises `InterruptedRunError` where it was stopped, within a round or between two, with the command to go on."""
    from ..engine.base.errors import InterruptedRunError

    code = 130
    try:
        return run()
    except KeyboardInterrupt:
        pass
    except InterruptedRunError as stopped:
        code = stopped.exit_code
    # outside of `except`: it is no consequence of the other
    raise InterruptedRunError(f"the race was stopped; go on with: {_command(name)}", code)


def _command(name: str) -> str:
    """Returns the typed command, with the race's name if it had none."""
    typed = sys.argv[1:]
    named = any(word == "--name" or word.startswith("--name=") for word in typed)
    return shlex.join(["paceline", *typed, *([] if named else ["--name", name])])


def _ways(question: "Question", asked: list[str]) -> "list[RaceEntry]":
    from ..advise.answer import answer
    from ..advise.race import MOST_WAYS, of_rows, of_words

    if len(asked) == 1 and asked[0].isascii() and asked[0].lstrip("-").isdigit():
        most = int(asked[0])
        if not 2 <= most <= MOST_WAYS:
            raise ConfigError(
                f"--race {most}: is how many take part, from 2 to {MOST_WAYS}, or a choice such as sync=asp"
            )
        found = answer(question, top=most, patience=PLANNING)
        if found.interrupted:
            raise KeyboardInterrupt  # no hours of training by a partial answer
        if not found.rows:
            from .advise_view import nothing_fits

            raise nothing_fits(found)
        return of_rows(question, found.rows, most)
    return of_words(question, asked)


def run_round(name: str, definition: "Definition") -> dict[str, dict[str, float | None]]:
    """A sweep, with its table and its report; one that is there already goes on."""
    from ..advise.race import DISTURBED
    from ..engine import ROOT
    from ..sweep.definition import WAY
    from ..sweep.directory import open_sweep
    from ..sweep.lacking import check_machine
    from ..sweep.results import measures_of
    from ..sweep.sweeper import Sweeper
    from ..tracking.compare import ComparisonRequest, table
    from ..tracking.judged import best_first
    from ..tracking.report import write_report
    from .sweep import runs_of
    from .sweep_view import view

    root = Path(ROOT)
    there = (root / name / "study.db").exists()
    if not there:
        check_machine(definition)
    note(f"{name}: {', '.join(way for way, _ in definition.ways)}")
    with open_sweep(name, definition, root, resume=there) as opened:
        with view(opened.study) as observer:
            sweeper = Sweeper(name, opened.study, opened.directory, 1, None, observer)
            try:
                sweeper.run()
            finally:
                notes = {text: len(trials) for text, trials in sweeper.notes.items()}
        note_counted(notes, "trials")
        trials = opened.study.trials()
        runs = runs_of(name, opened.directory, trials)
        rows, _ = table(runs, ComparisonRequest())
        report = opened.directory / "report.html"
        write_report(runs, report, best_first(rows, definition.metric, runs), metric=definition.metric)
        note(f"report: {shortest(report)}")
        found: dict[str, dict[str, float | None]] = {}
        for done in trials:
            if done.state == "failed":
                note(f"{done.trial.chosen[WAY]} failed, and is out: {done.reason}")
            if done.state == "complete" and done.summaries:
                loud = {DISTURBED: 1.0} if done.summaries[0].get("disturbed") else {}
                found[str(done.trial.chosen[WAY])] = {**measures_of(done.summaries[0]), **loud}
        return found


def told(found: "Raced", question: "Question", target: float | None) -> str:
    """Describes the winner, its lead, and how the predictions differ from the measured steps."""
    from .step_time import time_of

    aim = question.experiment.target_accuracy if target is None else target
    rows = [["", "to target", "seeds", "step", "predicted", "out after"]]
    of_way = {way.name: way for way in found.ways}
    whole = sorted(found.settings, key=lambda each: (not each.is_whole, -each.seeds, each.mean if each.values else 0))
    for setting in whole:
        step, predicted = found.steps.get(setting.label), of_way[setting.label].predicted
        last = setting.label in found.rounds[-1]
        rows.append(
            [
                setting.label,
                _to_target(setting, setting.label in found.failed, time_of),
                str(setting.seeds),
                "-" if step is None else time_of(step),
                "-" if predicted is None else time_of(predicted),
                "-" if last else f"round {setting.seeds}",
            ]
        )
    lines = [f"time to {aim:.4g} in {len(found.rounds)} rounds of one seed each:", *aligned(rows, numbers_from=1), ""]
    leading = found.leading
    lines.append(_verdict(found) if leading else _no_winner(found, aim))
    if leading:
        lines += _left_out_early(found)
    lines.append(_prediction(found))
    return "\n".join(lines)


def _to_target(setting: "RankedSetting", failed: bool, time_of: "Callable[[float], str]") -> str:
    if setting.is_whole:
        return setting.text(time_of)
    if failed:
        return "failed"
    return "not always" if setting.values else "never reached"


def _no_winner(found: "Raced", aim: float) -> str:
    """Says why there is no winner if no candidate reached the target with several seeds."""
    alone = [each.label for each in found.settings if each.is_whole]
    if len(alone) == 1:
        return f"no winner: {alone[0]} alone reached {aim:.4g}, and with one seed: nobody was left to race against"
    if len(found.failed) == len(found.ways):
        return "no winner: every run failed, for the reasons above"
    return f"no winner: none reached {aim:.4g} with several seeds; a lower --target, or more epochs"


def _verdict(found: "Raced") -> str:
    """The winner and the next one, or all that cannot be told apart; how much longer others take, by the same seeds."""
    from ..tracking.disturbance import REPEAT
    from ..tracking.ranking import RankedSetting, gap_of, rule_of
    from .step_time import time_of

    def longer(other: RankedSetting) -> str:
        return f"{other.label} takes {gap_of(best, other, ratio=True).text(time_of, 'times as long')}"

    best, *near = found.leading
    if found.disturbed:
        return f"no winner: other programs disturbed the times of {', '.join(sorted(found.disturbed))}. {REPEAT}"
    if near:
        names = " and ".join(f"{each.label} ({each.text(time_of)})" for each in (best, *near))
        rule = rule_of(gap_of(best, each, ratio=True) for each in near)
        by = "; ".join(map(longer, near))
        return f"no winner, they cannot be told apart ({rule}): {names}; {by}; more --seeds may tell them apart"
    rest = [each for each in found.settings if each.is_whole and each.label != best.label and each.seeds > 1]
    second = min(rest, key=lambda each: gap_of(best, each, ratio=True).estimate, default=None)
    by = "" if second is None else f"; {longer(second)}"
    return f"winner: {best.label}, {best.text(time_of)} (mean and 95 % interval of the seeds){by}"


def _left_out_early(found: "Raced") -> list[str]:
    """One seed has no spread: who was left out after it may be the best, and that is said."""
    early = [each.label for each in found.settings if each.is_whole and each.seeds == 1]
    if not early:
        return []
    return [f"left out after one seed, which cannot tell them apart from the first: {', '.join(early)}"]


def _prediction(found: "Raced") -> str:
    if sum(way.predicted is not None for way in found.ways) < 2:
        return "prediction: there was none of these steps; after paceline calibrate there is"
    predicted = [way for way in found.ways if way.predicted is not None and way.name in found.steps]
    if len(predicted) < 2:
        return "prediction: fewer than two of the ways that were predicted have a measured step, so no order is known"
    by_prediction = [way.name for way in sorted(predicted, key=lambda way: way.predicted or 0)]
    by_measure = sorted(by_prediction, key=lambda name: found.steps[name])
    if not found.misjudged:
        return f"prediction: the order of steps was right: {', '.join(by_prediction)}"
    wrong = "; ".join(f"{one} before {other}" for one, other in found.misjudged)
    return (
        f"prediction: steps in the order {', '.join(by_prediction)}; measured {', '.join(by_measure)}; wrong: {wrong}"
    )


def raw(found: "Raced", name: str) -> dict[str, Any]:
    """Returns the race for programs."""
    from ..tracking.ranking import compared

    leading = found.leading
    return {
        "race": name,
        "winner": leading[0].label if len(leading) == 1 and not found.disturbed else None,
        "disturbed": sorted(found.disturbed),
        "leading": [setting.label for setting in leading],
        "compared": compared(leading[0], found.settings, ratio=True) if leading else [],
        "rounds": found.rounds,
        "ways": [
            {
                "way": way.name,
                "overrides": list(way.overrides),
                "seconds_to_target": list(setting.values),
                "seeds": setting.seeds,
                "step_seconds": found.steps.get(way.name),
                "predicted_step_seconds": way.predicted,
                "failed": way.name in found.failed,
            }
            for way, setting in zip(found.ways, found.settings, strict=True)
        ],
        "misjudged": [list(pair) for pair in found.misjudged],
    }
