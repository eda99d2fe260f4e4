"""SLURM, by its own commands: sbatch, squeue, scontrol and scancel (https://slurm.schedmd.com/sbatch.html).

The batch script is ours, and is kept in the run's directory. It needs no accounting database, and nothing is pickled:
docs/decisions/0112-sbatch-without-a-library.md says why no library writes it. Inside the job, supervisor.py starts the
workers by srun, hears the signal that comes before the time limit, and puts the job back into the queue.
"""

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Ge

from ...conf.errors import ConfigError
from ...tracking.job_files import FOLDER
from ..base.errors import MachineError
from .scheduler import JobState, Retries, Scheduler, SubmittedRun

PATIENCE = 30.0  # seconds for an answer of SLURM's commands
STEP = 60  # seconds in which SLURM gives the workers their nodes, which the job has
START = 90  # seconds of a time limit beside the grace: the warning may come a minute early, and workers start
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING")
UNREACHABLE = (
    "Unable to contact",
    "Connection refused",
    "Socket timed out",
    "Zero Bytes",
    "connect failure",
    "failed to fetch config",
)
ELSEWHERE = "Run it on a login node, or choose paceline plan, which asks no scheduler."
_UNITS = {"s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60}
# Words of sbatch --test-only, and the key that each is about
_KEYS = (
    ("partition", "partition"),
    ("account", "account"),
    ("qos", "qos"),
    ("time limit", "time"),
    ("feature", "constraint"),
    ("gres", "gres"),
    ("generic resource", "gres"),
    ("node configuration", "nodes"),
    ("node count", "nodes"),
)
# Options that launcher.extra may not set: with a knob of their own, and on which the supervisor relies
_KNOBS = {"nodes": "nodes", "ntasks-per-node": "workers_per_node", "cpus-per-task": "cpus_per_worker", "time": "time"}
_KNOBS |= {key: key for key in ("partition", "account", "qos", "gres", "constraint")} | {"ntasks": "workers_per_node"}
_OWN = ("array", "output", "open-mode", "requeue", "no-requeue", "signal", "wrap", "parsable", "test-only")


class Slurm(Scheduler):
    def __init__(
        self,
        nodes: Annotated[int, Ge(1)] = 1,
        workers_per_node: Annotated[int, Ge(1)] = 2,
        cpus_per_worker: Annotated[int, Ge(1)] = 1,
        time: str | int | None = None,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        gres: str | None = None,
        constraint: str | None = None,
        grace: Annotated[int, Ge(1)] = 90,
        setup: Sequence[str] = (),
        extra: Sequence[str] = (),
        retries: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.nodes, self.workers_per_node, self.grace = nodes, workers_per_node, grace
        self.retries = Retries.of(retries)
        self._minutes = None if time is None else minutes_of(str(time))
        if self._minutes is not None and 60 * self._minutes < grace + START:
            raise ConfigError(
                f"launcher.time={time}: SLURM's warning comes up to {grace + 60} s before the limit "
                f"(launcher.grace={grace}), and the workers start first. Choose at least {grace + START}s, or a "
                "smaller launcher.grace."
            )
        self._setup, self._extra, self._partition = tuple(setup), tuple(extra), partition
        for word in self._extra:
            _check_extra(word)
        asked = {
            "nodes": nodes,
            "ntasks-per-node": workers_per_node,
            "cpus-per-task": cpus_per_worker,
            "time": None if self._minutes is None else -(-int(self._minutes * 60) // 60),
            "partition": partition,
            "account": account,
            "qos": qos,
            "gres": gres,
            "constraint": constraint,
        }
        for key, value in asked.items():
            _check_one_line(key, str(value))
        self._asked = [f"--{key}={value}" for key, value in asked.items() if value is not None]
        self._cpus_per_task = f"--cpus-per-task={cpus_per_worker}"
        self._cpus = workers_per_node * cpus_per_worker

    def text(self, job: SubmittedRun) -> str:
        log = str(job.run / "logs" / "slurm.log").replace("%", "%%")
        return self.script(job.run.name, log, [], shlex.join(job.supervisor))

    def script(self, name: str, log: str, own: Sequence[str], command: str) -> str:
        """Returns a batch script. `log`: where its words go, in sbatch's pattern; `own`: further options of it.

        Raises `ConfigError`.
        """
        if "\\" in log:  # sbatch takes it for the end of its pattern's symbols
            raise ConfigError(
                f"launcher=slurm: SLURM writes no log to {log.replace('%%', '%')}, whose name has a backslash. "
                "Submit from another folder."
            )
        options = [
            f"--job-name=paceline-{name}",
            *self._asked,
            f"--output={log}",
            "--open-mode=append",
            "--requeue",
            f"--signal=B:USR1@{self.grace}",
            *own,
            *self._extra,
        ]
        lines = ["#!/bin/bash", *(f"#SBATCH {_quoted(option)}" for option in options), *self._setup]
        return "\n".join([*lines, f"exec {command}", ""])

    # -- questions and requests

    def check(self) -> None:
        for program in ("sbatch", "squeue", "scontrol", "scancel", "sinfo"):
            if shutil.which(program) is None:
                raise MachineError(f"launcher=slurm: there is no {program} on this host. {ELSEWHERE}")
        partitions = _partitions()
        chosen = next((each for each in partitions if each.is_default), partitions[0] if partitions else None)
        if self._partition is not None:
            names = ", ".join(each.name for each in partitions)
            found = [each for each in partitions if each.name == self._partition]
            if not found:
                raise ConfigError(f"launcher.partition={self._partition}: SLURM has no such partition. Choose {names}.")
            chosen = found[0]
        if chosen is not None:
            chosen.check(self.nodes, self._cpus, self._minutes)
        tested = _asked_slurm(["sbatch", "--test-only", *self._asked, *self._extra, "--wrap=true"])
        if tested.returncode:
            raise ConfigError(_refusal(tested.stderr, self._asked))

    def submit(self, job: SubmittedRun) -> str:
        return self.hand_in(job.run / FOLDER / "batch.sh", self.text(job))

    def hand_in(self, script: Path, text: str) -> str:
        """Submits a batch script, kept in the file `script`; returns SLURM's id. Raises `MachineError`."""
        script.write_text(text)
        said = _asked_slurm(["sbatch", "--parsable", str(script)])
        if said.returncode:
            raise MachineError(f"launcher=slurm: sbatch refused the job ({_words(said.stderr)})")
        return said.stdout.strip().partition(";")[0]

    def look(self, id: str) -> JobState | None:
        try:
            said = _run(["squeue", "--noheader", f"--jobs={id}", "--states=all", "--format=%T|%r"])
        except (OSError, subprocess.TimeoutExpired):
            return None
        if said.returncode and "Invalid job id" not in said.stderr:
            return None
        if said.returncode or not said.stdout.strip():
            return JobState("over", "forgotten by SLURM")
        lines = [line.partition("|") for line in said.stdout.strip().splitlines()]  # several of an array
        word, _, reason = next((each for each in lines if each[0] in (*WAITING, *RUNNING)), lines[0])
        phase = "waiting" if word in WAITING else "running" if word in RUNNING else "over"
        return JobState(phase, word if reason in ("", "None") else f"{word} ({reason})")

    def cancel(self, id: str, now: bool = False) -> None:
        said = _asked_slurm(["scancel", *(["--signal=KILL", "--full"] if now else []), "--", id])
        if said.returncode and "Invalid job id" not in said.stderr:
            raise MachineError(f"launcher=slurm: scancel {id} failed ({_words(said.stderr)})")

    # -- in the job, whose commands find it by SLURM_JOB_ID

    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        says = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID "
        says += f'LOCAL_WORLD_SIZE={self.workers_per_node} MASTER_ADDR= MASTER_PORT=0; exec "$@"'
        # srun is told what it would not take from the job: SBATCH_EXPORT=NONE reaches it, and --cpus-per-task does not
        # srun is also given an end to its wait: after a lost node SLURM may count a job's nodes wrong, and would never
        # let a step begin ("Requested nodes are busy")
        options = ["--export=ALL", self._cpus_per_task, "--kill-on-bad-exit=0", "--wait=0", f"--immediate={STEP}"]
        command = ["srun", *options, "sh", "-c", says, "worker", *job.worker]
        return subprocess.Popen(command, env=os.environ | job.variables(attempt))

    def ask_to_stop(self, workers: subprocess.Popen[bytes]) -> None:
        if _this_job().get("JobState") == "RUNNING":  # else SLURM has asked them, and scancel would wait for their end
            _asked_slurm(["scancel", "--signal=TERM", os.environ["SLURM_JOB_ID"]])  # no --batch: the workers alone

    def is_preempted(self) -> bool:
        """Returns whether SLURM has put the job back, or is to do so once its GraceTime is over."""
        try:
            job = _this_job()
        except MachineError:
            return False
        is_back = int(job.get("Restarts", 0)) > int(os.environ.get("SLURM_RESTART_COUNT", 0))
        return is_back or (job.get("JobState") == "RUNNING" and job.get("PreemptTime", "None") != "None")

    def put_back(self) -> None:
        said = _asked_slurm(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
        if "pending execution" in said.stderr:  # SLURM had done so already
            return
        if said.returncode > 0:
            raise MachineError(f"launcher=slurm: the job cannot be put back into the queue ({_words(said.stderr)})")
        # SLURM ends this process, after its KillWait. Were it to end by itself, or by SIGTERM at once, the job might
        # count as failed while it is put back.
        time.sleep(2 * PATIENCE)


def _this_job() -> dict[str, str]:
    said = _asked_slurm(["scontrol", "show", "job", os.environ["SLURM_JOB_ID"]])
    return dict(re.findall(r"(\w+)=(\S+)", said.stdout))


def minutes_of(text: str) -> float:
    """Returns the minutes of 90s, 30m, 12h or 3d, or of SLURM's forms: minutes, MM:SS, HH:MM:SS and D-HH:MM:SS.

    Raises `ConfigError`.
    """
    if found := re.fullmatch(r"(\d+)([smhd])", text):
        minutes = int(found[1]) * _UNITS[found[2]]
    elif found := re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text):
        days, first, second, third = (int(each or 0) for each in found.groups())
        if found[1] or found[4]:  # D-HH[:MM[:SS]] or HH:MM:SS
            minutes = days * 1440 + first * 60 + second + third / 60
        else:
            minutes = first + second / 60
    else:
        minutes = 0
    if minutes <= 0:
        raise ConfigError(
            f"launcher.time={text}: is no length of time. Choose for instance 30m, 12h, 3d or 1-12:00:00."
        )
    return minutes


class SlurmPartition:
    """A partition, as a line of sinfo describes it."""

    def __init__(self, line: str) -> None:
        name, limit, nodes, cpus = line.split("|")
        self.is_default, self.name = name.endswith("*"), name.removesuffix("*")
        self._limit = None if limit in ("infinite", "n/a") else minutes_of(limit)
        self._nodes, self._cpus = int(nodes), int(cpus.removesuffix("+"))

    def check(self, nodes: int, cpus: int, minutes: float | None) -> None:
        """Raises `ConfigError` for a job that the partition can never run."""
        if nodes > self._nodes:
            raise ConfigError(
                f"launcher.nodes={nodes}: the partition {self.name} has {self._nodes}. Choose at most {self._nodes}."
            )
        if cpus > self._cpus:
            raise ConfigError(
                f"launcher.workers_per_node: takes {cpus} CPUs of each node with launcher.cpus_per_worker, and the "
                f"nodes of {self.name} have {self._cpus}. Choose fewer of either."
            )
        if minutes is not None and self._limit is not None and minutes > self._limit:
            raise ConfigError(
                f"launcher.time: is {minutes:g} minutes, and the partition {self.name} allows {self._limit:g}. "
                f"Choose at most {self._limit:g}m."
            )


def _partitions() -> list[SlurmPartition]:
    said = _asked_slurm(["sinfo", "--noheader", "--format=%P|%l|%D|%c"])
    return [SlurmPartition(line) for line in said.stdout.split() if line.count("|") == 3]


def _check_extra(word: str) -> None:
    """Raises `ConfigError` for what is no option of sbatch, or one that would undo the script's own."""
    if not word.startswith("--"):
        raise ConfigError(f"launcher.extra={word}: must be options of sbatch, each beginning with --")
    _check_one_line("extra", word)
    option = word[2:].partition("=")[0]
    if (knob := _KNOBS.get(option)) is not None:
        raise ConfigError(f"launcher.extra={word}: the job has this option already. Choose launcher.{knob}.")
    if option in _OWN:
        raise ConfigError(f"launcher.extra={word}: paceline starts, follows and restarts the job by it. Leave it out.")


def _check_one_line(key: str, value: str) -> None:
    """Raises `ConfigError` for a value that #SBATCH cannot hold: what follows its line is shell."""
    if not value.isprintable() or "\\" in value:
        raise ConfigError(
            f"launcher.{key}={value!r}: has a line break, another control character or a backslash. Choose a value "
            "without it."
        )


def _quoted(option: str) -> str:
    """Returns an option as #SBATCH takes it: with double quotes, where it needs any."""
    return option if re.fullmatch(r"[\w@%+=:,./-]+", option) else '"' + option.replace('"', '\\"') + '"'


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)


def _asked_slurm(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Returns the answer of a command of SLURM. Raises `MachineError` if SLURM does not answer."""
    try:
        said = _run(command)
    except FileNotFoundError:
        raise MachineError(f"launcher=slurm: there is no {command[0]} on this host. {ELSEWHERE}") from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"launcher=slurm: {command[0]} gave no answer in {PATIENCE:g} s") from None
    if said.returncode and any(word in said.stderr for word in UNREACHABLE):
        raise MachineError(f"launcher=slurm: SLURM cannot be reached ({_words(said.stderr)})")
    return said


def _words(stderr: str) -> str:
    lines = [line.partition("error: ")[2] or line for line in stderr.splitlines() if line.strip()]
    return "; ".join(lines) or "it does not say why"


def _refusal(stderr: str, asked: Sequence[str]) -> str:
    words = _words(stderr)
    key = next((key for said, key in _KEYS if said in words.lower()), None)
    given = dict(option.removeprefix("--").split("=", 1) for option in asked)
    where = "launcher=slurm" if key is None else f"launcher.{key}={given.get(key, 'null')}"
    return f"{where}: SLURM refuses such a job ({words})"
