"""Jobs without a scheduler's daemons: how the supervisor starts workers again, and the text that is submitted."""

import errno
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path

import pytest
from needs import needs_submitit
from stored_configs import to_yaml

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import Prepared
from paceline.engine.base.errors import MachineError, WorkerFailedError
from paceline.engine.config.compose import compose
from paceline.engine.config.stored import read_stored
from paceline.engine.config.targets import build
from paceline.engine.jobs import ends, slurm, submission, supervisor
from paceline.engine.jobs.asking import cancel, jobs_under
from paceline.engine.jobs.scheduler import JobState, Retries, Scheduler, SubmittedRun
from paceline.engine.jobs.slurm import Slurm, SlurmPartition, minutes_of
from paceline.engine.jobs.supervisor import Supervisor
from paceline.engine.jobs.torchrun import Agents
from paceline.tracking.alive import held
from paceline.tracking.errors import CorruptRunError, RunNameError, StorageError
from paceline.tracking.job_files import JobEnd, JobNote, forget_job, open_job
from paceline.tracking.records import End
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.state import state_of
from paceline.tracking.stored import check_removable, stored


class Scripted(Scheduler):
    """Attempts that end as they are told to, one after another, each in a process of its own."""

    nodes, workers_per_node = 1, 2

    def __init__(self, run: RunDirectory, *attempts: "Attempt", lost: float = inf, failed: float = 0) -> None:
        self._run, self._attempts, self.retries = run, list(attempts), Retries(lost, failed)
        self.started: list[Path] = []
        self.grows: set[int] = set()  # the attempts, from 1, in which there is more room
        self.asked: list[int] = []  # the attempts whose workers were asked to stop
        self.preempted = self.is_back = False
        self.away = 0  # times that it does not answer

    def check(self) -> None: ...

    def text(self, job: SubmittedRun) -> str:
        return ""

    def submit(self, job: SubmittedRun) -> str:
        return "1"

    def look(self, id: str) -> JobState | None:
        return None

    def cancel(self, id: str, now: bool = False) -> None: ...

    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        self.started.append(attempt)
        self._attempts.pop(0).happen(self._run, attempt)
        last = 3 * supervisor.LOOK if self.grows or self.away else 0
        return subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({last})"], stdin=subprocess.DEVNULL)

    def ask_to_stop(self, workers: subprocess.Popen[bytes]) -> None:
        self.away -= 1
        if self.away >= 0:
            raise MachineError("SLURM cannot be reached")
        self.asked.append(len(self.started))

    def is_better_now(self) -> bool:
        return len(self.started) in self.grows

    def is_preempted(self) -> bool:
        return self.preempted

    def put_back(self) -> None:
        self.is_back = True


class Attempt:
    """An attempt that makes `steps` steps (0: its workers do not meet), and the errors of some of its workers."""

    def __init__(self, steps: int, *errors: tuple[str, str, int], complete: bool = False) -> None:
        self._steps, self._errors, self._complete = steps, errors, complete

    def happen(self, run: RunDirectory, attempt: Path) -> None:
        with run.metrics.open("a") as file:
            if self._steps:
                file.write(json.dumps({"kind": "start"}) + "\n")
                file.write(json.dumps({"kind": "step", "step": self._steps}) + "\n")
        for rank, (error, message, exit_code) in enumerate(self._errors):
            ends.say(attempt, rank, {"error": error, "message": message, "exit_code": exit_code})
        if self._complete:
            run.write_summary({"status": "completed"})


BUG = ("WorkerFailedError", "worker 0 failed: ValueError: no such column", 4)
LOST_PEER = ("PeerLostError", "worker 1 has died", 4)
STOPPED = ("InterruptedRunError", "stopped by SIGTERM", 143)
REFUSED = ("ConfigError", "data.path=x: there is no such file", 2)
DONE = Attempt(9, complete=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "mine")
    (made.path / "job").mkdir()
    monkeypatch.setattr(supervisor, "PAUSES", (0.0,))
    return made


def supervised(run: RunDirectory, scheduler: Scheduler) -> JobEnd:
    status = Supervisor(SubmittedRun(run.path), scheduler).run()
    end = JobEnd.read(run.path)
    assert end is not None and end.exit_code == status, end
    return end


