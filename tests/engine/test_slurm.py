"""Runs on a real SLURM of two nodes: killed, preempted, out of time, cancelled, without its controller."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import needs_root, needs_slurm
from process_table import until
from short_runs import Train, weights
from slurm_cluster import SlurmCluster
from submitted_runs import BROKEN, LONG, OWN, SLOW, WAIT, SubmittedProcess, undisturbed

from paceline.tracking.job_files import open_job

pytestmark = [
    pytest.mark.fault,
    pytest.mark.drawn_alone,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.timeout(600),
    needs_slurm,
    needs_root,
]

NODES = ("launcher=slurm", "launcher.nodes=2", "launcher.workers_per_node=1", "launcher.time=30m")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    made = SlurmCluster()
    yield made
    made.stop()


def submitted(root: Path, cluster: SlurmCluster, *overrides: str) -> SubmittedProcess:
    return SubmittedProcess(root, cluster.environment, *NODES, *overrides)


def test_a_laptops_line_trains_on_two_nodes_with_the_same_weights(
    tmp_path: Path, cluster: SlurmCluster, train: Train
) -> None:
    run = submitted(tmp_path, cluster, "hardware.threads=1")
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, "hardware.threads=1")
    assert (run.run.path / "job" / "token").stat().st_mode & 0o777 == 0o600


def test_a_killed_worker_is_started_again_and_the_run_completes(
    tmp_path: Path, cluster: SlurmCluster, train: Train
) -> None:
    run = submitted(tmp_path, cluster, *LONG)
    os.kill(run.until_it_trains()[1], signal.SIGKILL)
    assert run.end() == 0, run.said()
    end = run.ended()
    assert (end.lost, end.failed) == (1, 0) and "worker 1 has died" in end.first
    assert weights(run.run.path) == undisturbed(train, *LONG)


def test_an_error_of_the_program_comes_first_and_ends_the_run(tmp_path: Path, cluster: SlurmCluster) -> None:
    run = submitted(tmp_path, cluster, *BROKEN)
    assert run.end() == 4
    assert "the coffee machine is on fire" in run.said().splitlines()[-1], run.said()
    end = run.ended()
    assert (end.lost, end.failed) == (0, 0)


def test_the_same_crash_at_the_same_step_twice_ends_a_run_that_may_fail_more_often(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    run = submitted(tmp_path, cluster, *BROKEN, "launcher.retries.failed=5")
    assert run.end() == 4
    end = run.ended()
    assert end.failed == 1 and "twice at this step" in end.message


@pytest.mark.parametrize("partition", ["low", "patient"])
def test_a_preempted_run_goes_on(tmp_path: Path, cluster: SlurmCluster, train: Train, partition: str) -> None:
    run = submitted(tmp_path, cluster, *LONG, f"launcher.partition={partition}")
    run.until_it_trains()
    cluster.ask("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    cluster.start_at_once(run.job)
    assert open_job(run.run.path) is not None, "a job that comes back has not ended"
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, *LONG)


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["low", "patient"])
def test_five_preemptions_in_a_row_do_not_end_a_run(
    tmp_path: Path, cluster: SlurmCluster, train: Train, partition: str
) -> None:
    long = (*LONG[:-2], "steps=1500", "checkpoint.every_steps=20")
    run = submitted(tmp_path, cluster, *long, f"launcher.partition={partition}")
    for _ in range(5):
        run.until_it_trains(run.steps() + 60)
        cluster.ask("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        cluster.start_at_once(run.job)
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, *long)


def test_a_cancelled_run_saves_and_stays_away(tmp_path: Path, cluster: SlurmCluster) -> None:
    run = submitted(tmp_path, cluster, *SLOW, "steps=100000", "checkpoint.every_steps=50000")
    run.until_it_trains()
    assert run.start("cancel", "mine", *OWN[2:]).wait(WAIT) == 0
    assert run.end() == 143, run.said()
    assert cluster.state(run.job) == "CANCELLED"
    assert list(run.run.checkpoints.iterdir()), "nothing was saved"


def test_what_follows_a_job_cancels_it_when_it_is_asked_to_stop(tmp_path: Path, cluster: SlurmCluster) -> None:
    run = submitted(tmp_path, cluster, *SLOW, "steps=100000")
    run.until_it_trains()
    run.process.send_signal(signal.SIGINT)
    assert run.end() in (130, 143), run.said()
    assert cluster.state(run.job) == "CANCELLED"


def test_at_its_time_limit_a_run_saves_and_is_put_back(tmp_path: Path, cluster: SlurmCluster, train: Train) -> None:
    """The signal is sent by hand: SLURM's own comes up to a minute early, and no limit is below a minute."""
    run = submitted(tmp_path, cluster, *SLOW, "checkpoint.every_steps=50000")
    run.until_it_trains()
    cluster.ask("scancel", "--signal=USR1", "--batch", run.job)
    cluster.start_at_once(run.job)
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, *SLOW, "checkpoint.every_steps=50000")


def test_a_controller_that_is_away_stops_nothing(tmp_path: Path, cluster: SlurmCluster) -> None:
    run = submitted(tmp_path, cluster, *LONG)
    run.until_it_trains()
    cluster.kill_controller()
    try:
        until(lambda: "cannot be reached" in run.said(), WAIT, "nobody notices")
    finally:
        cluster.start_controller()
    assert run.end() == 0, run.said()


def test_a_lost_node_puts_the_run_back(tmp_path: Path, cluster: SlurmCluster, train: Train) -> None:
    run = submitted(tmp_path, cluster, *LONG)
    run.until_it_trains()
    cluster.lose_node("n2")
    try:
        until(lambda: cluster.state(run.job) != "RUNNING" or run.steps() == 300, WAIT, "nobody notices")
    finally:
        cluster.start_node("n2")
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, *LONG)


@pytest.mark.slow
def test_workers_to_whom_slurm_gives_no_nodes_are_started_again(
    tmp_path: Path, cluster: SlurmCluster, train: Train
) -> None:
    run = submitted(tmp_path, cluster, *LONG)
    workers = run.until_it_trains()
    with cluster.occupied(run.job, 75):
        os.kill(workers[1], signal.SIGKILL)
        log = run.run.path / "logs" / "slurm.log"
        until(lambda: "Requested nodes are busy" in log.read_text(), WAIT, "the nodes were free")
        until(lambda: log.read_text().count("the workers start again") == 2, WAIT, "srun waits for the nodes")
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, *LONG)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["launcher.partition=nowhere"],
            "launcher.partition=nowhere: SLURM has no such partition. Choose low, high, patient.",
        ),
        (["launcher.nodes=3"], "launcher.nodes=3: the partition low has 2. Choose at most 2."),
        (["launcher.workers_per_node=5"], "launcher.workers_per_node: takes 5 CPUs of each node"),
        (["launcher.time=3h"], "launcher.time: is 180 minutes, and the partition low allows 120. Choose at most 120m."),
        (["launcher.constraint=fast"], "launcher.constraint=fast: SLURM refuses such a job"),
    ],
)
def test_what_the_scheduler_can_never_give_is_refused_before_anything_is_submitted(
    tmp_path: Path, cluster: SlurmCluster, overrides: list[str], said: str
) -> None:
    run = submitted(tmp_path, cluster, *overrides)
    assert run.end() == 2
    assert said in run.said()
    assert not run.run.path.exists()
