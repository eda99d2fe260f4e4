"""Runs whose agents of torchrun paceline starts itself: launcher=torchrun."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from needs import needs_network_namespaces, needs_sshd, sshd
from process_table import until
from safetensors.torch import load_file
from short_runs import Train, weights
from submitted_runs import BROKEN, LONG, OWN, SLOW, WAIT, SubmittedProcess, pids, undisturbed, workers_of
from two_hosts import ADDRESSES, TwoHosts

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import MachineError
from paceline.engine.jobs import side_by_side, torchrun
from paceline.engine.jobs.scheduler import SubmittedRun
from paceline.engine.jobs.torchrun import Agents
from paceline.engine.planning.resizing import at_this_size

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

AGENTS = ("launcher=torchrun", "launcher.nodes=2", "launcher.workers_per_node=1")


def submitted(root: Path, *overrides: str, options: tuple[str, ...] = ()) -> SubmittedProcess:
    return SubmittedProcess(root, {}, *AGENTS, *overrides, options=options)


@pytest.mark.slow
def test_two_agents_train_with_the_same_weights(tmp_path: Path, train: Train) -> None:
    run = submitted(tmp_path, "hardware.threads=1")
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, "hardware.threads=1")


@pytest.mark.fault
def test_a_killed_worker_is_started_again_and_the_run_completes(tmp_path: Path, train: Train) -> None:
    run = submitted(tmp_path, *LONG)
    os.kill(run.until_it_trains()[1], signal.SIGKILL)
    assert run.end() == 0, run.said()
    assert (run.ended().lost, run.ended().failed) == (1, 0)
    assert weights(run.run.path) == undisturbed(train, *LONG)


@pytest.mark.fault
def test_a_killed_agent_takes_its_worker_along_and_both_are_started_again(tmp_path: Path, train: Train) -> None:
    run = submitted(tmp_path, *LONG)
    worker = run.until_it_trains()[1]
    os.kill(parent(worker), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{worker}").exists(), WAIT, "the worker outlives its agent")
    assert run.end() == 0, run.said()
    assert run.ended().lost == 1
    assert weights(run.run.path) == undisturbed(train, *LONG)


@pytest.mark.fault
def test_an_error_of_the_program_comes_first_and_ends_the_run(tmp_path: Path) -> None:
    run = submitted(tmp_path, *BROKEN)
    assert run.end() == 4
    assert "the coffee machine is on fire" in run.said().splitlines()[-1], run.said()


@pytest.mark.fault
def test_a_detached_run_is_cancelled_saves_and_leaves_nobody(tmp_path: Path) -> None:
    run = submitted(tmp_path, *SLOW, "steps=100000", "checkpoint.every_steps=50000", options=("--detach",))
    assert run.end() == 0
    until(lambda: run.steps() > 20, WAIT, "it does not train")
    workers = workers_of(run.run.path)
    assert len(workers) == 2
    assert run.start("cancel", "mine", *OWN[2:]).wait(WAIT) == 0
    until(lambda: not workers_of(run.run.path), WAIT, f"workers are left: {workers}")
    until(lambda: (run.run.path / "job" / "end.json").exists(), WAIT, "the supervisor does not end")
    assert run.ended().exit_code == 143 and list(run.run.checkpoints.iterdir())
    assert run.start("watch", "mine", "--once").wait(WAIT) == 130


@pytest.mark.fault
@pytest.mark.parametrize("trains", [True, False], ids=["training", "starting"])
def test_workers_end_with_their_supervisor(tmp_path: Path, trains: bool) -> None:
    run = submitted(tmp_path, *SLOW, "steps=100000")
    if trains:
        run.until_it_trains()
    else:  # it imports torch
        until(lambda: len(workers_of(run.run.path)) == 2, WAIT, f"no workers: {run.said()}")
    os.kill(int(run.job.partition("-")[0]), signal.SIGKILL)
    until(lambda: not workers_of(run.run.path), 20, "workers outlive their supervisor")
    assert run.end() == 4
    assert "ended and did not say how" in run.said().splitlines()[-1]


# -- on two hosts, each with a network of its own


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    made = TwoHosts(tmp_path)
    yield made
    made.close()


def on_two_hosts(root: Path, hosts: TwoHosts, *overrides: str) -> SubmittedProcess:
    agents = ("launcher=torchrun", f"launcher.nodes=[{','.join(ADDRESSES)}]", "launcher.workers_per_node=1")
    return SubmittedProcess(root, hosts.environment, *agents, *overrides)


@needs_network_namespaces
@pytest.mark.slow
def test_two_hosts_train_over_their_network_with_the_same_weights(
    tmp_path: Path, two_hosts: TwoHosts, train: Train
) -> None:
    run = on_two_hosts(tmp_path, two_hosts, "hardware.threads=1")
    assert run.end() == 0, run.said()
    assert weights(run.run.path) == undisturbed(train, "hardware.threads=1")
    gradients = 6 * len(weights(run.run.path))  # of as many steps
    assert all(two_hosts.sent(address) > gradients for address in ADDRESSES), "gradients went another way"


@needs_network_namespaces
@pytest.mark.slow
@pytest.mark.fault
def test_a_host_that_is_unplugged_for_a_while_costs_no_step(tmp_path: Path, two_hosts: TwoHosts, train: Train) -> None:
    timeout = "hardware.timeout=5"
    run = on_two_hosts(tmp_path, two_hosts, *LONG, timeout)
    run.until_it_trains()
    two_hosts.unplug(ADDRESSES[1])
    log = run.run.logs / "supervisor.log"
    until(lambda: "the workers start again" in log.read_text(), WAIT, "nobody notices")
    two_hosts.plug_in(ADDRESSES[1])
    assert run.end() == 0, run.said()
    assert run.ended().lost >= 1
    assert weights(run.run.path) == undisturbed(train, *LONG, timeout)


SSH = """#!/bin/sh
# ssh -o ... -o ... [-tt] HOST COMMAND, on this machine
while [ "$1" = -o ]; do shift 2; done
[ "$1" = -tt ] && shift
[ -e "$HOSTS/$1" ] || { echo no route to it >&2; exit 255; }
export ON_HOST=$1
exec sh -c "$2"
"""


class Hosts:
    """Hosts that ssh reaches, which are this machine; 127.0.0.1, 127.0.0.2, ..."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "hosts"
        self._folder.mkdir()
        (folder / "ssh").write_text(SSH)
        (folder / "ssh").chmod(0o755)
        self.environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOSTS": str(self._folder)}

    def up(self, *names: str) -> None:
        for name in names:
            (self._folder / name).touch()

    def down(self, name: str) -> None:
        """Lose the host, with all that runs on it."""
        (self._folder / name).unlink()
        for pid in pids():
            with suppress(OSError):
                if f"ON_HOST={name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.fault
