"""A signal while workers are being started is never lost, and no worker is left behind."""

import multiprocessing
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from short_runs import Train

from paceline.engine.api import session
from paceline.engine.base.errors import DivergedError, InterruptedRunError
from paceline.engine.launch import launching
from paceline.engine.launch.local_workers import LocalWorkers
from paceline.tracking.sources import every

pytestmark = pytest.mark.dist


class Dying:
    """A signal comes in its destructor."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


class TerminatedError(Exception):
    pass


def terminate(*_: object) -> None:
    raise TerminatedError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_python_drops_ends_the_run_all_the_same(
    train: Train, root: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    dropped: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: dropped.append(what.exc_type))
    start = LocalWorkers.start

    def start_and_lose_a_signal(local_workers: LocalWorkers, *args: Any) -> None:
        start(local_workers, *args)
        Dying(number)

    monkeypatch.setattr(LocalWorkers, "start", start_and_lose_a_signal)
    raising = signal.default_int_handler if number == signal.SIGINT else terminate
    before = signal.signal(number, raising)
    try:
        with pytest.raises(InterruptedRunError, match=f"stopped by {number.name}; nothing was saved yet") as stopped:
            train()
        assert signal.getsignal(number) is raising
    finally:
        signal.signal(number, before)
    assert dropped == [KeyboardInterrupt if number == signal.SIGINT else TerminatedError]
    assert stopped.value.exit_code == 128 + number
    (run,) = every(root)
    assert run.summary["status"] == "interrupted" and run.summary["sync"] == "bsp"


def test_a_signal_just_after_a_worker_was_started_leaves_none(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is left over keeps the launcher from ending: workers block SIGTERM until they have met."""
    start = ForkServerProcess.start

    def start_and_stop(process: ForkServerProcess) -> None:
        start(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(ForkServerProcess, "start", start_and_stop)
    with pytest.raises(KeyboardInterrupt):
        train()
    assert not [each for each in multiprocessing.active_children() if each.name.startswith("paceline-worker")]


def test_a_run_is_not_completed_where_a_worker_failed_that_the_others_went_on_without(
    train: Train, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may be through before the launcher has seen the failure and stopped them."""
    launch = launching.launch

    def launch_and_fail(*args: Any) -> None:
        launch(*args)
        raise DivergedError("worker 1 failed: its loss is NaN")

    monkeypatch.setattr(launching, "launch", launch_and_fail)
    with pytest.raises(DivergedError):
        train("hardware=virtual", "steps=2")
    (run,) = every(root)
    assert (run.summary["status"], run.summary["reason"]) == ("diverged", "worker 1 failed: its loss is NaN")
    assert run.summary["steps"] == 2 and run.records[-1]["status"] == "diverged"


@pytest.mark.parametrize("stopping", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", [(LocalWorkers, "start"), (session, "environment")])
def test_a_run_that_was_stopped_before_its_workers_were_there_is_interrupted(
    train: Train, root: Path, monkeypatch: pytest.MonkeyPatch, stopping: type[BaseException], where: tuple[object, str]
) -> None:
    """The command line raises SystemExit for SIGTERM."""

    def stop(*_: object) -> None:
        raise stopping

    monkeypatch.setattr(*where, stop)
    with pytest.raises(stopping):
        train()
    (run,) = every(root)
    assert run.summary["status"] == "interrupted"
