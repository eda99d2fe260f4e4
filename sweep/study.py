"""Decides which trial comes next, and keeps acknowledged results: Optuna's study, in a database (compat/optuna.py).

A trial is in one of these states, and moves only by one transaction of the database:

    waiting -> running -> complete | pruned | failed

What is complete, pruned or failed is acknowledged. A trial found running whose sweeper has gone, and a failed one whose
workers were killed, is run again as a new trial that says which one it takes the place of (`again_of`).
"""

import itertools
import re
import threading
import time
import uuid
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from ..compat import optuna as database
from ..tracking.errors import CorruptRunError
from ..tracking.files import UnusableFileError, read_text
from ..tracking.run_directory import write_atomically
from .definition import Definition, EarlyTermination, Paired, Point, Range, Values, from_dict, texts_of
from .quiet import quiet
from .storage import BEATS, is_shared, storage_of, stored, turn_at

SamplerName = Literal["auto", "random", "tpe", "gp"]
GRACE = 60.0  # seconds without a word after which a shared study gives up a running trial
DEFINITION, PLACE, RETRIED = "definition", "place", (4, 5)  # RETRIED: exit codes of what may go well the next time

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass(frozen=True)
class SweepTrial:
    """One point that is to be run, once for each of `seeds` (None: the configuration's own)."""

    number: int  # the study's
    point: int  # which point of the sweep: stays when it is run again
    attempt: int
    chosen: Point
    seeds: tuple[int | None, ...]

    @property
    def place(self) -> tuple[int, int]:
        """Returns the trial's position in the sweep's order."""
        return self.point, self.seeds[0] or 0


@dataclass(frozen=True)
class TrialRecord:
    """A trial as the study knows it."""

    trial: SweepTrial
    state: Literal["waiting", "running", "complete", "pruned", "failed"]
    value: float | None
    reason: str  # why it failed
    exit_code: int
    runs: tuple[str, ...]  # names of its run directories
    summaries: tuple[dict[str, Any], ...]  # of its runs
    seconds: float | None