@pytest.mark.parametrize("error", ["PeerLostError", "TooFewClientsError"])
def test_lost_workers_are_started_again_until_the_run_is_complete(run: RunDirectory, error: str) -> None:
    scheduler = Scripted(run, Attempt(3, (error, *LOST_PEER[1:])), Attempt(5), DONE)
    assert supervised(run, scheduler) == JobEnd(0, "", 2, 0, "a worker was lost: worker 1 has died")
    assert [path.name for path in scheduler.started] == ["1", "2", "3"]


def test_an_error_of_the_program_is_not_tried_again(run: RunDirectory) -> None:
    """It comes before the errors of those that lost the worker."""
    scheduler = Scripted(run, Attempt(3, BUG, LOST_PEER))
    assert supervised(run, scheduler) == JobEnd(4, BUG[1])


def test_an_error_of_the_program_is_tried_again_as_often_as_is_allowed(run: RunDirectory) -> None:
    scheduler = Scripted(run, Attempt(3, BUG), Attempt(4, BUG), Attempt(5, BUG), failed=2)
    assert supervised(run, scheduler) == JobEnd(4, BUG[1], 0, 2, BUG[1])


@pytest.mark.parametrize("code", supervisor.FINAL)
def test_what_would_come_again_is_never_tried_again(run: RunDirectory, code: int) -> None:
    scheduler = Scripted(run, Attempt(3, (*REFUSED[:2], code)), failed=5)
    assert supervised(run, scheduler) == JobEnd(code, REFUSED[1])


def test_the_same_end_at_the_same_step_twice_ends_the_run(run: RunDirectory) -> None:
    end = supervised(run, Scripted(run, Attempt(3, BUG), Attempt(3, BUG), DONE, failed=9))
    assert end.failed == 1 and "twice at this step" in end.message


def test_five_losses_on_the_way_do_not(run: RunDirectory) -> None:
    end = supervised(run, Scripted(run, *(Attempt(step, LOST_PEER) for step in range(1, 6)), DONE))
    assert (end.exit_code, end.lost) == (0, 5)


def test_workers_that_do_not_meet_are_started_again_for_a_while(run: RunDirectory) -> None:
    """A lost node is missed for some seconds before its scheduler ends the job."""
    end = supervised(run, Scripted(run, Attempt(3, LOST_PEER), Attempt(0), Attempt(0), DONE))
    assert (end.exit_code, end.lost) == (0, 3)


def test_workers_that_never_meet_end_the_run(run: RunDirectory) -> None:
    end = supervised(run, Scripted(run, *(Attempt(0) for _ in range(supervisor.IN_VAIN))))
    assert end.lost == supervisor.IN_VAIN - 1 and "so often at this step" in end.message


@pytest.mark.slow
def test_more_room_is_no_loss_and_is_taken_again_after_one(run: RunDirectory) -> None:
    scheduler = Scripted(run, Attempt(3, STOPPED), Attempt(4, LOST_PEER), Attempt(5, STOPPED), DONE)
    scheduler.grows = {1, 2, 3}
    end = supervised(run, scheduler)
    assert (end.exit_code, end.lost) == (0, 1) and scheduler.asked == [1, 2, 3]


def stopped(scheduler: Scripted, run: RunDirectory, *signals: int) -> JobEnd | None:
    """Returns the end of a job whose supervisor gets these signals."""
    supervises = Supervisor(SubmittedRun(run.path), scheduler)
    for number in signals:
        supervises.hear(number)
    supervises.run()
    return JobEnd.read(run.path)


def test_a_job_that_comes_back_has_not_ended(run: RunDirectory) -> None:
    assert stopped(scheduler := Scripted(run, Attempt(3, STOPPED)), run, signal.SIGUSR1) is None and scheduler.is_back
    scheduler = Scripted(run, Attempt(4, STOPPED))
    scheduler.preempted = True
    assert stopped(scheduler, run) is None and scheduler.is_back


def test_a_job_that_is_cancelled_at_its_time_limit_stays_away(run: RunDirectory) -> None:
    scheduler = Scripted(run, Attempt(3, STOPPED))
    end = stopped(scheduler, run, signal.SIGUSR1, signal.SIGTERM)
    assert end is not None and end.exit_code == 143 and not scheduler.is_back