def test_a_run_goes_on_with_the_hosts_that_there_are(tmp_path: Path, train: Train) -> None:
    """One, two, one and three hosts: each size takes the samples that the others would have taken."""
    hosts, there = Hosts(tmp_path), ("127.0.0.1", "127.0.0.2", "127.0.0.3")
    size = ("batch_size=4", "data=numbered", "strategy=sabotage", "steps=900", "checkpoint.every_steps=20")
    written = tmp_path / "written"
    written.mkdir()
    slow = ("strategy.pause=0.05", f"strategy.writes={written}")
    agents = ("launcher=torchrun", f"launcher.nodes=[{','.join(there)}]", "launcher.least=1")
    hosts.up(there[0])
    run = SubmittedProcess(tmp_path, hosts.environment, *agents, "launcher.workers_per_node=1", *size, *slow)

    def trains(workers: int) -> None:
        until(lambda: len(workers_of(run.run.path)) == workers, WAIT, f"no {workers} workers: {run.said()}")
        step = run.steps()
        until(lambda: run.steps() > step + 25, WAIT, f"{workers} workers make no steps: {run.said()}")

    trains(1)
    hosts.up(there[1])
    trains(2)
    hosts.down(there[1])
    trains(1)
    hosts.up(*there[1:])
    trains(3)
    assert run.end() == 0, run.said()
    whole = train(*size, "hardware.workers=3", name="undisturbed").path
    mine, other = load_file(run.run.path / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all((mine[name] - other[name]).abs().max() < 1e-4 for name in other)
    assert run.ended().lost == 1, "a host that comes is no loss"
    steps = steps_taken(written)
    assert [*steps] == [*range(900)]
    for epoch in range(900 // 17):
        taken = [sample for step in range(17 * epoch, 17 * (epoch + 1)) for sample in steps[step]]
        assert sorted(taken) == [*range(200)], f"epoch {epoch} takes samples twice, or not at all"


SSHD = """
Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""
OF_USER = """
Host first
HostName 127.0.0.1
Host *
Port {port}
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
LogLevel ERROR
"""


@pytest.fixture
def of_sshd(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which ssh reaches a server of its own on 127.0.0.1 and 127.0.0.2."""
    folder = tmp_path / "ssh"
    folder.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "sshd_config").write_text(SSHD.format(port=port, folder=folder))
    (folder / "config").write_text(OF_USER.format(port=port, folder=folder))
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "ssh").chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen([sshd() or "", "-D", "-f", folder / "sshd_config", "-E", folder / "log"])
    yield {"PATH": f"{folder}:{os.environ['PATH']}"}
    server.terminate()
    server.wait()