class Study:
    """One sweep's study, open. `shared`: other machines may work on it, too. `in_array`: so may other sweepers of a
    scheduler's array, in the same directory; the scheduler knows whether they live.

    `grace`: seconds without a word after which the trials of other machines are given up.
    """

    def __init__(
        self, study: optuna.Study, definition: Definition, url: str, place: str, grace: float, in_array: bool
    ) -> None:
        self._study, self.definition, self._url, self._place = study, definition, url, place
        self.shared, self.in_array = is_shared(url), in_array
        self._grace, self.beat_seconds = grace, grace / BEATS
        self._nameless: dict[int, float] = {}  # trials of nobody, and when we first saw them
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of the database."""
        database.close(self._study)

    def turn(self) -> AbstractContextManager[None]:
        """Keeps the other sweepers of this directory out of the context."""
        return turn_at(self._url)

    # -- what comes next

    def next(self) -> SweepTrial | None:
        """Claim a trial; None once there are no more."""
        with self._lock, stored(self._url):
            while True:
                every = self._study.get_trials(deepcopy=False)
                waiting = any(trial.state is TrialState.WAITING for trial in every)
                enough = self.definition.method == "grid" or len(self._current(every)) >= (self.definition.trials or 0)
                if enough and not waiting:
                    return None
                asked = _asked(self._study, self.definition)
                self._beat(database.id_of(asked))
                if self._is_wanted(asked):
                    asked.set_user_attr(PLACE, self._place)
                    return _trial(self._frozen(asked.number), self.definition)
                self._study.tell(asked, state=TrialState.FAIL)

    def _is_wanted(self, asked: optuna.Trial) -> bool:
        """Returns whether the trial is to run. It is not if another machine took or queued the same one in this
        moment.
        """
        if "point" in asked.user_attrs:
            return asked.number not in _doubles(self._study.get_trials(deepcopy=False))
        if self.definition.method == "grid":
            return False
        asked.set_user_attr("seeds", list(self.definition.each_seed()))
        asked.set_user_attr("point", asked.number)
        earlier = [
            trial for trial in self._current(self._study.get_trials(deepcopy=False)) if trial.number < asked.number
        ]
        return len(earlier) < (self.definition.trials or 0)

    def beat(self, trials: list[SweepTrial]) -> None:
        """Tell a shared study that these still run."""
        for trial in trials:
            with stored(self._url):
                self._beat(database.id_of(self._frozen(trial.number)))

    def _beat(self, trial_id: int) -> None:
        if self.shared:
            database.beat(self._study, trial_id)

    def _frozen(self, number: int) -> FrozenTrial:
        return database.trial_numbered(self._study, number)

    # -- what has become of it

    def report(self, trial: SweepTrial, step: int, value: float) -> bool:
        """Tell how a trial is doing after `step` evaluations; True: it is to be given up."""
        with stored(self._url):
            running = database.running(self._study, trial.number)
            running.report(value, step)
            return running.should_prune()

    def acknowledge(
        self,
        trial: SweepTrial,
        state: Literal["complete", "pruned", "failed"],
        value: float | None,
        runs: tuple[str, ...],
        summaries: tuple[dict[str, Any], ...],
        reason: str = "",
        exit_code: int = 0,
    ) -> bool:
        """Once this returns, the trial is never lost. `value`: None if pruned or failed.

        False: too late, another machine has taken it over.
        """
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        facts = {"runs": list(runs), "summaries": list(summaries), "reason": reason, "exit_code": exit_code}
        with self._lock, stored(self._url):
            trial_id = database.id_of(self._frozen(trial.number))
            try:
                for key, fact in facts.items():
                    database.set_user_attribute(self._study, trial_id, key, fact)
                self._study.tell(trial.number, value if state == "complete" else None, state=states[state])
            except (UpdateFinishedTrialError, ValueError):
                if not self._frozen(trial.number).state.is_finished():
                    raise
                return False
        return True

    def trials(self) -> list[TrialRecord]:
        """Every point's last attempt, in the sweep's order."""
        with self._lock, stored(self._url):
            every = self._current(self._study.get_trials(deepcopy=False))
        return sorted((_done(trial, self.definition) for trial in every), key=lambda done: done.trial.place)

    # -- going on

    def extend(self, trials: int) -> None:
        """Sets how many trials there may be from now on."""
        with self._lock, stored(self._url):
            self.definition = replace(self.definition, trials=trials)
            self._study.set_user_attr(DEFINITION, self.definition.as_dict())
        _enqueue(self._study, self.definition, self._url)

    def left_over(self) -> list[TrialRecord]:
        """Trials that are to be run again: running ones whose sweeper has gone, and those whose workers were killed.

        Call it while no other sweeper of this place is at work.
        """
        with self._lock, stored(self._url):
            every = self._current(self._study.get_trials(deepcopy=False))
        mine = [trial for trial in every if self._is_mine(trial)]
        found = [
            trial
            for trial in mine
            if trial.state is TrialState.RUNNING
            or (trial.state is TrialState.FAIL and trial.user_attrs.get("exit_code") in RETRIED)
        ]
        return [*(_done(trial, self.definition) for trial in found), *self.abandoned()]

    def abandoned(self) -> list[TrialRecord]:
        """Running trials of other machines that have not been heard of for too long."""
        if not self.shared:
            return []
        with self._lock, stored(self._url):
            every = self._current(self._study.get_trials(deepcopy=False))
            silent = database.silent(self._study)
        theirs = [trial for trial in every if trial.state is TrialState.RUNNING and not self._is_mine(trial)]
        return [
            _done(trial, self.definition)
            for trial in theirs
            if database.id_of(trial) in silent or self._is_nobodys(trial)
        ]

    def awaited(self) -> int:
        """Returns the number of trials that other machines run."""
        if not self.shared:
            return 0
        with self._lock, stored(self._url):
            every = self._current(self._study.get_trials(deepcopy=False))
        return sum(trial.state is TrialState.RUNNING and not self._is_mine(trial) for trial in every)

    def _is_mine(self, trial: FrozenTrial) -> bool:
        return not (self.shared or self.in_array) or trial.user_attrs.get(PLACE) == self._place

    def _is_nobodys(self, trial: FrozenTrial) -> bool:
        """Returns whether the machine that claimed it has not said so within the time allowed."""
        if PLACE in trial.user_attrs:
            return False
        return time.monotonic() - self._nameless.setdefault(trial.number, time.monotonic()) > self._grace

    def _current(self, every: list[FrozenTrial]) -> list[FrozenTrial]:
        """Returns the trials without those that a later one replaced, doubles, and surplus ones that were never run."""
        left_out = {trial.user_attrs.get("again_of") for trial in every} | _doubles(every)
        return [
            trial
            for trial in every
            if trial.number not in left_out
            and not (trial.state is TrialState.FAIL and "exit_code" not in trial.user_attrs)
            and not (self.definition.method == "grid" and "point" not in trial.user_attrs)
        ]

    def again(self, done: TrialRecord) -> None:
        """Have a trial run again, as a new one."""
        with self._lock, stored(self._url):
            trial = done.trial
            known = any(t.user_attrs.get("again_of") == trial.number for t in self._study.get_trials(deepcopy=False))
            if not known:
                attributes = {
                    "point": trial.point,
                    "attempt": trial.attempt + 1,
                    "again_of": trial.number,
                    "seeds": list(trial.seeds),
                }
                self._study.enqueue_trial(dict(trial.chosen), user_attrs=attributes)
            if done.state == "running":
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)  # by another machine


# -- opening


def create(
    name: str, url: str, definition: Definition, sampler: SamplerName, place: str, grace: float = GRACE
) -> Study | None:
    """A new study with its points, if they are known beforehand. None when there is one of this name already."""
    storage = storage_of(url, grace)
    try:
        with stored(url):
            study = optuna.create_study(
                storage=storage, study_name=name, direction="maximize" if definition.maximize else "minimize"
            )
            study.set_user_attr(DEFINITION, definition.as_dict())
    except optuna.exceptions.DuplicatedStudyError:
        storage.engine.dispose()
        return None
    opened = _opened(study, definition, sampler, url, place, grace, in_array=False)
    _enqueue(study, definition, url)
    return opened


def reopen(
    name: str,
    url: str,
    wanted: Definition | None,
    sampler: SamplerName,
    place: str,
    grace: float = GRACE,
    in_array: bool = False,
) -> Study | None:
    """The study of this name; None: there is none. `wanted`: what is expected; it may not have been stored yet."""
    storage = storage_of(url, grace)
    try:
        with stored(url):
            study = optuna.load_study(study_name=name, storage=storage)
            kept = study.user_attrs.get(DEFINITION)
            if kept is None and wanted is not None:  # stopped in the moment between
                kept = wanted.as_dict()
                study.set_user_attr(DEFINITION, kept)
    except KeyError:
        storage.engine.dispose()
        return None
    if kept is None:
        storage.engine.dispose()
        return None
    definition = from_dict(kept)
    _enqueue(study, definition, url)  # what a sweeper that was killed here had not yet written
    return _opened(study, definition, sampler, url, place, grace, in_array)


def place_of(directory: Path) -> str:
    """Returns the id of the machine that runs trials here, for a study that several machines share; kept in the sweep's
    directory.
    """
    file = directory / "place"
    try:
        place = read_text(file)
    except FileNotFoundError:
        place = uuid.uuid4().hex
        write_atomically(file, place)
    except OSError as error:
        raise CorruptRunError(f"{file} cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise CorruptRunError(f"{file} {error}") from None
    if re.fullmatch("[0-9a-f]{32}", place) is None:
        raise CorruptRunError(f"{file} is not as it was written; if no other machine shares the sweep, remove it")
    return place


def _opened(
    study: optuna.Study,
    definition: Definition,
    sampler: SamplerName,
    url: str,
    place: str,
    grace: float,
    in_array: bool,
) -> Study:
    with stored(url):
        known = len(study.get_trials(deepcopy=False))
    several = in_array or is_shared(url)
    study.sampler = _sampler(definition, sampler, zlib.crc32(place.encode()) + known if several else known)
    study.pruner = _pruner(definition.early)
    return Study(study, definition, url, place, grace, in_array)


def _pruner(early: EarlyTermination | None) -> optuna.pruners.BasePruner:
    if early is None:
        return optuna.pruners.NopPruner()
    if early.max_iter is not None:
        return optuna.pruners.HyperbandPruner(early.min_iter, early.max_iter, early.eta)
    return optuna.pruners.SuccessiveHalvingPruner(early.min_iter, early.eta, min_early_stopping_rate=0)


def _sampler(definition: Definition, name: SamplerName, seed: int) -> optuna.samplers.BaseSampler:
    """`seed`: another one each time that a study is opened, and on each machine, or it would draw the same again."""
    if name == "auto" and definition.method == "bayes":
        name = "tpe"
    with quiet():  # optuna calls some of it experimental
        match name:
            case "tpe":
                return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            case "gp":
                return optuna.samplers.GPSampler(seed=seed)
        return optuna.samplers.RandomSampler(seed=seed)  # of a grid every point is there beforehand


def sample(definition: Definition, count: int) -> list[Point]:
    """Points drawn at random."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [definition.settled(_asked(study, definition).params) for _ in range(count)]


