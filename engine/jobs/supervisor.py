"""The first process of a scheduler's job: it starts the workers, starts them again where that helps, and says how it
ended.

    python -m paceline.engine.jobs.supervisor RUN [ALLOWED MODULE ...]

Workers that were lost (killed from outside, or with their node) are started again, with growing pauses. Workers that
failed by an error of the program are started again only as often as launcher.retries.failed says, and never after a
refused configuration, a machine that lacks something, divergence or a damaged file. A second end at the same step, with
no checkpoint since the first, ends the job, unless the workers did not meet: a lost node may be missing for a while.
The end stands in RUN/job/end.json.
"""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ...tracking.job_files import FOLDER, JobEnd
from ...tracking.run_directory import RunDirectory
from ..base.checkpoint import steps_of
from ..base.errors import MachineError
from ..base.own_modules import find_modules
from .asking import scheduler_for
from .ends import AttemptEnd
from .scheduler import FINAL, Scheduler, SubmittedRun

LOOK = 0.2  # seconds between two looks at the workers
IN_VAIN = 10  # attempts in a row in which the workers do not even meet
PAUSES = (1.0, 5.0, 30.0, 120.0)  # seconds before workers are started again; the last one from then on


@dataclass(frozen=True)
class JobProgress:
    """`starts`: how often its workers have met and trained. `place`: the last step, and the newest checkpoint."""

    starts: int
    place: tuple[int, str]


class Supervisor:
    def __init__(self, job: SubmittedRun, scheduler: Scheduler) -> None:
        self._job, self._scheduler = job, scheduler
        self._run = RunDirectory(job.run)
        self._stop = 0  # the signal for which the workers were asked to stop
        self._grows = False  # the workers were asked to stop, since there is more room for them

    def hear(self, number: int, _: FrameType | None = None) -> None:
        """Handles a signal. The workers save and stop, and no others are started."""
        if not self._stop or number != signal.SIGUSR1:  # a job that is cancelled at its time limit does not come back
            self._stop = number

    def run(self) -> int:
        """Returns the exit status of the job."""
        count = {"lost": 0, "failed": 0}
        first, vain, before = "", 0, self._progress()
        while True:
            ended, here = self._attempt(), self._progress()
            if self._grows and ended.kind == "stopped" and not self._stop:
                continue
            if ended.kind == "stopped" and (self._stop == signal.SIGUSR1 or self._scheduler.is_preempted()):
                return self._put_back(ended)
            vain = 0 if here.starts > before.starts else vain + 1
            message = ended.message
            if self._may_start_again(ended, count):
                if vain < IN_VAIN and (vain or here.place != before.place or not any(count.values())):
                    first, before = first or message, here
                    count[ended.kind] += 1
                    self._pause(message, PAUSES[min(sum(count.values()), len(PAUSES)) - 1])
                    continue
                message += f"; it ended {'so often' if vain else 'twice'} at this step with no checkpoint between"
            JobEnd(ended.exit_code, message, first=first, **count).write(self._job.run)
            return ended.exit_code

    def _put_back(self, ended: AttemptEnd) -> int:
        try:
            self._scheduler.put_back()
        except MachineError as error:
            JobEnd(ended.exit_code, f"{ended.message}; {error}").write(self._job.run)
        return ended.exit_code

    def _may_start_again(self, ended: AttemptEnd, count: dict[str, int]) -> bool:
        retries = {"lost": self._scheduler.retries.lost, "failed": self._scheduler.retries.failed}
        return ended.exit_code not in FINAL and retries.get(ended.kind, 0) > count.get(ended.kind, 0)

    def _pause(self, why: str, seconds: float) -> None:
        print(f"{why}; the workers start again in {seconds:g} s", file=sys.stderr, flush=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._stop:
            time.sleep(0.1)

    def _attempt(self) -> AttemptEnd:
        attempt, self._grows, asked = _next(self._job.run / FOLDER), False, False
        with self._scheduler.start(self._job, attempt) as workers:
            while (status := workers.poll()) is None:
                if not self._stop and not self._grows:
                    self._grows = self._scheduler.is_better_now()
                if not asked and (self._stop or self._grows):
                    asked = self._ask_to_stop(workers)
                time.sleep(LOOK)
        ended = AttemptEnd.of(attempt, self._run, status)
        if ended.kind == "lost" and self._stop:
            return AttemptEnd("stopped", 128 + self._stop, f"stopped by {signal.Signals(self._stop).name}")
        return ended

    def _ask_to_stop(self, workers: subprocess.Popen[bytes]) -> bool:
        try:
            self._scheduler.ask_to_stop(workers)
        except MachineError as error:  # it is asked again
            print(error, file=sys.stderr, flush=True)
            return False
        return True

    def _progress(self) -> JobProgress:
        records = self._run.records()
        steps = [record["step"] for record in records if record["kind"] == "step"]
        checkpoints = [path.name for path in steps_of(self._run.checkpoints)]
        starts = sum(record["kind"] == "start" for record in records)
        return JobProgress(starts, (steps[-1] if steps else 0, checkpoints[-1] if checkpoints else ""))


def _next(folder: Path) -> Path:
    """Makes the folder of the next attempt, whose name is its number."""
    made = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    attempt = folder / str(max(made, default=0) + 1)
    attempt.mkdir()
    return attempt


def main(run: Path, *allowed: str) -> int:
    """Supervise the job of the run; returns its exit status."""
    find_modules(allowed)
    job = SubmittedRun(run, allowed)
    supervisor = Supervisor(job, scheduler_for(RunDirectory(run), allowed))
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.hear)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
