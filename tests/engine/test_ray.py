"""Runs on a real Ray of two raylets on this machine."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from needs import needs_ray
from process_table import until
from short_runs import Train, weights
from submitted_runs import BROKEN, LONG, OWN, SLOW, WAIT, SubmittedProcess, pids, undisturbed, workers_of

from paceline.engine.base.errors import MachineError
from paceline.engine.jobs import ray_driver
from paceline.engine.jobs.ray_actors import RayActors, check_token

pytestmark = [pytest.mark.fault, pytest.mark.drawn_alone, pytest.mark.xdist_group("ray"), pytest.mark.timeout(600)]

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
health = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
cluster = Cluster(True, False, head_node_args=node | {"include_dashboard": False, "_system_config": health})
second = cluster.add_node(**node)
print(cluster.address, flush=True)
for line in sys.stdin:
    if line.strip() == "lose":
        cluster.remove_node(second, allow_graceful=False)
        second = cluster.add_node(**node)
    print("done", flush=True)
cluster.shutdown()
"""


class RayCluster:
    """`lose` kills the second raylet, and all that runs below it, and starts another."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", CLUSTER]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = next(line.strip() for line in self._process.stdout if line.strip().rpartition(":")[2].isdigit())

    def lose(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("lose\n")
        self._process.stdin.flush()
        assert "done" in self._process.stdout.readline()

    def stop(self) -> None:
        self._process.communicate(timeout=WAIT)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    made = RayCluster()
    yield made
    made.stop()


def submitted(root: Path, cluster: RayCluster, *overrides: str) -> SubmittedProcess:
    nodes = ("launcher=ray", f"launcher.address={cluster.address}", "launcher.nodes=2", "launcher.workers_per_node=1")
    return SubmittedProcess(root, {}, *nodes, *overrides)


@needs_ray
def test_a_laptops_line_trains_on_two_raylets_with_the_same_weights(
    tmp_path: Path, cluster: RayCluster, train: Train
) -> None:
    run = submitted(tmp_path, cluster, "hardware.threads=1")
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, "hardware.threads=1")


@needs_ray
def test_a_killed_worker_is_started_again_and_the_run_completes(
    tmp_path: Path, cluster: RayCluster, train: Train
) -> None:
    run = submitted(tmp_path, cluster, *LONG)
    os.kill(run.until_it_trains()[1], signal.SIGKILL)
    assert run.end() == 0, run.said()
    assert (run.ended().lost, run.ended().failed) == (1, 0)
    assert weights(run.run.path) == undisturbed(train, *LONG)


@needs_ray
def test_a_lost_node_costs_an_attempt(tmp_path: Path, cluster: RayCluster, train: Train) -> None:
    run = submitted(tmp_path, cluster, *LONG)
    run.until_it_trains()
    cluster.lose()
    assert run.end() == 0, run.said()
    assert run.ended().lost >= 1
    assert weights(run.run.path) == undisturbed(train, *LONG)


class RayHead:
    """A cluster of one node, which may be killed with all that it runs and started again at the same address."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        words = f"start --head --port={self.port} --num-cpus=2 --include-dashboard=false --block"
        words += f" --object-store-memory={80 * 2**20} --disable-usage-stats"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *words.split()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(self._answers, WAIT, "the head does not answer")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        for pid in pids():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if self.address.encode() in words and b"paceline" not in words:
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()


@needs_ray
def test_a_head_that_is_started_again_gets_the_run_back(tmp_path: Path, train: Train) -> None:
    head = RayHead()
    try:
        nodes = ("launcher=ray", f"launcher.address={head.address}", "launcher.workers_per_node=2")
        run = SubmittedProcess(tmp_path, {}, *nodes, *LONG)
        run.until_it_trains()
        head.kill()
        until(lambda: not workers_of(run.run.path), WAIT, "workers outlive their cluster")
        head.start()
        assert run.end() == 0, run.said()
        assert run.ended().lost >= 1
        assert weights(run.run.path) == undisturbed(train, *LONG)
    finally:
        head.kill()


@needs_ray
def test_an_error_of_the_program_comes_first_and_ends_the_run(tmp_path: Path, cluster: RayCluster) -> None:
    run = submitted(tmp_path, cluster, *BROKEN)
    assert run.end() == 4
    assert "the coffee machine is on fire" in run.said().splitlines()[-1], run.said()


@needs_ray
def test_a_cancelled_run_saves_and_stays_away(tmp_path: Path, cluster: RayCluster) -> None:
    run = submitted(tmp_path, cluster, *SLOW, "steps=100000", "checkpoint.every_steps=50000")
    run.until_it_trains()
    assert run.start("cancel", "mine", *OWN[2:]).wait(WAIT) == 0
    assert run.end() == 143, run.said()
    assert list(run.run.checkpoints.iterdir())


class CalledActor:
    """Has the methods of an actor. `calls` notes them, and its workers go on until they are asked to stop."""

    def __init__(self, calls: list[str], during: Callable[[], None]) -> None:
        self._calls, self._during = calls, during
        self.stop = SimpleNamespace(remote=lambda: calls.append("stop"))
        self.statuses = SimpleNamespace(remote=self._statuses)

    def _statuses(self) -> list[int | None]:
        assert len(self._calls) < 20, "nobody asked the workers to stop"
        self._calls.append("statuses")
        self._during()
        return [143 if "stop" in self._calls else None]


@pytest.mark.parametrize("moment", [0, 1], ids=["between two actors", "at the last actor"])
def test_a_stop_that_comes_amid_a_look_reaches_every_actor(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_driver, "LOOK", 0.0)
    asked: list[int] = []

    def signalled() -> None:
        if not asked:
            asked.append(signal.SIGTERM)

    calls: list[list[str]] = [[], []]
    actors = [CalledActor(made, signalled if n == moment else lambda: None) for n, made in enumerate(calls)]
    ray = SimpleNamespace(get=lambda answer: answer, exceptions=SimpleNamespace(RayActorError=ConnectionError))
    assert ray_driver._watch(ray, actors, asked) == 143
    assert [made.count("stop") for made in calls] == [1, 1]


@needs_ray
def test_workers_end_with_their_supervisor(tmp_path: Path, cluster: RayCluster) -> None:
    run = submitted(tmp_path, cluster, *SLOW, "steps=100000")
    run.until_it_trains()
    os.kill(int(run.job.partition("-")[0]), signal.SIGKILL)
    until(lambda: not workers_of(run.run.path), 20, "workers outlive their supervisor")
    assert run.end() == 4


@needs_ray
def test_more_than_the_cluster_has_is_refused_before_anything_is_made(tmp_path: Path, cluster: RayCluster) -> None:
    run = submitted(tmp_path, cluster, "launcher.nodes=3")
    assert run.end() == 2
    assert "launcher.nodes=3: the cluster has 2 nodes with 1 CPU, of 2" in run.said()
    assert not run.run.path.exists()


@needs_ray
def test_an_address_at_which_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"launcher\.address=127\.0\.0\.1:9: no Ray cluster answers"):
        RayActors(address="127.0.0.1:9").check()


def test_without_the_token_that_ray_wants_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(MachineError, match="RAY_AUTH_MODE=token, and there is no token"):
        check_token()
    (tmp_path / "none").write_text("x" * 64)
    check_token()