HOSTS = ("launcher=torchrun", "launcher.nodes=[first,127.0.0.2]", "launcher.workers_per_node=1")


@needs_sshd
@pytest.mark.fault
def test_two_hosts_of_a_real_sshd_train_with_the_same_weights(
    tmp_path: Path, of_sshd: dict[str, str], train: Train
) -> None:
    run = SubmittedProcess(tmp_path, of_sshd, *HOSTS, "hardware.threads=1")
    assert run.end() == 0, run.said()
    check_weights(run.run.path, train("hardware.threads=1", name="undisturbed").path)


@needs_sshd
@pytest.mark.fault
def test_workers_on_hosts_of_a_real_sshd_save_and_end_with_their_supervisor(
    tmp_path: Path, of_sshd: dict[str, str]
) -> None:
    run = SubmittedProcess(tmp_path, of_sshd, *HOSTS, *SLOW, "steps=100000", "checkpoint.every_steps=50000")
    run.until_it_trains()
    assert run.start("cancel", "mine", *OWN[2:]).wait(WAIT) == 0
    assert run.end() == 143, run.said()
    assert list(run.run.checkpoints.iterdir()) and not workers_of(run.run.path)
    again = run.start("train", "--resume", "mine", *OWN[2:])
    step = run.steps()
    until(lambda: run.steps() > step, WAIT, f"it does not go on: {run.said()}")
    os.kill(int(run.job.partition("-")[0]), signal.SIGKILL)
    until(lambda: not workers_of(run.run.path), 20, "workers outlive their supervisor")
    assert again.wait(WAIT) == 4


@needs_sshd
@pytest.mark.slow
@pytest.mark.fault
def test_a_host_that_falls_silent_is_lost(tmp_path: Path, of_sshd: dict[str, str], train: Train) -> None:
    """Its connection neither ends nor carries anything, as after a loss of power."""
    run = SubmittedProcess(tmp_path, of_sshd, *HOSTS, *LONG, "hardware.timeout=5")
    agent = parent(run.until_it_trains()[1])
    session = parent(agent)
    assert Path(f"/proc/{session}/comm").read_text().startswith("sshd")
    os.kill(session, signal.SIGSTOP)
    try:
        os.kill(agent, signal.SIGKILL)
        assert run.end() == 0, run.said()
    finally:
        os.kill(session, signal.SIGKILL)
    assert run.ended().lost == 1
    check_weights(run.run.path, train(*LONG, name="undisturbed").path)


def check_weights(mine: Path, whole: Path) -> None:
    """Checks that two runs have the same weights up to the order of sums, which is another one between two hosts."""
    one, other = (load_file(each / "model.safetensors") for each in (mine, whole))
    assert all((one[name] - other[name]).abs().max() < 1e-5 for name in other)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def steps_taken(folder: Path) -> dict[int, list[int]]:
    """Returns the samples of each step, of the attempt that made it last."""
    found: dict[int, dict[int, list[int]]] = {}
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            attempt, step, samples = json.loads(line)
            found.setdefault(step, {}).setdefault(int(attempt), []).extend(samples)
    return {step: found[step][max(found[step])] for step in sorted(found)}


def test_a_range_of_agents_says_how_few_may_train() -> None:
    agents = Agents("1:2")
    assert (agents.nodes, agents._least) == (2, 1)


@pytest.mark.parametrize(("nodes", "workers"), [("1:2", 4), ("10:12", 24), ("3", 6), ("[a,b]", 4)])
def test_a_plan_has_the_workers_of_all_nodes(nodes: str, workers: int) -> None:
    plan = engine.plan(["launcher=torchrun", f"launcher.nodes={nodes}", "tracking=none"])
    assert plan.layout.workers == workers


