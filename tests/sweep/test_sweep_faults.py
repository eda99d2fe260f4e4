"""Sweeps whose processes are killed, whose trials fail, whose disk is full: nothing is lost or run twice."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed_sweeps import OPENING, RESUMING, SCENES, SHOTS, SMALL, TRIALS, Cell, Life, Sweep, shoot
from needs import require
from process_table import until, workers_of
from short_runs import START, clean_environment
from sweeps_here import Noted, sweep

from paceline.engine.launch.local_workers import ONE_PRESS
from paceline.sweep.definition import Definition, Values
from paceline.sweep.study import SweepTrial, _asked, create, reopen
from paceline.tracking.run_directory import RunDirectory

pytestmark = [pytest.mark.dist, pytest.mark.fault]

SLOW = ("strategy=sabotage", "strategy.pause=0.03", "steps=60")  # a run that can be caught at work


@pytest.fixture
def cell() -> Iterator[Cell]:
    made = Cell()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())


# -- killed


def test_a_sweeper_killed_at_three_moments_ends_with_the_table_of_one_that_was_not(cell: Cell, tmp_path: Path) -> None:
    whole = Sweep(SCENES["grid"], tmp_path / "whole", cell)
    undisturbed = whole.start()
    undisturbed.one_worker()
    if cell.prefix(tmp_path):
        assert any(line.startswith("listening") for line in cell.left()), "what is looked for can be seen"
    assert undisturbed.wait() == 0
    whole.check_whole()
    killed = Sweep(SCENES["grid"], tmp_path / "killed", cell)
    for moment, nth in (("before trial.json", 2), ("queued again, not given up", 1), ("half of its facts", 1)):
        killed.live(moment, nth)
        assert killed.hits[-1:] == [moment], "the moment came"
    assert killed.live().process.returncode == 0
    killed.check_whole(whole)
    assert len(killed.kept) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scene", SCENES)
def test_a_sweep_killed_again_and_again_loses_and_doubles_nothing(scene: str, cell: Cell, tmp_path: Path) -> None:
    chance = random.Random(scene)
    whole = Sweep(SCENES[scene], tmp_path / "whole", cell)
    whole.live()
    killed = Sweep(SCENES[scene], tmp_path / "killed", cell)
    moments = [chance.choice([*OPENING, *TRIALS]), *chance.sample([*TRIALS, *RESUMING], 5)]
    for moment in moments:
        killed.live(moment)
    assert killed.live().process.returncode == 0
    assert len(killed.hits) >= 2
    killed.check_whole(whole if SCENES[scene].grid else None)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", SHOTS)
def test_the_rest_of_a_sweep_goes_on_when_another_of_its_processes_is_killed(
    who: str, cell: Cell, tmp_path: Path
) -> None:
    scene = SCENES["wandb" if who == "the logger" else "grid"]
    killed = Sweep(scene, tmp_path / "killed", cell)
    first = shoot(killed, who, random.Random(0))
    assert killed.hits == [who]
    assert first.process.returncode in (0, 4)
    states = [trial["state"] for trial in killed.trials()]
    assert states.count("COMPLETE") >= scene.count - 1 and len(states) == scene.count
    assert killed.live().process.returncode == 0
    killed.check_whole()


def test_a_search_killed_before_its_trial_knew_its_seeds_runs_it_with_all_of_them(tmp_path: Path) -> None:
    """Between Optuna's claim and what is then written about it."""
    definition = Definition("random", {"optimizer.lr": Values(("0.1", "0.2"))}, trials=2, seeds=3)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = create("swept", url, definition, "auto", "here")
    assert study is not None
    _asked(study._study, study.definition)
    again = reopen("swept", url, definition, "auto", "here")
    assert again is not None
    (left,) = again.left_over()
    again.again(left)
    trial = again.next()
    assert trial is not None and (trial.seeds, trial.attempt) == ((0, 1, 2), 2)


def test_a_grids_claim_beyond_its_last_point_is_no_point(tmp_path: Path) -> None:
    """What a sweeper leaves that was killed when another had just taken the last one."""
    definition = Definition("grid", {"optimizer.lr": Values(("0.1",))})
    study = create("swept", f"sqlite:///{tmp_path / 'study.db'}", definition, "auto", "here")
    assert study is not None
    assert study.next() is not None
    _asked(study._study, study.definition)
    assert [done.trial.point for done in study.left_over()] == [0]
    assert study.next() is None


