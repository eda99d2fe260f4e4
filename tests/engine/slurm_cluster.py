"""A real SLURM of two nodes on this machine, in a temporary folder: munged, slurmctld and two slurmd, without systemd.

A job in the partition `high` takes the nodes of one in `low` or `patient`, which goes back into the queue. `patient`
leaves it a minute to save. A job that was put back waits for `cred_expire` seconds, so that what its nodes still say of
its first run does not count for the second.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from process_table import until
from submitted_runs import pids

START = 60.0  # seconds for daemons to come up on a busy machine
CONF = """
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=40
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=10
SlurmctldTimeout=30
SlurmdTimeout=10
InactiveLimit=0
MpiDefault=none
SwitchType=switch/none
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 MaxTime=120 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP
PartitionName=patient Nodes=ALL PriorityTier=1 GraceTime=60 MaxTime=120 State=UP
"""
NODE = (
    "NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs=4 Sockets=1 CoresPerSocket=4 ThreadsPerCore=1 State=UNKNOWN"
)


class SlurmCluster:
    """`stop` ends all of its daemons."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="paceline-slurm-", dir="/tmp"))
        for name in ("state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        ports, host = _free_ports(3), socket.gethostname()
        nodes = "\n".join(NODE.format(i=i, host=host, port=ports[i]) for i in (1, 2))
        conf = CONF.format(host=host, ports=ports, folder=self.folder, nodes=nodes)
        (self.folder / "slurm.conf").write_text(conf)
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        try:
            files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
            files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
            where = [f"--{option}={self.folder / file}" for option, file in files.items()]
            self._start("munged", "munged", "--foreground", "--force", *where)
            until((self.folder / "munge.socket").exists, START, "munged does not start")
            self.start_controller()
            for node in ("n1", "n2"):
                self.start_node(node)
            until(lambda: self.idle() == {"n1", "n2"}, START, "the nodes do not come up")
        except BaseException:
            self.stop()
            raise

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", self.environment["SLURM_CONF"])

    def kill_controller(self) -> None:
        self._kill("slurmctld")

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node, "-f", self.environment["SLURM_CONF"])

    def lose_node(self, node: str) -> None:
        """Kill its daemon, and all that runs on it."""
        self._kill(node)
        for pid in pids():
            try:
                found = Path(f"/proc/{pid}/environ").read_bytes()
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if f"SLURMD_NODENAME={node}".encode() in found.split(b"\0") or f"slurmstepd-{node}".encode() in words:
                _send(pid, signal.SIGKILL)

    def idle(self) -> set[str]:
        said = self.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%N %t").split()
        return {node for node, state in zip(said[::2], said[1::2], strict=True) if state == "idle"}

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, timeout=30)
        return done.stdout

    def state(self, id: str) -> str:
        return self.ask("squeue", "--noheader", f"--jobs={id}", "--states=all", "--format=%T").strip()

    def start_at_once(self, id: str) -> None:
        """Ends the wait of a job that was put back, whose nodes have not failed."""
        until(lambda: self.state(id) == "PENDING", START, f"job {id} is not put back: {self.state(id)}")
        until(lambda: len(self.idle()) == 2, START, "nodes still complete the job, whose end would count for the next")
        self.ask("scontrol", "update", f"JobId={id}", "StartTime=now")

    @contextmanager
    def occupied(self, id: str, seconds: int) -> Iterator[None]:
        """A step of its own takes the CPUs of a job as soon as they are free."""
        command = ["srun", f"--jobid={id}", "--nodes=2", "--ntasks=2", "sleep", str(seconds)]
        with subprocess.Popen(command, env=os.environ | self.environment, stderr=subprocess.DEVNULL) as step:
            yield
            step.terminate()

    def stop(self) -> None:
        for name in reversed(self._daemons):
            self._daemons[name].terminate()
        for name in list(self._daemons):
            self._kill(name)
        for pid in pids():
            try:
                if str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes() and pid != os.getpid():
                    _send(pid, signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        try:
            daemon.wait(0.5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
