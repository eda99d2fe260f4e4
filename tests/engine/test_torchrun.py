"""The same run when torchrun starts the workers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from process_table import MARK, is_alive, marked, until
from short_runs import HERE, QUICK, START, Train, clean_environment, weights

from paceline.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.dist

TOKEN = "0123456789abcdef" * 4
WAIT = 90.0  # seconds for two agents to start their workers on a busy machine, train, and end


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Agents:
    """torchrun agents on loopback that form one job."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._mark = folder, uuid.uuid4().hex
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, nodes: int, per_node: int, *overrides: str, tokens: Sequence[str] = (TOKEN, TOKEN), restarts: int = 0
    ) -> None:
        """`tokens`: of each node; "": none."""
        port = free_port()
        for node in range(nodes):
            where = f"--nnodes={nodes} --node-rank={node} --nproc-per-node={per_node} --master-port={port}"
            where += f" --max-restarts={restarts}"
            self._start(node, ["--master-addr=127.0.0.1", *where.split()], overrides, tokens[node])

    def join_elastic(self, nodes: str, *overrides: str) -> None:
        """One more agent of one worker; the first serves the rendezvous of all."""
        if not self.processes:
            self._port = free_port()
        where = f"--nnodes={nodes} --max-restarts=3 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id={self._mark}"
        conf = "--rdzv-conf=last_call_timeout=10,is_host=" + str(int(not self.processes))
        endpoint = f"--rdzv-endpoint=127.0.0.1:{self._port}"
        self._start(len(self.processes), [*where.split(), conf, endpoint], overrides, TOKEN)

    def _start(self, node: int, where: Sequence[str], overrides: Sequence[str], token: str) -> None:
        agent = [sys.executable, "-m", "torch.distributed.run", *where]
        train = ["-m", "paceline.cli.main", "train", *QUICK, *overrides, "--name=mine"]
        ours = ["--config-dir", str(HERE / "conf"), "--allow-module", "saboteur"]
        with self._output(node).open("wb") as output:
            self.processes.append(
                subprocess.Popen(
                    [*agent, *train, *ours],
                    cwd=self._folder,
                    env={
                        **clean_environment(self._folder),
                        **({"PACELINE_TOKEN": token} if token else {}),
                        MARK: self._mark,
                        "OMP_NUM_THREADS": "1",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def alive(self) -> dict[int, str]:
        return marked(self._mark)

    def worker(self, rank: int) -> int:
        """Its process."""
        told = f"RANK={rank}".encode()
        return next(pid for pid in self.alive() if told in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))

    def wait(self) -> list[int]:
        return [process.wait(2 * WAIT) for process in self.processes]

    def said(self) -> str:
        return "".join(self._output(node).read_text() for node in range(len(self.processes)))

    def _output(self, node: int) -> Path:
        return self._folder / f"node-{node}.output"


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(tmp_path)
    yield agents
    for pid in agents.alive():
        os.kill(pid, signal.SIGKILL)
    for process in agents.processes:
        process.wait(10)


def summary_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.slow
def test_two_agents_form_one_job_with_the_bits_of_a_local_run(agents: Agents, train: Train, root: Path) -> None:
    agents.start(2, 1, "checkpoint.every_steps=3")
    assert agents.wait() == [0, 0], agents.said()
    run = root / "mine"
    summary = summary_of(run)
    assert {key: summary[key] for key in ("workers", "replicas", "status", "steps")} == {
        "workers": 2,
        "replicas": 2,
        "status": "completed",
        "steps": 6,
    }
    assert summary["wire"]["bytes_per_step"] == summary["predicted"]["bytes_per_step"]
    assert agents.said().count("everything of this run: ") == 1  # the chief alone says it
    local = train(name="local")
    assert weights(run) == weights(local.path)
    # and its checkpoints are those of any run
    assert weights(train("steps=12", resume="mine").path) == weights(train("steps=12").path)


@pytest.mark.slow
def test_torchruns_processes_are_workers_and_servers(agents: Agents, root: Path) -> None:
    agents.start(1, 3, "sync=asp", "steps=20")
    assert agents.wait() == [0], agents.said()
    summary = summary_of(root / "mine")
    assert (summary["workers"], summary["servers"], summary["status"]) == (2, 1, "completed")
    assert sum(summary["staleness"]["histogram"].values()) == 2 * 20


@pytest.mark.fault
def test_under_torchrun_a_workers_exception_is_said_and_nothing_is_left(agents: Agents) -> None:
    agents.start(1, 2, "strategy=sabotage", "strategy.act=raise")
    assert agents.wait() != [0]
    sentence = "worker 1 failed: SabotageError: the coffee machine is on fire, in saboteur.Sabotage._harm ("
    assert sentence in agents.said() and "Traceback" in agents.said()
    assert "exitcode: 4" in " ".join(agents.said().replace("exitcode  :", "exitcode:").split())
    until(lambda: not agents.alive(), 2, "all gone")


@pytest.mark.slow
@pytest.mark.parametrize(("act", "status"), [("fork", 5), ("fork_and_raise", 1)])
def test_a_child_that_the_chief_forked_does_not_end_the_run(act: str, status: int, agents: Agents, root: Path) -> None:
    agents.start(1, 2, "strategy=sabotage", f"strategy.act={act}", "strategy.rank=0")
    assert agents.wait() == [0], agents.said()
    assert f"the child left with {status}" in agents.said() and "left before the end" not in agents.said()
    ends = [record for record in RunDirectory(root / "mine").records() if record["kind"] == "end"]
    assert ends == [{"kind": "end", "status": "completed"}]


@pytest.mark.slow
@pytest.mark.fault
def test_sigterm_to_torchrun_saves_and_the_run_goes_on_to_the_same_bits(
    agents: Agents, train: Train, root: Path
) -> None:
    agents.start(1, 2, "strategy=sabotage", "strategy.pause=0.01", "steps=400")
    run = RunDirectory(root / "mine")
    until(lambda: any(record["kind"] == "step" for record in run.records()), START, "a step")
    agents.processes[0].terminate()
    assert agents.wait() != [0]
    assert re.search(r"stopped by SIGTERM; saved: step-\d{8}; resume with: paceline train --resume mine", agents.said())
    assert summary_of(run.path)["status"] == "interrupted"
    assert not any(is_alive(pid) for pid in agents.alive())
    assert weights(train(resume="mine").path) == weights(train("strategy=sabotage", "steps=400").path)


LONG = (
    "strategy=sabotage",
    "strategy.pause=0.02",
    "steps=300",
    "checkpoint.every_steps=10",
    "checkpoint.keep=2",
    "hardware.threads=1",
)  # else each agent's only worker takes all cores, and sums in another order


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.timeout(400)  # rendezvous waits for latecomers
@pytest.mark.parametrize("how", ["one agent", "two agents"])
def test_a_job_whose_worker_is_killed_goes_on_with_its_run_to_the_same_bits(
    agents: Agents, train: Train, root: Path, how: str
) -> None:
    """torchrun starts all workers anew: the run with its name and its newest checkpoint is there already."""
    if how == "one agent":
        agents.start(1, 2, *LONG, restarts=2)
    else:
        for _ in range(2):
            agents.join_elastic("1:2", *LONG)
    run = root / "mine"
    until(lambda: len(list(run.glob("checkpoints/step-*0"))) >= 2, 2 * START, "a checkpoint")
    os.kill(agents.worker(1), signal.SIGKILL)
    assert set(agents.wait()) == {0}, agents.said()
    assert "run mine: goes on from step-000" in agents.said()
    summary = summary_of(run)
    assert (summary["status"], summary["steps"], summary["workers"]) == ("completed", 300, 2)
    assert weights(run) == weights(train("strategy=sabotage", "steps=300", "hardware.threads=1").path)
    # a job of its own finds the name taken
    again = Agents(agents._folder)
    again.start(1, 2, *LONG, restarts=1)
    assert again.wait() != [0] and again.said().count("run name 'mine' is taken") >= 2


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_stopped_run_is_a_success_on_no_host(signalled: int, tmp_path: Path, root: Path) -> None:
    """The agent of a host whose worker leaves with 0 takes the job for a success, and waits for the other agents."""
    started = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PACELINE_TOKEN": TOKEN}
    words = ["strategy=sabotage", "strategy.pause=0.01", "steps=4000", "--name=mine", "--allow-module", "saboteur"]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "train", *QUICK, "--config-dir", str(HERE / "conf"), *words],
            cwd=tmp_path,
            env={**clean_environment(tmp_path), **started, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    run = RunDirectory(root / "mine")
    until(lambda: any(record["kind"] == "step" for record in run.records()), 2 * START, "a step")
    workers[signalled].terminate()
    said = [worker.communicate(timeout=WAIT)[1].splitlines()[-1] for worker in workers]
    assert [worker.returncode for worker in workers] == ([143, 4] if signalled == 0 else [4, 143]), said
    assert "stopped by SIGTERM; saved: step-" in said[signalled]
    assert summary_of(run.path)["status"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "chief"), [("pipeline", 1), ("data_parallel", 0)])
def test_a_refusal_of_the_chief_is_that_of_all(strategy: str, chief: int, tmp_path: Path) -> None:
    """The last stage of a pipeline is the chief. Each has a folder of its own, and waits for what the chief makes."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    (folders[chief] / "runs" / "mine").mkdir(parents=True)
    (folders[chief] / "runs" / "mine" / "config.yaml").write_text("name: mine")
    started = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PACELINE_TOKEN": TOKEN}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "train", *QUICK, f"strategy={strategy}", "--name=mine"],
            cwd=folder,
            env={**clean_environment(folder), **started, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, folder in enumerate(folders)
    ]
    said = [worker.communicate(timeout=WAIT)[1].splitlines()[-1] for worker in workers]
    assert [worker.returncode for worker in workers] == [2, 2]
    assert said[chief].startswith("run name 'mine' is taken") and said[1 - chief] == f"worker {chief}: {said[chief]}"