def _asked(study: optuna.Study, definition: Definition) -> optuna.Trial:
    """A trial with a value for each parameter that its point has."""
    conditional = dict(definition.when)
    spaces = {key: space for key, space in definition.parameters.items() if not isinstance(space, Paired)}
    asked = study.ask({key: _distribution(space) for key, space in spaces.items() if key not in conditional})
    chosen = dict(asked.params)
    for key, space in spaces.items():
        if key in conditional and definition.is_active(key, definition.settled(chosen)):
            chosen[key] = _suggested(asked, key, space)
    return asked


def _suggested(trial: optuna.Trial, key: str, space: Values | Range) -> str | float:
    match _distribution(space):
        case CategoricalDistribution():
            return str(trial.suggest_categorical(key, texts_of(space)))
        case IntDistribution() as ints:
            return trial.suggest_int(key, ints.low, ints.high, step=ints.step, log=ints.log)
        case FloatDistribution() as floats:
            return trial.suggest_float(key, floats.low, floats.high, step=floats.step, log=floats.log)
    raise AssertionError(key)


def _enqueue(study: optuna.Study, definition: Definition, url: str) -> None:
    """All points of a grid that the study has not got yet, for each seed."""
    if definition.method != "grid":
        return
    seeds = definition.each_seed()
    with stored(url):
        every = study.get_trials(deepcopy=False)
        there = {(trial.user_attrs.get("point"), *trial.user_attrs.get("seeds", ())) for trial in every}
        missing = []
        points = itertools.islice(definition.points(), definition.trials)
        for (i, point), seed in itertools.product(enumerate(points), seeds):
            if (i, seed) not in there:
                waiting = optuna.trial.create_trial(
                    state=TrialState.WAITING,
                    system_attrs={database.POINT: point},
                    user_attrs={"point": i, "seeds": [seed]},
                )
                missing.append(waiting)
        if missing:
            study.add_trials(missing)


