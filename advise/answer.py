"""All of it put together: what fits, ranked; the Pareto front; the best of each family, and why not the rest."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..conf.errors import ConfigError
from ..cost.predicted import NotPredicted
from ..engine.api.preparing import prepare
from ..engine.config.typed import instead
from .accelerators import Ground, Searched, ground, search
from .candidate import Candidate, Predicted
from .limits import Missed, beyond, meets, nearest
from .modes import alternatives
from .plans import planned, takes_profile
from .question import Question, workers_of
from .ranking import KEYS, Sort, best_of_groups, front, ranked, roomy_first, spread
from .why_not import Family, families, least_over

PATIENCE = 3.0  # seconds of the processor for exact plans: on a loaded machine they take longer
FRONT = 6  # of its points that are shown, beside those that are lines anyway
TRIES = 2  # plans of what does not fit by its closed form
CUT_SHORT = "interrupted: this answer is partial"
Progress = Callable[[str], None]  # is given what is done now, in a few words
BY_PROFILE = (
    "times are of a shipped profile, two cores of a server, and not of this machine: `paceline calibrate` measures it; "
    "then choose the hardware that it writes"
)


@dataclass(frozen=True)
class Answer:
    """`rows`: the best, of each layout one. `front`: those of the rows that are on it, and some others, soonest first.

    `points` were looked at in `seconds`; `fit` of them do. `nearest`: where none does, three layouts that lack the
    least. `missed`: where none meets budget and deadline. `interrupted`: by Ctrl-C, so that it is partial.
    `unplanned`: how many there was no time for, where no closed form knows them.
    """

    question: Question
    sort: Sort
    rows: list[Predicted]
    front: list[Predicted]
    families: list[Family]
    points: int
    seconds: float
    fit: int
    ground: Ground | None  # None: no closed form knows this
    nearest: list[Predicted] = field(default_factory=list[Predicted])
    missed: list[Missed] = field(default_factory=list[Missed])
    notes: list[str] = field(default_factory=list[str])
    interrupted: bool = False
    unplanned: int = 0


def answer(
    question: Question,
    sort: Sort | None = None,
    top: int = 10,
    patience: float = PATIENCE,
    progress: Progress = lambda _: None,
) -> Answer:
    """The answer, or what is known of it when Ctrl-C comes while plans are made.

    Raises `ConfigError`, and what plans raise for a model that does not take its data.
    """
    began = time.process_time()
    progress("looking for what fits")
    try:
        of = closed_form(question)
    except NotPredicted as why:
        return _by_plans(question, sort, top, patience, str(why), progress)
    found = search(of)
    if found.too_often and not found.fit:
        raise ConfigError(f"{found.too_often}. Choose a longer one, a shorter --restart or a faster --storage.")
    check = Checked(question, began + patience, progress)
    order = sort or "time"
    fitting = ranked(found.fit, order)
    within = [row for row in fitting if meets(question, row)]
    rows = check.first(sure_first(within, order), top) or check.first(within, 1)
    rows = roomy_first(rows, order)
    whole = front([row for row in within if row.fits] or within)
    starred = {row.candidate for row in [*rows, *spread(whole, FRONT)]}
    on_front = check.first([row for row in whole if row.candidate in starred], len(whole))
    names = dict.fromkeys(row.candidate.family for row in within)
    of_each = {name: [row for row in within if row.candidate.family == name] for name in names}
    best = {name: next(iter(check.first(sure_first(mine, order), 1)), None) for name, mine in of_each.items()}
    known = [check.known(row) for row in fitting]
    refused = [*found.near, *(row for row in known if not row.fits)]
    sure = [row for row in known if row.fits and row.seconds is not None]
    wanted = [row for row in sure if meets(question, row) and best.get(row.candidate.family) is not None]
    told = families(wanted, refused, found.pruned, order, beyond(question, sure))
    told = [replace(each, best=best.get(each.name)) for each in told]
    late = not rows and bool(sure or (fitting and not within))
    near = [] if rows or late else least_over(check.first(least_over(refused), 3, fits=False))
    missed = nearest(question, sure or fitting) if late else []
    notes = [f"all: {why}" for (family, why) in found.pruned if family == "all"]
    notes += [*_failures(question), *_not_timed(question, found)]
    if check.interrupted:
        notes.insert(0, CUT_SHORT)
    if check.unchecked:
        notes.append(f"~: by closed forms alone; there was no time to plan {len(check.unchecked)} of these exactly")
    facts = (found.points, found.seconds, len(sure), of, near, missed, notes, check.interrupted)
    return Answer(question, order, rows, on_front, told, *facts)


def closed_form(question: Question) -> Ground:
    """Raises `NotPredicted` where times are not those of a GPT on accelerators that are described."""
    if question.given.get("sync", "bsp") != "bsp" or question.experiment.choice("compress").name != "none":
        raise NotPredicted("sync and compress are typed, and closed forms know sync=bsp with compress=none")
    if question.experiment.accumulate > 1:
        raise NotPredicted("accumulate is typed, and closed forms choose micro-batches themselves")
    if question.experiment.choice("adapt").name != "none":
        raise NotPredicted("adapt is typed, and closed forms of memory know models whose weights are all trained")
    if question.experiment.compile:
        raise NotPredicted("compile=true is typed, and closed forms know passes that are not compiled")
    usual = instead(list(question.overrides), {"strategy": "data_parallel", "sync": "bsp"})
    batch = max(1, question.batch // workers_of(question.experiment))
    plan = prepare([*usual, f"batch_size={batch}"], question.config_dir, question.allowed).plan()
    return ground(question, plan)


def sure_first(rows: Sequence[Predicted], sort: Sort) -> list[Predicted]:
    """Returns each group's best of those that fit by their closed form with the margin of published runs, then some of
    those that fit without it, and of those that may fit, as the form may be more than the plan.
    """
    sure = [row for row in rows if row.roomy]
    tight = [row for row in rows if row.fits and not row.roomy]
    rest = [row for row in rows if not row.fits]
    first, rooms = best_of_groups(sure, sort), {row.candidate.kind for row in sure}
    without = [row for row in best_of_groups(tight, sort) if row.candidate.kind not in rooms]
    return [*first, *without, *best_of_groups(rest, sort)[:TRIES]]


class Checked:
    """Exact plans of what is shown, each once, until the time is over."""

    def __init__(self, question: Question, until: float, progress: Progress = lambda _: None) -> None:
        self._question, self._until, self._progress = question, until, progress
        self.interrupted = False
        self._plans: dict[object, Predicted] = {}
        self._of_part = 0.0  # seconds, of the last plan
        self.unchecked: set[Candidate] = set()

    def first(self, rows: Sequence[Predicted], most: int, fits: bool = True) -> list[Predicted]:
        """The first so many of those that fit by their plan, too."""
        found: list[Predicted] = []
        for row in rows:
            if len(found) == most:
                break
            checked = self._checked(row)
            if not fits or checked.fits:
                found.append(checked)
        return found

    def known(self, row: Predicted) -> Predicted:
        """Returns the exact plan of the row if it was made, and else the row."""
        return self._plans.get((row.candidate.settings, row.candidate.workers), row)

    def _checked(self, row: Predicted) -> Predicted:
        key = row.candidate.settings, row.candidate.workers
        if key not in self._plans:
            layout, began = row.candidate.layout, time.process_time()
            parts = 1 if layout is None else layout.stages * layout.chunks  # of whose passes a plan is made
            if began + parts * self._of_part > self._until:
                self.unchecked.add(row.candidate)
                return row
            self._progress(f"{len(self._plans)} planned exactly; now {row.candidate.group}")
            try:
                exact = planned(self._question, row.candidate)
            except KeyboardInterrupt:
                self.interrupted, self._until = True, float("-inf")
                self.unchecked.add(row.candidate)
                return row
            if exact.sent is None and not exact.why:
                exact = replace(exact, sent=row.sent, unstated=True)
            self._plans[key] = exact
            self._of_part = (time.process_time() - began) / parts
        return self._plans[key]


def _not_timed(question: Question, found: Searched) -> list[str]:
    if question.fixes("strategy", "sync"):
        return []
    chosen = {dict(row.candidate.settings)["precision"] for row in found.fit} - {"fp32"}
    half = "" if question.fixes("precision") else "".join(sorted(chosen))
    return [
        *([f"precision={half} is taken where a strategy computes in it; precision=fp32 keeps float32"] if half else []),
        "not timed, as no closed form gives it: strategy=offload, deepspeed_pipeline, torch_zero_optimizer, schedules "
        "without a flush or with split backward passes; and what must be raced: the other sync modes, compressors",
    ]


def _failures(question: Question) -> list[str]:
    return [] if question.failures is None else [question.failures.in_words()]


def _by_plans(question: Question, sort: Sort | None, top: int, patience: float, why: str, progress: Progress) -> Answer:
    began = time.process_time()
    machine = question.experiment.hardware.machine
    every = alternatives(question, workers_of(question.experiment))
    rows, refused, interrupted = _planned_until(question, every, began + patience * 3, why, progress)
    seconds = time.process_time() - began
    timed = [row for row in rows if row.seconds is not None]
    order: Sort = sort or ("time" if timed else "bytes")
    notes: list[str] = [BY_PROFILE] if timed and takes_profile(question.experiment) else []
    notes += _failures(question)
    if not timed:
        if (
            machine is None or question.experiment.hardware.calibration is not None
        ):  # what is asked for was not measured
            why = next((row.untimed for row in rows if row.untimed), why)
        notes.append(f"times are not predicted: {why}")
        if order in ("time", "dollars"):
            notes.append(f"so that --sort {order} knows no order; --sort bytes and memory do")
    looked = len(rows) + len(refused)
    if interrupted:
        notes.insert(0, f"{CUT_SHORT}, from {looked} of {len(every)} configurations")
    elif looked < len(every):
        notes.append(f"there was no time to plan {len(every) - looked} of {len(every)} configurations")
    wanted = [row for row in rows if meets(question, row)]
    late = beyond(question, timed)
    if left := len(rows) - len(wanted) - len(late):
        notes.append(f"what has no time may miss the limits, and is left out: {left} of the configurations")
    return Answer(
        question,
        order,
        _known_first(roomy_first(wanted, order), order)[:top],
        front(wanted),
        families(wanted, refused, Counter(), order, late),
        looked,
        seconds,
        len(rows),
        None,
        least_over(refused)[:3] if not rows else [],
        nearest(question, rows) if rows and not wanted else [],
        notes,
        interrupted,
        len(every) - looked,
    )


def _planned_until(
    question: Question, every: Sequence[Candidate], until: float, why: str, progress: Progress
) -> tuple[list[Predicted], list[Predicted], bool]:
    """Returns what fits, what is refused, and whether Ctrl-C came. Raises `ConfigError` as soon as it is known that
    times are asked for and none is predicted.
    """
    rows: list[Predicted] = []
    refused: list[Predicted] = []
    for i, candidate in enumerate(every):
        progress(f"{i} of {len(every)} configurations planned; now {candidate.group}")
        try:
            row = planned(question, candidate)
        except KeyboardInterrupt:
            if not rows:
                raise
            return rows, refused, True
        (rows if row.fits else refused).append(row)
        last = time.process_time() > until or i == len(every) - 1
        if not any(row.seconds is not None for row in rows):
            _refuse_untimed(question, rows, why, last)
        if last:
            break
    return rows, refused, False


def _refuse_untimed(question: Question, rows: Sequence[Predicted], why: str, last: bool) -> None:
    """Raises `ConfigError` if `rows`, of which none is timed, are all, or two strategies of them have one reason. It is
    then taken for that of the others: the usual strategy, which most often has a time, is among the first.
    """
    option = "--tokens" if question.tokens is not None else "--mtbf" if question.failures is not None else ""
    reasons = {(row.untimed, dict(row.candidate.settings)["strategy"]) for row in rows}
    shared = any(count > 1 for count in Counter(reason for reason, _ in reasons).values())
    if option and rows and (last or shared):
        raise ConfigError(f"{option}: a step's time is not predicted: {rows[0].untimed or why}")


def _known_first(rows: Sequence[Predicted], order: Sort) -> list[Predicted]:
    """Puts rows of which `order` knows nothing after the others, and among both those whose accuracy only a race can
    tell after those that are known to learn the same. What has no margin of memory stays last.
    """
    return sorted(rows, key=lambda row: (not row.roomy, KEYS[order](row) is None, bool(row.candidate.raced)))