@pytest.mark.parametrize(("size", "each"), [(2, 6), (4, 3)])
def test_agents_of_a_range_take_the_samples_that_were_asked_for(
    size: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["launcher=torchrun", "launcher.nodes=1:4", "launcher.workers_per_node=1", "batch_size=3"]
    experiment = engine.prepare([*overrides, "tracking=none"]).experiment
    told = {"RANK": "0", "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert at_this_size(experiment, (), None).batch_size == each


@pytest.mark.parametrize(
    "override",
    [
        "launcher.nodes=null",
        "launcher.nodes=1.5",
        "launcher.workers_per_node=null",
        "launcher={_target_:paceline.engine.jobs.torchrun.Agents,nodes:1}",
        "launcher={_target_:paceline.engine.jobs.slurm.Slurm,partition:gpu}",
    ],
)
def test_a_launcher_without_a_count_is_refused_by_the_key(override: str) -> None:
    with pytest.raises(ConfigError, match=r"^launcher\.(nodes|workers_per_node)"):
        engine.plan(["launcher=torchrun", override, "tracking=none"])


@pytest.mark.parametrize("nodes", ["[]", "[-x]", "['']", "4:2", "0:2", "a"])
def test_hosts_are_names(nodes: str) -> None:
    with pytest.raises(ConfigError, match=r"launcher\.nodes="):
        engine.prepare(["launcher=torchrun", f"launcher.nodes={nodes}", "tracking=none"]).submission()


def test_a_host_that_nobody_reaches_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho no route to it >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(MachineError, match=r"launcher\.nodes: ssh does not reach far \(no route to it\)"):
        engine.prepare(["launcher=torchrun", "launcher.nodes=[far]", "tracking=none"]).submission()


def test_a_host_that_takes_the_connection_and_gives_no_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(torchrun, "PATIENCE", 0.2)
    with pytest.raises(MachineError, match=r"launcher\.nodes: ssh does not reach far \(no answer in 0\.2 s\)"):
        engine.prepare(["launcher=torchrun", "launcher.nodes=[far]", "tracking=none"]).submission()


def test_an_agent_that_cannot_be_asked_to_stop_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torchrun, "PATIENCE", 0.2)
    with subprocess.Popen(["sleep", "600"]) as asked:
        assert torchrun._status(asked) == -signal.SIGKILL


def test_the_commands_of_agents_are_shown() -> None:
    text = engine.prepare([*AGENTS, "tracking=none"], name="mine").submission()
    assert text is not None
    first, second = text.strip().splitlines()
    assert "--nnodes=2 --nproc-per-node=1 --node-rank=0 --master-addr=127.0.0.1" in first
    assert "--node-rank=1" in second and second.endswith("runs/mine")


@pytest.mark.parametrize(
    ("host", "configured", "address"),
    [
        ("me@far", "user me\nhostname far\nport 22", "far"),
        ("alias", "hostname 10.0.0.1", "10.0.0.1"),
        ("me@far", "", "far"),
    ],
)
def test_agents_meet_at_the_address_behind_the_name_that_ssh_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, configured: str, address: str
) -> None:
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n[ $1 = -G ] && echo '{configured}'\nexit 0\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text = engine.prepare(["launcher=torchrun", f"launcher.nodes=['{host}',b]", "tracking=none"]).submission()
    assert text is not None and f" {host} " in text
    assert text.count(f"--master-addr={address} ") == 2


@pytest.mark.parametrize(
    ("setup", "begins"),
    [(["A=1 # why", "true &", 'test "$A" = 1'], True), (["false", "true"], False), ([], True)],
)
def test_lines_of_setup_are_lines_of_shell(tmp_path: Path, setup: list[str], begins: bool) -> None:
    [command] = Agents(["far"], setup=setup)._commands(["far"], SubmittedRun(tmp_path, python="echo"), tmp_path, 1)
    done = subprocess.run(["sh", "-c", command[-1]], capture_output=True, text=True, timeout=30)
    assert ("paceline.compat.torchrun" in done.stdout) == begins == (done.returncode == 0), done.stderr


def test_an_agent_that_fails_before_all_have_met_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "GRACE", 0.1)
    failing, waiting = ["sh", "-c", "exit 3"], ["sleep", "600"]
    with subprocess.Popen(waiting) as first, subprocess.Popen(failing) as second:
        assert side_by_side.status_of([first, second], tmp_path / "rendezvous") == 3
        assert first.poll() is None  # it ends with this process
        first.kill()
    (tmp_path / "rendezvous").touch()
    with subprocess.Popen(["sh", "-c", "sleep 0.5; exit 4"]) as first, subprocess.Popen(failing) as second:
        assert side_by_side.status_of([first, second], tmp_path / "rendezvous") == 4  # it went on by itself