def test_of_a_trial_that_was_queued_twice_one_is_run(tmp_path: Path) -> None:
    """Two machines that open a study, or take over a trial, at the same moment."""
    definition = Definition("grid", {"optimizer.lr": Values(("0.1", "0.2"))})
    study = create("swept", f"sqlite:///{tmp_path / 'study.db'}", definition, "auto", "here")
    assert study is not None
    for point, rate in enumerate(("0.1", "0.2")):
        study._study.enqueue_trial({"optimizer.lr": rate}, user_attrs={"point": point, "seeds": [None]})
    assert [claimed(study.next()), claimed(study.next()), study.next()] == [0, 1, None]
    assert len(study.trials()) == 2


def claimed(trial: SweepTrial | None) -> int | None:
    return trial and trial.point


def test_a_trial_that_was_taken_over_is_not_acknowledged_by_who_had_it(tmp_path: Path) -> None:
    definition = Definition("grid", {"optimizer.lr": Values(("0.1",))})
    study = create("swept", f"sqlite:///{tmp_path / 'study.db'}", definition, "auto", "here")
    assert study is not None
    first = study.next()
    assert first is not None
    for left in study.left_over():
        study.again(left)
    assert not study.acknowledge(first, "complete", 0.5, ("0000",), ({"name": "0000"},))
    second = study.next()
    assert second is not None and study.acknowledge(second, "complete", 0.75, ("0000-again1",), ())
    (done,) = study.trials()
    assert (done.value, done.runs) == (0.75, ("0000-again1",))


# -- interrupted


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_ctrl_c_of_trials_side_by_side_resume_runs_what_is_missing(cell: Cell, tmp_path: Path) -> None:
    """Pressed once, twice, and once more as the sweep goes on."""
    scene, long = SCENES["jobs"], ["epochs=400"]
    whole, stopped = (Sweep(scene, tmp_path / name, cell) for name in ("whole", "stopped"))
    assert whole.start(extra=long).wait() == 0
    for presses in (1, 2, 1):
        life = stopped.start(extra=long)
        running = both_at_work(life)
        for press in range(presses):
            time.sleep(press * 2 * ONE_PRESS)  # sooner it would be the same press
            os.killpg(life.process.pid, signal.SIGINT)
        ends = {128 + signal.SIGINT, *([-signal.SIGINT] if presses == 2 else [])}  # -: Python was leaving already
        assert life.wait() in ends, life.said()
        if presses == 1:
            assert {run.records()[-1]["status"] for run in running} <= {"interrupted", "completed"}
            assert life.said().splitlines()[-1].endswith("go on with: paceline sweep --resume --name swept")
    assert stopped.start(extra=long).wait() == 0
    stopped.check_whole(whole)


def both_at_work(life: Life) -> list[RunDirectory]:
    def found() -> list[RunDirectory]:
        return [RunDirectory(run) for run in life.begun() if trains(run)]

    return life.until(lambda: len(both := found()) == 2 and both, "both train")


def trains(run: Path) -> bool:
    kinds = [record["kind"] for record in RunDirectory(run).records()]
    return "step" in kinds and "end" not in kinds


# -- failing trials


def test_refused_diverged_and_killed_trials_are_recorded_and_only_the_killed_one_runs_again(
    tmp_path: Path, fork_server: None
) -> None:
    points = "optimizer.lr=0.1,1e30,-1,0.05"
    watch = Noted(lambda run: harm_soon(tmp_path / "swept" / run, signal.SIGKILL) if run.startswith("0003") else None)
    done = sweep(tmp_path, points, *SLOW, observer=watch)
    assert [(trial.state, trial.exit_code) for trial in done] == [
        ("complete", 0),
        ("failed", 6),
        ("failed", 2),
        ("failed", 4),
    ]
    assert "optimizer.lr" in done[2].reason or "learning rate" in done[2].reason, done[2].reason
    assert "was killed by SIGKILL" in done[3].reason
    ends = [RunDirectory(tmp_path / "swept" / trial.runs[-1]).records()[-1] for trial in done]
    assert [end["status"] for end in ends] == ["completed", "diverged", "failed", "failed"]
    assert [end.get("reason") for end in ends[1:]] == [trial.reason for trial in done[1:]]

    resumed = Noted()
    done = sweep(tmp_path, points, *SLOW, observer=resumed, resume=True)
    assert [trial.state for trial in done] == ["complete", "failed", "failed", "complete"]
    assert len(resumed.began) == 1 and resumed.began[0].startswith("0003")
    assert not Noted().began and sweep_is_over(tmp_path, points)


