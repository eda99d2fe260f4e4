"""torchrun's agents, one for each host: on this host as child processes, on others over ssh.

Hosts share the folder of runs and the Python environment, at the same paths. An agent ends with its supervisor: here by
the kernel, on another host because its ssh connection ends.
"""

import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Ge, Le

from ...comm.rendezvous import MEETING
from ...conf.errors import ConfigError
from ...tracking.job_files import FOLDER
from ..base.errors import MachineError
from .local_supervisor import LocalSupervisor
from .scheduler import Retries, SubmittedRun

_RANGE = re.compile(r"([1-9]\d{0,3}):([1-9]\d{0,3})")
PORTS = range(20000, 30000)  # below those that the kernel gives to connections
OFTEN = 10.0  # seconds between two looks at hosts that are away
ANSWERS = 20.0  # seconds for a host to answer by ssh, and without a sign of life until its connection counts as lost
PATIENCE = 60.0  # seconds for a command on it, which may wait for a file system


class Agents(LocalSupervisor):
    def __init__(
        self,
        nodes: Annotated[int, Ge(1)] | str | Sequence[str] = 1,
        least: Annotated[int, Ge(1)] | None = None,
        workers_per_node: Annotated[int, Ge(1)] = 2,
        port: Annotated[int, Ge(1), Le(65535)] | None = None,
        setup: Sequence[str] = (),
        retries: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if isinstance(nodes, str):
            if (found := _RANGE.fullmatch(nodes)) is None or least is not None or int(found[1]) > int(found[2]):
                raise ConfigError(
                    f"launcher.nodes={nodes}: must be LEAST:MOST agents here, for instance 1:2 without launcher.least, "
                    "or hosts by their names, for instance [a,b]."
                )
            least, nodes = int(found[1]), int(found[2])
        if not isinstance(nodes, int) and (not nodes or not all(nodes) or any(each.startswith("-") for each in nodes)):
            raise ConfigError(f"launcher.nodes={nodes}: must be hosts by their names, or a number of agents here.")
        self._hosts: list[str | None] = [None] * nodes if isinstance(nodes, int) else list(nodes)
        self.nodes, self.workers_per_node = len(self._hosts), workers_per_node
        self.retries = Retries.of(retries)
        self._least = self.nodes if least is None else least
        if self._least > self.nodes:
            raise ConfigError(f"launcher.least={least}: launcher.nodes has {self.nodes}. Choose at most {self.nodes}.")
        self._here: list[str | None] = []  # the hosts of the present attempt
        self._attempt = Path()
        self._looked = 0.0
        self._port, self._setup = port, tuple(setup)

    def check(self) -> None:
        remote = [host for host in dict.fromkeys(self._hosts) if host is not None]
        if remote and shutil.which("ssh") is None:
            raise MachineError("launcher=torchrun: there is no ssh on this host, which starts the agents on others")
        away: list[str] = []
        for host in remote:
            done = _probe(host)
            if done.returncode == 255:
                away.append(f"ssh does not reach {host} ({' '.join(done.stderr.split())})")
            elif done.returncode:
                away.append(
                    f"{host} does not see {sys.executable}, or {Path.cwd()}. All hosts need both at the same paths"
                )
        if self.nodes - len(away) < self._least:
            raise MachineError(f"launcher.nodes: {'; '.join(away)}")

    def text(self, job: SubmittedRun) -> str:
        commands = self._commands(self._hosts, job, job.run / FOLDER / "1", self._port or PORTS[0])
        return "\n".join(shlex.join(command) for command in commands) + "\n"

    # -- in the supervisor

    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        self._here = [host for host in self._hosts if self._least == self.nodes or _answers(host)]
        if len(self._here) < self._least:
            print(f"{len(self._here)} hosts answer, of {self._least} at least", file=sys.stderr, flush=True)
            return subprocess.Popen(["false"])
        self._attempt = attempt
        port = self._port or PORTS[secrets.randbelow(len(PORTS))]
        commands = self._commands(self._here, job, attempt, port)
        told = [word for command in commands for word in (str(len(command)), *command)]
        beside = [sys.executable, "-P", "-m", "paceline.engine.jobs.side_by_side", str(attempt / MEETING)]
        return subprocess.Popen([*beside, *told])

    def is_better_now(self) -> bool:
        """Returns whether hosts answer that were away when the present attempt began."""
        if time.monotonic() < self._looked + OFTEN:
            return False
        self._looked = time.monotonic()
        return any(_answers(host) for host in self._hosts if host not in self._here)

    def ask_to_stop(self, workers: subprocess.Popen[bytes]) -> None:
        """Ask the agents, not the ssh beside them: without their terminal they would be killed before they save."""
        if None in self._here:
            super().ask_to_stop(workers)
            return
        asked: list[subprocess.Popen[bytes]] = []
        for rank, host in enumerate(self._here):
            command = f"kill -TERM $(cat {shlex.quote(_pid_file(self._attempt, rank))})"
            words = ["ssh", *_QUIET, str(host), command]
            asked.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if all([_status(each) for each in asked]):  # the workers of one tell the others
            raise MachineError("launcher=torchrun: no host was reached that can stop its workers")

    def _commands(self, hosts: Sequence[str | None], job: SubmittedRun, attempt: Path, port: int) -> list[list[str]]:
        """Returns the command of each agent."""
        first = "127.0.0.1" if hosts[0] is None else _address(hosts[0])
        commands: list[list[str]] = []
        for rank, host in enumerate(hosts):
            where = f"--nnodes={len(hosts)} --nproc-per-node={self.workers_per_node} --node-rank={rank}"
            where += f" --master-addr={first} --master-port={port}"
            agent = [job.python, "-P", "-m", "paceline.compat.torchrun", *where.split(), "--no-python", *job.worker]
            variables = [f"{key}={value}" for key, value in job.variables(attempt).items()] + ["OMP_NUM_THREADS=1"]
            if host is None:
                commands.append(["env", *variables, *agent])
                continue
            pid = f"echo $$ > {shlex.quote(_pid_file(attempt, rank))}"
            there = [
                f"cd {shlex.quote(str(Path.cwd()))}",
                *(f"{{ {line}\n}}" for line in self._setup),  # it may end with a comment, or with &
                pid,
                f"exec env {shlex.join([*variables, *agent])}",
            ]
            commands.append(["ssh", *_QUIET, "-tt", host, " && ".join(there)])
        return commands


def _pid_file(attempt: Path, rank: int) -> str:
    return str(attempt / f"agent-{rank}")


def _address(host: str) -> str:
    """Returns the host's name in the network, which ssh's own name for it (USER@HOST, an alias) need not be."""
    found = re.search(r"^hostname (\S+)$", _ssh("-G", host).stdout, re.MULTILINE)
    return found[1] if found else host.rpartition("@")[2]


def _probe(host: str) -> "subprocess.CompletedProcess[str]":
    """Ask the host whether it sees the environment and the folder: status 255 where it does not answer."""
    return _ssh(*_QUIET, host, f"test -x {shlex.quote(sys.executable)} && test -d {shlex.quote(str(Path.cwd()))}")


def _ssh(*words: str) -> "subprocess.CompletedProcess[str]":
    """Returns how the command ended: with status 255 where it takes longer than `PATIENCE`."""
    command = ["ssh", *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 255, "", f"no answer in {PATIENCE:g} s")


def _status(asked: subprocess.Popen[bytes]) -> int:
    """Returns the exit status of an ssh; one that takes too long is killed."""
    try:
        return asked.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        asked.kill()
        return asked.wait()


def _answers(host: str | None) -> bool:
    return host is None or _probe(host).returncode == 0


_QUIET = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWERS:g}")
_QUIET += ("-o", f"ServerAliveInterval={ANSWERS / 4:g}", "-o", "ServerAliveCountMax=4")
