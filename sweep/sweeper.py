"""Runs a sweep's trials, several at once, each as `paceline train` would, from one process whose fork server is warm.

A slot is a thread: it claims a trial, trains it once for each seed, acknowledges it, and claims the next. Training
itself is in worker processes. Whatever ends this process, the study knows which trials were acknowledged, and the run
directories of the others are found unfinished, and are run again by --resume.
"""

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ..conf.errors import ConfigError
from ..engine.api.preparing import Prepared, prepare
from ..engine.api.session import carry_out
from ..engine.base.errors import InterruptedRunError, WorkerFailedError
from ..engine.base.failures import exit_code_of, lack_of, named, words_of
from ..engine.base.signals import STOP_SIGNALS
from ..engine.config.stored import read_stored
from ..engine.launch.launcher import Stoppable
from ..engine.launch.local_workers import ONE_PRESS, WORKER_FAILED
from ..engine.planning.planned import Plan
from ..tracking.columns import known
from ..tracking.errors import CorruptRunError, StorageError
from ..tracking.job_files import JobEnd, open_job
from ..tracking.mirror import Mirror
from ..tracking.records import End
from ..tracking.run_data import Swept, resuming
from ..tracking.run_directory import SWEEP_NOTE, Record, RunDirectory, write_atomically
from ..tracking.text import did_you_mean
from .directory import GONE
from .results import as_pruned, measures_of
from .room import Room, visible_devices, wants
from .study import Study, SweepTrial, TrialRecord
from .trial_watcher import TrialWatcher

PLANNING = threading.Lock()  # hydra and torch's meta device are asked by one thread at a time
LONGEST = 40  # characters of a run's name before its seed
_NEGATIVE = re.compile(r"^-(?=[\d.])")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")
ENDED = ("completed", "pruned")  # of a run that need not be run again


class Observer(Protocol):
    """Is told what happens, by one thread at a time."""

    def started(self, trial: SweepTrial, run: str) -> None: ...
    def step(self, trial: SweepTrial, step: int, steps: int | None) -> None: ...
    def evaluated(self, trial: SweepTrial, record: Record) -> None: ...
    def ended(self, done: TrialRecord) -> None: ...