def test_a_scheduler_that_does_not_put_the_job_back_is_named(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise MachineError("launcher=slurm: the job cannot be put back")

    monkeypatch.setattr(scheduler := Scripted(run, Attempt(3, STOPPED)), "put_back", refuse)
    end = stopped(scheduler, run, signal.SIGUSR1)
    assert end == JobEnd(143, "stopped by SIGTERM; launcher=slurm: the job cannot be put back")


def test_workers_are_asked_to_stop_until_the_scheduler_can_be_reached(run: RunDirectory) -> None:
    scheduler = Scripted(run, Attempt(3, STOPPED))
    scheduler.away = 1
    stopped(scheduler, run, signal.SIGTERM)
    assert scheduler.asked == [1]


def test_losses_may_be_limited(run: RunDirectory) -> None:
    end = supervised(run, Scripted(run, Attempt(1), Attempt(2), DONE, lost=1))
    assert (end.exit_code, end.lost) == (4, 1)


def test_a_submitted_run_is_neither_dead_nor_interrupted_before_its_job_says_so(run: RunDirectory) -> None:
    JobNote("slurm", "12", "login", "2026-01-01T00:00:00").write(run.path)
    run.add(End("interrupted", "was asked to stop"))  # at the time limit, before it was put back
    assert state_of(run) == ("submitted", "job 12 of slurm")
    with pytest.raises(RunNameError, match="mine: still goes on"):
        check_removable(stored(run.path.parent))
    JobEnd(130, "job 12 was cancelled").write(run.path)
    assert state_of(run)[0] == "interrupted"


def test_a_job_that_is_not_taken_leaves_the_name_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Slurm, job: SubmittedRun) -> str:
        raise MachineError("launcher=slurm: sbatch refused the job")

    monkeypatch.setattr(Slurm, "check", lambda _: None)
    monkeypatch.setattr(Slurm, "submit", refuse)
    for _ in range(2):
        with pytest.raises(MachineError, match="sbatch refused the job"):
            engine.run(["launcher=slurm", "tracking=none"], name="mine", root=tmp_path, quiet=True)
    assert not (tmp_path / "mine").exists()


