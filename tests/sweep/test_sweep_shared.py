"""One sweep on two machines, here two directories, by a PostgreSQL server of our own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from needs import require
from postgres_server import PASSWORD, Server
from process_table import MARK, until
from short_runs import HERE, START, clean_environment
from sweeps_here import SMALL, Noted, sweep

from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import MachineError
from paceline.sweep.define import define
from paceline.sweep.definition import Definition, Values
from paceline.sweep.quiet import quiet
from paceline.sweep.study import TrialRecord, _asked, create, reopen
from paceline.tracking.errors import StorageError

pytestmark = [pytest.mark.dist, pytest.mark.fault]

POINTS = "optimizer.lr=0.3,0.2,0.1,0.05,0.02,0.01"
SLOWLY = ("strategy=sabotage", "strategy.pause=0.05", "steps=20")


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    require("postgres")
    server = Server()
    yield server
    server.close()


@pytest.fixture
def url(started: Server) -> str:
    return started.new_database()


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())


def machine(root: Path, url: str, *words: str, moment: str = "-", nth: int = 1) -> "subprocess.Popen[str]":
    """A sweeper that is a process of its own; see fatal_moment.py."""
    root.mkdir(parents=True)
    options = ["--name", "swept", "--resume", "--storage", url, "--config-dir", str(HERE / "conf")]
    command = [
        sys.executable,
        str(Path(__file__).with_name("fatal_moment.py")),
        moment,
        str(nth),
        "sweep",
        *SMALL,
        *words,
        *options,
    ]
    with (root / "stdout").open("wb") as output, (root / "stderr").open("wb") as errors:
        return subprocess.Popen(
            [*command, "--allow-module", "saboteur"],
            cwd=root,
            env={**clean_environment(root), MARK: root.name},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            text=True,
        )


def rates(done: list[TrialRecord]) -> list[object]:
    return [trial.trial.chosen["optimizer.lr"] for trial in done]


def test_two_machines_that_begin_together_run_each_point_once_and_both_know_all_results(
    tmp_path: Path, url: str, fork_server: None
) -> None:
    watches = [Noted(), Noted()]
    with ThreadPoolExecutor(2) as pool:
        doing = [
            pool.submit(sweep, tmp_path / f"machine-{i}", POINTS, resume=True, storage=url, observer=watches[i])
            for i in range(2)
        ]
        first, second = (each.result() for each in doing)
    began = [run for watch in watches for run in watch.began]
    assert sorted(run[:4] for run in began) == [f"{point:04d}" for point in range(6)]
    assert first == second
    assert [done.state for done in first] == ["complete"] * 6 and len(set(rates(first))) == 6
    from paceline.cli.sweep import runs_of

    for i in range(2):
        there = runs_of("swept", tmp_path / f"machine-{i}" / "swept", first)
        assert [run.name[:4] for run in there] == [f"{point:04d}" for point in range(6)]
        assert all(run.summary["accuracy"] is not None for run in there)


def test_what_a_killed_machine_had_claimed_another_takes_over(tmp_path: Path, url: str, fork_server: None) -> None:
    killed = machine(tmp_path / "killed", url, POINTS, moment="first step", nth=6)
    assert killed.wait(START * 3) == -signal.SIGKILL, (tmp_path / "killed" / "stderr").read_text()
    watch = Noted()
    done = sweep(tmp_path / "other", POINTS, resume=True, storage=url, grace=1.5, observer=watch)
    assert [trial.state for trial in done] == ["complete"] * 6
    assert len(set(rates(done))) == 6
    there = (tmp_path / "killed" / "stderr").read_text().count(": accuracy")
    assert len(watch.began) == 6 - there
    assert [trial.trial.attempt for trial in done].count(2) == 1
    assert with_password(tmp_path) == []


def test_machines_that_search_begin_at_other_points(url: str) -> None:
    search = define(["optimizer.lr=interval(0.01,0.1)"], method="random", trials=4)
    first = create("swept", url, search, "auto", "one")
    second = reopen("swept", url, search, "auto", "two")  # before the first has claimed a trial
    assert first is not None and second is not None
    claimed = [study.next() for study in (first, second, first, second)]
    first.close()
    second.close()
    assert len({trial.chosen["optimizer.lr"] for trial in claimed if trial is not None}) == 4


def test_a_server_whose_host_lost_its_power_is_not_waited_for_without_end(url: str) -> None:
    definition = Definition("grid", {"optimizer.lr": Values(("0.1",))})
    study = create("swept", url, definition, "auto", "mine", 60.0)
    assert study is not None
    engine = study._study._storage._backend.engine  # type: ignore[attr-defined]
    with (
        engine.connect() as connection,
        socket.socket(fileno=os.dup(connection.connection.driver_connection.fileno())) as used,
    ):
        options = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT
        told = [used.getsockopt(socket.IPPROTO_TCP, each) for each in options]
    study.close()
    assert told == [10, 5, 4, 30_000]


def with_password(root: Path) -> list[Path]:
    """The files, standard output and error among them, in which it stands."""
    return [path for path in root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_frozen_machine_that_wakes_late_neither_doubles_nor_changes_a_result(
    tmp_path: Path, url: str, fork_server: None
) -> None:
    frozen = machine(tmp_path / "frozen", url, POINTS, *SLOWLY)
    stderr = tmp_path / "frozen" / "stderr"
    try:
        until(lambda: stderr.read_text().count(": accuracy") == 1, START * 3, "its first result")
        until(lambda: stderr.read_text().rstrip().count("optimizer.lr") >= 3, START, "its second trial")
        os.kill(frozen.pid, signal.SIGSTOP)
        done = sweep(tmp_path / "other", POINTS, *SLOWLY, resume=True, storage=url, grace=1.5)
        assert [trial.state for trial in done] == ["complete"] * 6
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    assert frozen.wait(START * 3) == 0, stderr.read_text()
    assert "another machine has taken it over" in stderr.read_text()
    assert sweep(tmp_path / "other", POINTS, *SLOWLY, resume=True, storage=url) == done
    table = (tmp_path / "frozen" / "stdout").read_text()
    assert len(table.splitlines()) == 7


def test_a_machine_that_was_killed_before_it_said_who_it_is_is_given_up_too(url: str) -> None:
    definition = Definition("grid", {"optimizer.lr": Values(("0.1",))})
    gone = create("swept", url, definition, "auto", "gone", 0.2)
    assert gone is not None
    with quiet():  # Optuna's, about heartbeats
        _asked(gone._study, gone.definition)
    other = reopen("swept", url, definition, "auto", "other", 0.2)
    assert other is not None and other.next() is None and other.awaited() == 1
    (left,) = until(other.abandoned, 5.0, "it is given up")
    other.again(left)
    assert other.next() is not None
    gone.close()
    other.close()


def test_of_a_search_two_machines_make_no_more_trials_than_asked_for(url: str) -> None:
    definition = Definition("random", {"optimizer.lr": Values(("0.1", "0.2", "0.3"))}, trials=5)
    studies = [study for make in (create, reopen) if (study := make("swept", url, definition, "auto", make.__name__))]
    assert len(studies) == 2
    with ThreadPoolExecutor(2) as pool:
        claimed = list(pool.map(lambda study: [study.next() for _ in range(5)], studies))
    assert sum(trial is not None for each in claimed for trial in each) == 5
    for study in studies:
        study.close()


@pytest.mark.slow
def test_a_password_is_never_shown(tmp_path: Path, url: str) -> None:
    ended = machine(tmp_path / "machine", url, "optimizer.lr=0.1,-1")
    assert ended.wait(START * 3) == 4
    files = [path for path in (tmp_path / "machine").rglob("*") if path.is_file()]
    assert any(path.name == "config.yaml" for path in files) and any(path.name == "report.html" for path in files)
    assert with_password(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://me:{}@127.0.0.1:9/sweeps", MachineError),
        ("postgresql://me:p@{}@127.0.0.1:9/sweeps", ConfigError),
        ("postgresql://127.0.0.1:9/sweeps?user=me&password={}", MachineError),
        ("nosuch://me:{}@127.0.0.1/sweeps", ConfigError),
        ("me:{}@127.0.0.1", ConfigError),
        ("postgresql://me:{}@127.0.0.1:port/sweeps", ConfigError),
    ],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(
    url: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        sweep(tmp_path, POINTS, storage=url.format(PASSWORD), resume=True)
    assert "--storage" in str(caught.value) and PASSWORD not in str(caught.value)


def test_a_wrong_password_is_said_without_it(url: str, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="password authentication failed") as caught:
        sweep(tmp_path, POINTS, storage=url.replace(PASSWORD, "wrong-horse"), resume=True)
    assert "wrong-horse" not in str(caught.value)


def test_a_server_that_goes_away_ends_the_sweep_with_3_and_when_it_is_back_the_sweep_goes_on(
    tmp_path: Path, started: Server, url: str, fork_server: None
) -> None:
    watch = Noted(lambda run: started.stop() if run.startswith("0002") else None)
    try:
        with pytest.raises(
            StorageError, match=r"the sweep's study: .*the trials that were recorded before are kept"
        ) as caught:
            sweep(tmp_path, POINTS, storage=url, resume=True, observer=watch)
    finally:
        started.start()
    assert caught.value.exit_code == 3
    assert [done.trial.point for done in watch.ends] == [0, 1]
    resumed = Noted()
    done = sweep(tmp_path, POINTS, storage=url, resume=True, observer=resumed)
    assert [trial.state for trial in done] == ["complete"] * 6
    assert {run[:4] for run in resumed.began} <= {"0002", "0003", "0004", "0005"}


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_server_that_says_nothing_ends_the_wait(started: Server, url: str, is_stopped: bool, monkeypatch) -> None:
    """It is stopped, but its host answers for it; or somebody else holds a lock and does not let go of it."""
    study = create("swept", url, define([POINTS]), "auto", "here")
    assert study is not None and len(study.trials()) == 6
    silent = started.stopped() if is_stopped else started.locked(url, "trials")
    with monkeypatch.context() as briefly, silent:
        briefly.setattr("paceline.compat.psycopg.SILENCE", 1.0)
        with pytest.raises(StorageError, match=r"said nothing for 1 s|connection timeout expired"):
            study.trials()
    assert len(study.trials()) == 6  # by another connection
    study.close()
