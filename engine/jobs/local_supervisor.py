"""Schedulers that have no jobs of their own: the supervisor is a process of the host where the run was submitted.

It has a session of its own, and outlives the command and the shell that started it.
"""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from ..base.errors import MachineError
from .scheduler import JobState, Scheduler, SubmittedRun


class LocalSupervisor(Scheduler):
    def submit(self, job: SubmittedRun) -> str:
        with (job.run / "logs" / "supervisor.log").open("ab") as log:
            supervisor = subprocess.Popen(
                job.supervisor, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return f"{supervisor.pid}-{_began(supervisor.pid)}@{socket.gethostname()}"

    def look(self, id: str) -> JobState | None:
        number, _, host = id.partition("@")
        pid, _, began = number.partition("-")
        if host != socket.gethostname() or not pid.isdecimal():
            return None
        is_it = began and _began(int(pid)) == began
        return JobState("running", f"process {pid}") if is_it else JobState("over", "ended")

    def cancel(self, id: str, now: bool = False) -> None:
        if (state := self.look(id)) is None:
            raise MachineError(f"job {id} is a process of another host. Cancel the run there.")
        if state.phase == "over":
            return
        pid = int(id.partition("-")[0])
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if now else os.kill(pid, signal.SIGTERM)

    # -- in the supervisor

    def ask_to_stop(self, workers: subprocess.Popen[bytes]) -> None:
        workers.send_signal(signal.SIGTERM)

    def put_back(self) -> None:
        raise AssertionError("nobody limits the time of these workers")


def _began(pid: int) -> str:
    """Returns the time at which a process began, in the kernel's ticks; "" if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in ("Z", "X") else rest[18]