# -- trials


def _distribution(space: Values | Range) -> BaseDistribution:
    if isinstance(space, Values):
        return CategoricalDistribution(space.texts)
    if space.integer:
        return IntDistribution(int(space.low), int(space.last()), log=space.log, step=int(space.step or 1))
    return FloatDistribution(space.low, space.last(), log=space.log, step=space.step)


def _doubles(every: list[FrozenTrial]) -> set[int]:
    """Trials that two machines queued at the same moment, but for the first of them."""
    first: dict[Any, int] = {}
    for trial in every:
        number = first.setdefault(_identity(trial), trial.number)
        first[_identity(trial)] = min(number, trial.number)
    return {trial.number for trial in every if trial.number != first[_identity(trial)]}


def _identity(trial: FrozenTrial) -> Any:
    known = trial.user_attrs
    return (known["point"], *known.get("seeds", ()), known.get("attempt", 1)) if "point" in known else trial.number


def _trial(frozen: FrozenTrial, definition: Definition) -> SweepTrial:
    attributes = frozen.user_attrs
    chosen = frozen.params or frozen.system_attrs.get("fixed_params", {})
    seeds = attributes.get("seeds") or definition.each_seed()
    return SweepTrial(
        frozen.number,
        attributes.get("point", frozen.number),
        attributes.get("attempt", 1),
        definition.settled(chosen),
        tuple(seeds),
    )


def _done(frozen: FrozenTrial, definition: Definition) -> TrialRecord:
    attributes = frozen.user_attrs
    states: dict[TrialState, Any] = {
        TrialState.WAITING: "waiting",
        TrialState.RUNNING: "running",
        TrialState.COMPLETE: "complete",
        TrialState.PRUNED: "pruned",
        TrialState.FAIL: "failed",
    }
    return TrialRecord(
        _trial(frozen, definition),
        states[frozen.state],
        frozen.value if frozen.state is TrialState.COMPLETE else None,
        attributes.get("reason", ""),
        attributes.get("exit_code", 0),
        tuple(attributes.get("runs", ())),
        tuple(attributes.get("summaries", ())),
        frozen.duration.total_seconds() if frozen.duration else None,
    )
