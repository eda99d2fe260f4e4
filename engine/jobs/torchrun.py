"""torchrun's agents, one for each host: on this host as child processes, on others over ssh.

Hosts share the folder of runs and the Python environment, at the same paths. An agent ends with its supervisor: here by
the kernel, on another host because its ssh connection ends.
"""

import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Ge, Le

from ...conf.errors import ConfigError
from ...tracking.job_files import FOLDER
from ..base.errors import MachineError
from .local_supervisor import LocalSupervisor
from .scheduler import Retries, SubmittedRun

PORTS = range(20000, 30000)  # below those that the kernel gives to connections
ANSWERS = 20.0  # seconds for a host to answer by ssh


class Agents(LocalSupervisor):
    def __init__(
        self,
        nodes: Annotated[int, Ge(1)] | Sequence[str] = 1,
        workers_per_node: Annotated[int, Ge(1)] = 2,
        port: Annotated[int, Ge(1), Le(65535)] | None = None,
        setup: Sequence[str] = (),
        retries: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if not isinstance(nodes, int) and (not nodes or not all(nodes) or any(each.startswith("-") for each in nodes)):
            raise ConfigError(f"launcher.nodes={nodes}: must be hosts by their names, or a number of agents here.")
        self._hosts: list[str | None] = [None] * nodes if isinstance(nodes, int) else list(nodes)
        self.nodes, self.workers_per_node = len(self._hosts), workers_per_node
        self.retries = Retries.of(retries)
        self._port, self._setup = port, tuple(setup)

    def check(self) -> None:
        remote = [host for host in dict.fromkeys(self._hosts) if host is not None]
        if remote and shutil.which("ssh") is None:
            raise MachineError("launcher=torchrun: there is no ssh on this host, which starts the agents on others")
        for host in remote:
            probe = f"test -x {shlex.quote(sys.executable)} && test -d {shlex.quote(str(Path.cwd()))}"
            done = subprocess.run(
                ["ssh", *_QUIET, host, probe], capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            if done.returncode == 255:
                raise MachineError(f"launcher.nodes: ssh does not reach {host} ({' '.join(done.stderr.split())})")
            if done.returncode:
                raise MachineError(
                    f"launcher.nodes: {host} does not see {sys.executable}, or {Path.cwd()}. All hosts need both at "
                    "the same paths."
                )

    def text(self, job: SubmittedRun) -> str:
        commands = self._commands(job, job.run / FOLDER / "1", self._port or PORTS[0])
        return "\n".join(shlex.join(command) for command in commands) + "\n"

    # -- in the supervisor

    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        commands = self._commands(job, attempt, self._port or PORTS[secrets.randbelow(len(PORTS))])
        told = [word for command in commands for word in (str(len(command)), *command)]
        return subprocess.Popen([sys.executable, "-m", "paceline.engine.jobs.side_by_side", *told])

    def _commands(self, job: SubmittedRun, attempt: Path, port: int) -> list[list[str]]:
        """The command of each agent."""
        first = self._hosts[0] or "127.0.0.1"
        commands: list[list[str]] = []
        for rank, host in enumerate(self._hosts):
            where = f"--nnodes={self.nodes} --nproc-per-node={self.workers_per_node} --node-rank={rank}"
            where += f" --master-addr={first} --master-port={port}"
            agent = [job.python, "-m", "torch.distributed.run", *where.split(), "--no-python", *job.worker]
            variables = [f"{key}={value}" for key, value in job.variables(attempt).items()] + ["OMP_NUM_THREADS=1"]
            if host is None:
                commands.append(["env", *variables, *agent])
                continue
            there = [f"cd {shlex.quote(str(Path.cwd()))}", *self._setup, f"exec env {shlex.join([*variables, *agent])}"]
            commands.append(["ssh", *_QUIET, "-tt", host, " && ".join(there)])
        return commands


_QUIET = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWERS:g}")