def sweep_is_over(root: Path, points: str) -> bool:
    watch = Noted()
    sweep(root, points, *SLOW, observer=watch, resume=True)
    return watch.began == []


def harm_soon(run: Path, number: signal.Signals) -> None:
    """Send worker 1 a signal, from a thread, once it trains."""

    def harm() -> None:
        until(lambda: run.exists() and any(r["kind"] == "step" for r in RunDirectory(run).records()), START, "a step")
        os.kill(workers_of(run)[1], number)

    threading.Thread(target=harm, daemon=True).start()


def test_a_trial_whose_worker_was_stopped_from_elsewhere_is_not_taken_for_a_result(
    tmp_path: Path, fork_server: None
) -> None:
    """Its workers then end as if all were well, after some of their steps."""
    watch = Noted(lambda run: harm_soon(tmp_path / "swept" / run, signal.SIGTERM))
    words = ("optimizer.lr=choice(0.1)", "strategy=sabotage", "strategy.pause=0.02", "steps=200")
    (done,) = sweep(tmp_path, *words, observer=watch)
    assert (done.state, done.exit_code) == ("failed", 4)
    assert "the workers stopped before the last step" in done.reason
    (done,) = sweep(tmp_path, *words, resume=True)
    assert done.state == "complete"
    assert done.summaries[0]["steps"] == 200


def test_after_so_many_failures_no_trial_begins(tmp_path: Path, fork_server: None) -> None:
    watch = Noted()
    done = sweep(tmp_path, "optimizer.lr=-1,-2,0.1,0.2", observer=watch, max_failures=2)
    assert [trial.state for trial in done] == ["failed", "failed", "waiting", "waiting"]
    assert watch.began == []
    done = sweep(tmp_path, "optimizer.lr=-1,-2,0.1,0.2", resume=True)
    assert [trial.state for trial in done] == ["failed", "failed", "complete", "complete"]


def test_two_trials_that_are_both_to_run_again_do_not_take_away_each_others_rests(
    tmp_path: Path, fork_server: None
) -> None:
    rates = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6")
    left = [tmp_path / "swept" / f"{point:04d}-{rate}" for point, rate in enumerate(rates)]
    for run in left:
        (run / "left").mkdir(parents=True)
    done = sweep(tmp_path, f"optimizer.lr={','.join(rates)}", "hardware.workers=1", "steps=1", jobs=2)
    assert [trial.state for trial in done] == ["complete"] * 6
    assert [trial.runs for trial in done] == [(run.name,) for run in left]
    assert not any((run / "left").exists() for run in left)


# -- a full disk


def test_a_full_disk_ends_a_sweep_with_3_and_with_space_it_goes_on_without_a_loss(tmp_path: Path) -> None:
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    words = [
        "sweep",
        "optimizer.lr=0.2,0.1,0.05,0.02",
        "tracking=none",
        *SMALL,
        "model.hidden=[400]",
        "--name",
        "swept",
    ]
    command = [sys.executable, "-m", "paceline.cli.main", *words]
    mount = shlex.quote(str(runs))
    script = (
        f'mount -t tmpfs -o size=700k tmpfs {mount}; "$@"; code=$?; cp -r {mount} {shlex.quote(str(kept))}; exit $code'
    )
    ended = run([*in_namespace(script), *command], tmp_path)
    assert ended.returncode == 3, ended.stderr
    assert "Traceback" not in ended.stderr
    last = ended.stderr.rstrip().splitlines()[-1]
    assert "No space left on device" in last or "disk is full" in last, last
    acknowledged = ended.stderr.count(": accuracy")
    assert 1 <= acknowledged < 4, ended.stderr

    shutil.copytree(kept, runs, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in runs.glob("swept/*/summary.json")}
    whole = run([*command, "--resume"], tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert whole.stderr.count(": accuracy") == 4 - acknowledged
    assert len(whole.stdout.splitlines()) == 5
    acknowledged_files = [path for path, content in before.items() if path.exists() and path.read_bytes() == content]
    assert len(acknowledged_files) >= acknowledged


def run(command: list[str], directory: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=directory, env=clean_environment(directory), capture_output=True, text=True, timeout=START * 4
    )


def in_namespace(script: str) -> list[str]:
    """A command prefix: run `script` and then what follows in a mount namespace of its own."""
    require("namespaces")
    return ["unshare", "-rm", "sh", "-c", script, "sh"]