class Sweeper:
    """`jobs`: trials at once, as cores or GPUs allow; `max_failures`: no trial begins after so many failed."""

    def __init__(
        self, name: str, study: Study, directory: Path, jobs: int, max_failures: int | None, observer: Observer
    ) -> None:
        self._name, self._study, self._directory = name, study, directory
        self._jobs, self._max_failures, self._observer = jobs, max_failures, observer
        self._room = Room(len(os.sched_getaffinity(0)), visible_devices())
        self._lock = threading.Lock()  # of what follows
        self._clearing = threading.Lock()
        self._running: dict[int, SweepTrial] = {}
        self._crews: dict[int, Stoppable] = {}
        self.notes: dict[str, set[tuple[int, int]]] = {}  # what trials do other than one may think: which trials
        self._failures = 0
        self._fatal: BaseException | None = None
        self._signal, self._stopped_at = 0, 0.0
        self._over = threading.Event()  # what runs is being stopped
        self._enough = threading.Event()  # what runs is the last
        self._waiting = threading.Event()  # and that was said
        self._closing: list[Future[object]] = []
        self._closers = ThreadPoolExecutor(4, "paceline-closer")

    def run(self) -> None:
        """Runs trials until none is left. Raises `StorageError` or `InterruptedRunError`; unfinished trials stay
        unfinished.
        """
        self.take_over()
        slots = [threading.Thread(target=self._slot, name=f"paceline-slot-{i}", daemon=True) for i in range(self._jobs)]
        with self._signals():
            for slot in slots:
                slot.start()
            while any(slot.is_alive() for slot in slots):
                for slot in slots:
                    slot.join(self._study.beat_seconds / len(slots))
                self._beat()
        for closing in self._closing:
            closing.result()
        self._closers.shutdown()
        if self._fatal is not None:
            raise self._fatal
        if self._signal:
            name = signal.Signals(self._signal).name
            raise InterruptedRunError(f"stopped by {name}; go on with: {resuming(self._directory)}", 128 + self._signal)

    # -- what an earlier sweeper left

    def take_over(self) -> None:
        """Has the trials that earlier sweepers left run again."""
        for done in self._study.left_over():
            found = [self._finished(done.trial, seed) for seed in done.trial.seeds]
            ended = [(run.name, summary) for run, summary in filter(None, found)]
            pruned = any(summary["status"] == "pruned" for _, summary in ended)  # then its other seeds are not run
            if done.state == "running" and (all(found) or pruned):  # it was killed just before it was acknowledged
                self._acknowledge(done.trial, ended)
            else:
                self._study.again(done)

    def _finished(self, trial: SweepTrial, seed: int | None) -> tuple[RunDirectory, dict[str, Any]] | None:
        """Returns the run of this point and seed that was completed, of any attempt."""
        for attempt in range(1, trial.attempt + 1):
            run = RunDirectory(self._directory / run_name(replace(trial, attempt=attempt), seed))
            try:
                summary = run.read_summary()
            except CorruptRunError:
                continue
            if summary is not None and summary.get("status") in ENDED:
                return run, summary
        return None

    def _left_job(self, trial: SweepTrial, seed: int | None) -> RunDirectory | None:
        """Returns the run of this point and seed whose job has outlived its sweeper, of any attempt; in an array the
        run that an earlier life of a sweeper has left, which goes on.
        """
        for attempt in range(1, trial.attempt + 1):
            run = self._directory / run_name(replace(trial, attempt=attempt), seed)
            if open_job(run) is not None or (self._study.in_array and _was_stopped(run)):
                return RunDirectory(run)
        return None

    # -- a slot

    def _slot(self) -> None:
        try:
            while not (self._over.is_set() or self._enough.is_set()):
                trial = self._study.next()
                if trial is None and not self._wait_for_others():
                    return
                if trial is None:
                    continue
                with self._lock:
                    self._running[trial.number] = trial
                self._try(trial)
                with self._lock:
                    del self._running[trial.number]
        except BaseException as error:
            with self._lock:
                self._fatal = self._fatal or error
            self._stop_all()

    def _wait_for_others(self) -> bool:
        """Waits for trials that other machines run, or takes over abandoned ones. Returns False if there is none."""
        abandoned = self._study.abandoned()
        for done in abandoned:
            self._study.again(done)
        if abandoned:
            return True
        awaited = self._study.awaited()
        if awaited and not self._waiting.is_set():
            self._waiting.set()
            print(f"waiting for other machines' trials: {awaited}", file=sys.stderr, flush=True)
        return awaited > 0 and not self._over.wait(min(self._study.beat_seconds, 2.0))

    def _try(self, trial: SweepTrial) -> None:
        """Train once for each seed, and acknowledge. Raises what ends the sweep."""
        finished: list[tuple[str, dict[str, Any]]] = []
        for seed in trial.seeds:
            found = self._finished(trial, seed)
            if found is not None:
                finished.append((found[0].name, found[1]))
                if found[1]["status"] == "pruned":
                    break
                continue
            job = self._left_job(trial, seed)
            if job is None:
                self._clear(trial, seed)
            name = run_name(trial, seed) if job is None else job.name
            try:
                summary = self._train(trial, seed, name, job)
            except InterruptedRunError:
                if self._over.is_set():
                    return  # it stays unfinished
                self._failed(trial, seed, finished, "was stopped by a signal from elsewhere", WORKER_FAILED)
                return
            except StorageError:
                raise
            except Exception as error:
                if isinstance(error, WorkerFailedError) and error.cause == StorageError.__name__:
                    raise StorageError(str(error)) from error
                told = error if exit_code_of(error) is not None else lack_of(error)
                said = named(error) if told is None else words_of(told)
                code = None if told is None else exit_code_of(told)
                self._failed(trial, seed, finished, said, code or WORKER_FAILED)
                return
            if summary.get("status") not in ENDED:  # its workers got a signal, and saved and left
                if not self._over.is_set():
                    self._failed(trial, seed, finished, "was stopped by a signal from elsewhere", WORKER_FAILED)
                return
            finished.append((name, summary))
            if summary["status"] == "pruned":
                break
        self._acknowledge(trial, finished)

    def _train(self, trial: SweepTrial, seed: int | None, name: str, job: RunDirectory | None) -> dict[str, Any]:
        """`job`: of a run that a scheduler has already, which is followed."""
        prepared, plan = self._prepare(trial, seed, name if job is None else None)
        if job is not None:
            prepared = replace(prepared, directory=job, stored=read_stored(job) if self._study.in_array else None)
        prepared = replace(prepared, in_allocation=self._study.in_array)
        watcher = TrialWatcher(trial, self._study, self._tell, prepared)

        def opened(directory: RunDirectory) -> list["TrialWatcher"]:
            self._note(directory, trial, prepared.experiment.seed)
            return [watcher]

        def started(local_workers: Stoppable) -> None:
            watcher.local_workers = local_workers
            with self._lock:
                self._crews[trial.number] = local_workers
            if self._over.is_set():
                self._ask_to_stop(local_workers)

        with self._room.taken(*wants(plan)) as devices:
            if devices:
                prepared = replace(prepared, devices=",".join(devices))
            if self._over.is_set():
                raise InterruptedRunError("the sweep is being stopped", 128 + signal.SIGTERM)
            self._tell("started", trial, name)
            try:
                result = carry_out(prepared, plan, self._directory, True, started, opened, close=self._close_beside)
                assert result is not None
                watcher.catch_up(result.path)
                return as_pruned(RunDirectory(result.path)) if watcher.pruned else result.summary
            except InterruptedRunError:
                if not watcher.pruned:
                    raise
                return as_pruned(RunDirectory(self._directory / name))
            finally:
                with self._lock:
                    self._crews.pop(trial.number, None)

    def _prepare(self, trial: SweepTrial, seed: int | None, name: str | None) -> tuple[Prepared, Plan]:
        definition = self._study.definition
        with PLANNING:
            prepared = prepare(
                definition.overrides(trial.chosen, seed),
                definition.config_dir,
                definition.allow_modules,
                name,
                root=self._directory,
            )
            experiment = prepared.experiment
            if experiment.tracking["wandb"]:
                own = {
                    "group": experiment.tracking["group"] or self._name,
                    "job_type": "trial",
                    "tags": [*experiment.tracking["tags"], f"seed-{experiment.seed}"],
                }
                experiment = experiment.model_copy(update={"tracking": {**experiment.tracking, **own}})
            if experiment.tracking.get("mlflow"):
                own = {"group": experiment.tracking.get("group") or self._name}
                experiment = experiment.model_copy(update={"tracking": {**experiment.tracking, **own}})
            prepared = replace(prepared, experiment=experiment)
            plan = prepared.plan()
            for text in plan.notes:
                self.notes.setdefault(text, set()).add(trial.place)
            return prepared, plan

    def _note(self, directory: RunDirectory, trial: SweepTrial, seed: int) -> None:
        """Records in the run's directory which trial of which sweep it is."""
        swept = Swept(self._name, trial.point, seed, dict(trial.chosen))
        write_atomically(directory.path / SWEEP_NOTE, json.dumps(asdict(swept)) + "\n")

    def _clear(self, trial: SweepTrial, seed: int | None) -> None:
        """Take away what an attempt that did not end left: a run that is not finished is no result."""
        for attempt in range(1, trial.attempt + 1):
            left = self._directory / run_name(replace(trial, attempt=attempt), seed)
            self._put_away(left)

    def _put_away(self, run: Path) -> None:
        if not run.exists():
            return
        gone = self._directory / GONE
        try:
            with self._clearing, self._study.turn():
                gone.mkdir(exist_ok=True)
                run.rename(gone / run.name)  # at once: what still writes there by its name, does so no more
                shutil.rmtree(gone, ignore_errors=True)
        except OSError as error:
            raise StorageError(f"cannot take {run} away: {error.strerror}") from error

    # -- how it ended

    def _acknowledge(self, trial: SweepTrial, finished: list[tuple[str, dict[str, Any]]]) -> None:
        metric = self._study.definition.metric
        names, summaries = [name for name, _ in finished], [summary for _, summary in finished]
        if any(summary.get("status") == "pruned" for summary in summaries):
            self._end(trial, "pruned", None, names, summaries)
            return
        every = [measures_of(summary) for summary in summaries]
        if any(metric not in measures for measures in every):
            if "/" not in metric and known(metric) is None:  # some runs have no section/name, every run has the rest
                hint = did_you_mean(metric, every[0], 0.6) or f"there are {', '.join(every[0])}."
                raise ConfigError(
                    f"metric {metric}: the results have no such number; {hint} Begin anew, under another --name"
                )
            there = ", ".join(key for key, value in every[0].items() if value is not None)
            reason = f"metric {metric}: the results have no such number; there are {there}"
            self._end(trial, "failed", None, names, summaries, reason, 2)
            return
        worst = -math.inf if self._study.definition.maximize else math.inf
        told = [measures[metric] for measures in every]
        values = [worst if value is None or not math.isfinite(value) else value for value in told]
        self._end(trial, "complete", sum(values) / len(values), names, summaries)

    def _failed(
        self, trial: SweepTrial, seed: int | None, finished: list[tuple[str, dict[str, Any]]], reason: str, code: int
    ) -> None:
        name = run_name(trial, seed)
        directory = RunDirectory(self._directory / name)
        if not directory.path.exists():  # refused before it was made
            directory = RunDirectory.create(self._directory, name)
        if not (directory.path / SWEEP_NOTE).exists():
            self._note(directory, trial, seed or 0)
        if not any(record.get("kind") == "end" for record in directory.records()):
            directory.add(End("failed", reason))
        directory.close()
        names, summaries = [*(run for run, _ in finished), name], [summary for _, summary in finished]
        self._end(trial, "failed", None, names, summaries, reason, code)

    def _end(
        self,
        trial: SweepTrial,
        state: Any,
        value: float | None,
        names: list[str],
        summaries: list[dict[str, Any]],
        reason: str = "",
        code: int = 0,
    ) -> None:
        if not self._study.acknowledge(trial, state, value, tuple(names), tuple(summaries), reason, code):
            for name in names:
                self._put_away(self._directory / name)
            print(f"trial {trial.point:04d}: another machine has taken it over", file=sys.stderr, flush=True)
            return
        done = TrialRecord(trial, state, value, reason, code, tuple(names), tuple(summaries), None)
        self._tell("ended", done)
        if state == "failed":
            with self._lock:
                self._failures += 1
                if self._max_failures is not None and self._failures >= self._max_failures:
                    self._enough.set()

    # -- beside the slots

    def _tell(self, what: str, *about: Any) -> None:
        with self._lock:
            getattr(self._observer, what)(*about)

    def _close_beside(self, mirror: Mirror) -> None:
        """W&B may take its time while the next trial trains."""
        self._closing.append(self._closers.submit(mirror.close))

    def _beat(self) -> None:
        with self._lock:
            running = list(self._running.values())
        if self._study.shared:
            self._study.beat(running)

    def _stop_all(self) -> None:
        self._over.set()
        with self._lock:
            crews = list(self._crews.values())
        for local_workers in crews:
            self._ask_to_stop(local_workers)
        self._room.close()

    def _ask_to_stop(self, local_workers: Stoppable) -> None:
        local_workers.ask_to_stop(self._signal or signal.SIGTERM)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM stops the trials after their step, the second at once."""

        def stop(number: int, _: FrameType | None) -> None:
            if self._signal and time.monotonic() - self._stopped_at < ONE_PRESS:
                return  # `timeout` and some shells signal the process and then its group
            if self._signal:
                os._exit(128 + number)  # the workers die with the fork server, and that with us
            self._signal, self._stopped_at = number, time.monotonic()
            print("\nstopping; once more to leave at once", file=sys.stderr, flush=True)
            threading.Thread(target=self._stop_all, daemon=True).start()  # a lock may be held by the main thread

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        heard = (*STOP_SIGNALS, signal.SIGUSR1) if self._study.in_array else STOP_SIGNALS  # SLURM's, before its limit
        before = {number: signal.signal(number, stop) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _was_stopped(run: Path) -> bool:
    end = JobEnd.read(run)
    return end is not None and end.exit_code > 128


def run_name(trial: SweepTrial, seed: int | None) -> str:
    """The name of the run's directory within the sweep's: 0003-ssp-0.1-s0, cut to what a name may be."""
    chosen = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.chosen.values())
    words = "-".join(_NOT_IN_NAMES.sub("_", _NEGATIVE.sub("minus", text)).strip("_") for text in chosen)
    of_seed = f"-s{seed}" if seed is not None else ""
    again = f"-again{trial.attempt - 1}" if trial.attempt > 1 else ""
    return f"{f'{trial.point:04d}-{words}'[:LONGEST].rstrip('-_')}{of_seed}{again}"