def resumable(root: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """A run of SLURM without a job, as --resume finds it. Each submission gets job 12."""
    monkeypatch.setattr(Slurm, "check", lambda _: None)
    monkeypatch.setattr(Slurm, "submit", lambda *_: "12")
    engine.run(["launcher=slurm", "tracking=none"], name="mine", root=root, quiet=True, detach=True)
    forget_job(root / "mine")
    prepared = engine.prepare(["launcher=slurm", "tracking=none"], name="other", root=root)
    found = RunDirectory(root / "mine")
    return replace(prepared, directory=found, stored=read_stored(found))


def test_of_two_submissions_of_a_run_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = resumable(tmp_path, monkeypatch)
    assert prepared.directory is not None
    with (
        submission.alone(prepared.directory),
        pytest.raises(ConfigError, match="--resume mine: another command submits this run now"),
    ):
        engine.run(prepared, root=tmp_path, quiet=True, detach=True)
    engine.run(prepared, root=tmp_path, quiet=True, detach=True)
    with pytest.raises(ConfigError, match=r"^--resume mine: job 12 of launcher=slurm has this run"):
        engine.run(prepared, root=tmp_path, quiet=True, detach=True)  # it had looked before the other was through


def test_each_submission_has_a_token_that_nobody_else_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, file = resumable(tmp_path, monkeypatch), tmp_path / "mine" / "job" / "token"
    before = file.read_text()
    file.chmod(0o644)
    engine.run(prepared, root=tmp_path, quiet=True, detach=True)
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text() != before, "others may know the earlier one"


def test_a_run_folder_that_takes_no_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = resumable(tmp_path, monkeypatch)
    monkeypatch.setattr(submission, "make_token", lambda _: _raise(OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/mine/job: Read-only file system"):
        engine.run(prepared, root=tmp_path, quiet=True, detach=True)
    with pytest.raises(StorageError, match="Read-only file system"):
        engine.run(["launcher=slurm", "tracking=none"], name="new", root=tmp_path, quiet=True, detach=True)
    assert not (tmp_path / "new").exists()


def test_a_job_that_cannot_be_noted_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, cancelled = resumable(tmp_path, monkeypatch), list[tuple[str, bool]]()
    monkeypatch.setattr(Slurm, "cancel", lambda _, id, now=False: cancelled.append((id, now)))
    monkeypatch.setattr(JobNote, "write", lambda *_: _raise(StorageError("the disk is full")))
    with pytest.raises(StorageError, match="the disk is full"):
        engine.run(prepared, root=tmp_path, quiet=True, detach=True)
    assert cancelled == [("12", True)]


def _raise(error: Exception) -> None:
    raise error


def test_a_folder_with_a_backslash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slurm, "check", lambda _: None)
    folder = tmp_path / "back\\slash"
    with pytest.raises(ConfigError, match=r"back\\slash/mine/logs/slurm.log, whose name has a backslash"):
        engine.run(["launcher=slurm", "tracking=none"], name="mine", root=folder, quiet=True)
    assert not (folder / "mine").exists()


def test_a_job_file_of_a_later_version_is_not_called_damaged(run: RunDirectory) -> None:
    note_of(run, "12")
    file = run.path / "job.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "cluster": "b", "priority": 3}))
    with pytest.raises(CorruptRunError, match=r"has cluster, priority, which this version .*a later one wrote it"):
        open_job(run.path)


def test_a_run_that_a_job_has_is_not_trained_beside_it(run: RunDirectory) -> None:
    JobNote("slurm", "12", "login", "2026-01-01T00:00:00").write(run.path)
    with pytest.raises(ConfigError, match=r"^--resume mine: job 12 of launcher=slurm has this run"):
        engine.prepare(["launcher=local"], resume="mine", root=run.path.parent)


def note_of(run: RunDirectory, id: str, launcher: str = "slurm") -> None:
    JobNote(launcher, id, "login", "2026-01-01T00:00:00").write(run.path)


@pytest.mark.parametrize("damage", ['{"id": "12"', '{"id": 12, "launcher": "slurm", "host": "h", "submitted": 3}', ""])
def test_a_damaged_job_file_hides_no_other_job(run: RunDirectory, damage: str) -> None:
    other = RunDirectory.create(run.path.parent, "other")
    for each in (run, other):
        (each.path / "job").mkdir(exist_ok=True)
        note_of(each, "12")
    JobEnd(0, "").write(other.path)
    if damage:  # else its configuration is gone
        (run.path / "job.json").write_text(damage)
    found = {job.run: job.word for job in jobs_under(run.path.parent)}
    assert found["other"] == "ended with status 0" and str(run.path) in found["mine"]


@pytest.mark.parametrize(
    "end",
    ["[" * 100_000, '{"exit_code": 0, "message": "", "lost": "a", "failed": 1}', '{"exit_code": 1e400, "message": []}'],
    ids=["deep", "lost", "message"],
)
def test_an_end_that_no_supervisor_wrote_is_none(run: RunDirectory, end: str) -> None:
    note_of(run, "12")
    (run.path / "job" / "end.json").write_text(end)
    assert JobEnd.read(run.path) is None and open_job(run.path) is not None
    assert [job.end for job in jobs_under(run.path.parent)] == [None]


def test_the_end_of_a_job_is_a_regular_file(run: RunDirectory) -> None:
    note_of(run, "12")
    os.mkfifo(run.path / "job" / "end.json")
    assert JobEnd.read(run.path) is None


def test_a_job_of_a_run_that_no_scheduler_starts_is_told(run: RunDirectory) -> None:
    run.write_config(to_yaml(compose(["name=mine"])))
    note_of(run, "12")
    [told] = jobs_under(run.path.parent)
    assert told.word == "launcher=auto: paceline submits nothing to it. No job has this run."
    with pytest.raises(ConfigError, match="No job has this run"):
        cancel(run, now=False)


def test_an_ended_job_is_not_cancelled_again(run: RunDirectory) -> None:
    note_of(run, "12")
    JobEnd(143, "stopped").write(run.path)
    with pytest.raises(ConfigError, match=r"^mine: its job 12 is over"):
        cancel(run, now=False)


def test_a_run_that_goes_on_elsewhere_is_not_written_off(run: RunDirectory) -> None:
    """A host of the same name, or a container of this one, has the process."""
    run.write_config(to_yaml(compose(["name=mine", "launcher=torchrun"])))
    note_of(run, f"1-0@{socket.gethostname()}", "torchrun")
    with (
        held(run.metrics),
        pytest.raises(MachineError, match=r"^mine: its job 1-0@.* is over here, and the run goes on"),
    ):
        cancel(run, now=False)
    assert open_job(run.path) is not None
    assert cancel(run, now=False).endswith("was over") and open_job(run.path) is None


@pytest.mark.parametrize("id", ["0-", "OWN-", "-", "1-0"])
def test_a_process_that_is_no_supervisor_is_not_a_job(id: str) -> None:
    """An id without the time at which the process began is nobody's: signals to process 0 go to the whole group."""
    state = Agents().look(f"{id.replace('OWN', str(os.getpid()))}@{socket.gethostname()}")
    assert state is None or state.phase == "over"


def test_a_job_that_ends_without_a_word_is_closed(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "SETTLES", 0.0)
    monkeypatch.setattr(submission, "LOOK", 0.01)
    note = JobNote("slurm", "12", "login", "2026-01-01T00:00:00")
    note.write(run.path)
    scheduler = Scripted(run)
    monkeypatch.setattr(scheduler, "look", lambda id: JobState("over", "NODE_FAIL"))
    with pytest.raises(WorkerFailedError, match=r"^job 12 ended and did not say how \(NODE_FAIL\)$"):
        submission.follow_to_the_end(run, scheduler, note, [], lambda text: None)
    assert open_job(run.path) is None and JobEnd.read(run.path) is not None


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90s", 1.5), ("30m", 30), ("3d", 4320), ("45", 45), ("10:30", 10.5), ("1:30:00", 90), ("1-12:00:00", 2160)],
)
def test_lengths_of_time(text: str, minutes: float) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "0m", "soon", "-5m", "5 m", "1w"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no length of time"):
        minutes_of(text)


def test_a_time_without_a_unit_is_slurms_minutes(tmp_path: Path) -> None:
    chosen = compose(["launcher=slurm", "launcher.time=30"]).choice("launcher")
    slurm = build("launcher", chosen, Scheduler, (), {})
    assert "#SBATCH --time=30\n" in slurm.text(SubmittedRun(tmp_path / "run", ()))


def test_the_script_asks_for_what_the_knobs_say(tmp_path: Path) -> None:
    slurm = Slurm(
        nodes=2, workers_per_node=8, cpus_per_worker=4, time="150s", gres="gpu:8", setup=["module load cuda"], grace=60
    )
    lines = slurm.text(SubmittedRun(tmp_path / "a run", ("mine",), python="/usr/bin/python3")).splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert {"--nodes=2", "--ntasks-per-node=8", "--cpus-per-task=4", "--time=3", "--gres=gpu:8"} <= set(asked)
    assert "--signal=B:USR1@60" in asked and "--requeue" in asked and '"--job-name=paceline-a run"' in asked
    assert lines[-2:] == [
        "module load cuda",
        f"exec /usr/bin/python3 -P -m paceline.engine.jobs.supervisor '{tmp_path}/a run' mine",
    ]


def flags(text: str) -> dict[str, str]:
    """Returns the options of sbatch in a batch script."""
    words = [shlex.split(line.removeprefix("#SBATCH "))[0] for line in text.splitlines() if line.startswith("#SBATCH ")]
    found = [word.removeprefix("--").partition("=") for word in words]
    return {key: value for key, _, value in found}


@needs_submitit
@pytest.mark.parametrize("array", [None, 3])
def test_sbatch_is_asked_for_the_same_as_by_submitit(array: int | None, tmp_path: Path) -> None:
    from submitit.slurm.slurm import _make_sbatch_string

    theirs = _make_sbatch_string(
        "true",
        tmp_path,
        job_name="paceline-mine",
        nodes=3,
        ntasks_per_node=4,
        cpus_per_task=6,
        time=90,
        partition="gpu",
        account="me",
        qos="high",
        gres="gpu:4",
        constraint="a100|h100",
        signal_delay_s=120,
        exclusive=True,
        map_count=array,
        additional_parameters={"requeue": True},
        stderr_to_stdout=True,
    )
    ours = Slurm(
        nodes=3,
        workers_per_node=4,
        cpus_per_worker=6,
        time="90m",
        partition="gpu",
        account="me",
        qos="high",
        gres="gpu:4",
        constraint="a100|h100",
        grace=120,
        extra=["--exclusive"],
    )
    own = [] if array is None else [f"--array=0-{array - 1}"]
    found, expected = flags(ours.script("mine", str(tmp_path / "log"), own, "true")), flags(theirs)
    del found["output"], expected["output"], expected["wckey"]  # which names submitit in SLURM's accounting
    assert found.pop("signal") == "B:USR1@120" and expected.pop("signal").endswith("@120")  # ours is the supervisor's
    if array is not None:
        expected["array"] = expected["array"].removesuffix("%3")  # as many at once as there are
    assert found == expected


@pytest.mark.parametrize("key", ["partition", "account", "qos", "gres", "constraint"])
@pytest.mark.parametrize("value", ["a\ndate\n#", "a\r", "a\x1b[2J", "a\\"])
def test_a_setting_that_would_leave_its_line_of_the_script_is_refused(key: str, value: str) -> None:
    """A further line would be shell, which a file may not set."""
    with pytest.raises(ConfigError, match=rf"^launcher\.{key}='a"):
        partial(Slurm, **{key: value})()
    with pytest.raises(ConfigError, match=r"^launcher\.extra='--comment=a"):
        Slurm(extra=[f"--comment={value}"])


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("--nodes=5", "the job has this option already. Choose launcher.nodes."),
        ("--ntasks=7", "the job has this option already. Choose launcher.workers_per_node."),
        ("--array=0-3", "paceline starts, follows and restarts the job by it. Leave it out."),
        ("--no-requeue", "paceline starts, follows and restarts the job by it. Leave it out."),
    ],
)
def test_extra_options_undo_none_of_the_jobs_own(extra: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"launcher.extra={extra}: {said}")):
        Slurm(extra=[extra])


@pytest.mark.parametrize(("time", "grace"), [("1m", 90), ("2m", 60), ("149s", 60)])
def test_a_time_limit_that_the_warning_precedes_is_refused(time: str, grace: int) -> None:
    """Such a job would be put back for ever, and its workers never start."""
    Slurm(time="3m", grace=90)
    with pytest.raises(ConfigError, match=f"^launcher.time={time}: SLURM's warning comes up to {grace + 60} s before"):
        Slurm(time=time, grace=grace)


def test_the_log_lies_in_a_folder_with_a_percent_sign(tmp_path: Path) -> None:
    """SLURM replaces %j and the like in a path."""
    assert f"--output={tmp_path}/50%%j/logs/slurm.log\n" in Slurm().text(SubmittedRun(tmp_path / "50%j"))


@pytest.mark.parametrize(
    ("nodes", "cpus", "minutes", "said"),
    [(3, 4, None, "launcher.nodes=3"), (2, 5, None, "launcher.workers_per_node"), (2, 4, 61.0, "launcher.time")],
)
def test_what_a_partition_can_never_give(nodes: int, cpus: int, minutes: float | None, said: str) -> None:
    partition = SlurmPartition("low*|1:00:00|2|4+")
    partition.check(2, 4, 60.0)
    with pytest.raises(ConfigError, match=f"^{said}"):
        partition.check(nodes, cpus, minutes)


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", "/nowhere")
    with pytest.raises(MachineError, match="there is no sbatch on this host"):
        Slurm().check()
    prepared = engine.prepare(["launcher=slurm", "launcher.time=30m"])
    assert prepared.plan().layout.workers == 2
    with pytest.raises(ConfigError, match=r"^launcher.time=30x"):
        engine.plan(["launcher=slurm", "launcher.time=30x"])


def test_a_slurm_without_a_controller_is_a_lack_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: error: failed to fetch config\n"
    monkeypatch.setattr(slurm, "_run", lambda command: subprocess.CompletedProcess(command, 1, "", said))
    with pytest.raises(MachineError, match="SLURM cannot be reached"):
        slurm._asked_slurm(["sbatch"])


@pytest.mark.parametrize("launcher", ["local", "slurm", "torchrun"])
def test_a_process_of_torchrun_starts_no_others(monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}.items():
        monkeypatch.setenv(name, value)
    engine.prepare(["tracking=none"])
    with pytest.raises(ConfigError, match=rf"^launcher={launcher}: torchrun has started this process already"):
        engine.prepare(["tracking=none", f"launcher={launcher}"])


def test_a_run_that_is_not_submitted_has_nothing_to_print_and_nobody_to_leave_it_to(tmp_path: Path) -> None:
    assert engine.prepare(["launcher=local", "tracking=none"]).submission() is None
    with pytest.raises(ConfigError, match=r"^--detach: launcher=local starts workers of this command"):
        engine.run(["launcher=local", "tracking=none"], detach=True, root=tmp_path, quiet=True)
