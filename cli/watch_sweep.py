"""`paceline watch SWEEP`: how a sweep gets on, by the directories of its runs alone."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..conf.counted import counted
from ..conf.errors import ConfigError
from .output import aligned, note, show, show_json

if TYPE_CHECKING:
    from ..tracking.run_directory import Record

LOOK = 0.5  # seconds between looks
ENDED, STOPPED = "completed", "interrupted"  # of a sweep; it runs otherwise
OVER = ("running", "died", "interrupted")  # states of runs that have not ended by themselves
WELL = ("completed", "pruned")
CODES = {"running": 0, ENDED: 0, STOPPED: 130, "failed": 4}


@dataclass(frozen=True)
class OfRun:
    """The state of a run of the sweep. `last`: its last records of steps and of accuracy, for people."""

    name: str
    state: str
    why: str
    last: str
    step: int | None

    @property
    def has_ended(self) -> bool:
        return self.state not in OVER


@dataclass(frozen=True)
class OfSweep:
    """`wanted`: runs that it will have had, where its definition says how many. `resume`: the command to go on."""

    name: str
    state: str
    runs: list[OfRun]
    wanted: int | None
    resume: str

    @property
    def ended(self) -> int:
        return sum(run.has_ended for run in self.runs)

    def said(self) -> str:
        ended = counted(self.ended, "run") if self.wanted is None else f"{self.ended} of {counted(self.wanted, 'run')}"
        counts = Counter(run.state for run in self.runs)
        each = ", ".join(f"{count} {state}" for state, count in counts.items())
        line = f"{self.state}: {ended} ended{f' ({each})' if each else ''}"
        return f"{line}; {self.resume} goes on with it" if self.state == STOPPED else line


class Watched:
    """A sweep's directory, looked at again and again; a run that has ended is read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended: dict[str, OfRun] = {}
        self._wanted = _wanted(directory)

    def look(self) -> OfSweep:
        from ..sweep.directory import LOCK
        from ..tracking.alive import is_held
        from ..tracking.run_data import resuming
        from ..tracking.run_directory import run_names

        runs = [self._ended.get(name) or self._run(name) for name in run_names(self._directory)]
        self._ended |= {run.name: run for run in runs if run.has_ended}
        if any(run.state == "running" for run in runs) or is_held(self._directory / LOCK):
            state = "running"
        elif any(run.state in OVER for run in runs) or (self._wanted is not None and len(runs) < self._wanted):
            state = STOPPED
        else:
            state = ENDED if all(run.state in WELL for run in runs) else "failed"
        return OfSweep(self._directory.name, state, runs, self._wanted, resuming(self._directory))

    def _run(self, name: str) -> OfRun:
        from ..tracking.errors import CorruptRunError
        from ..tracking.run_directory import RunDirectory
        from ..tracking.state import state_of

        directory = RunDirectory(self._directory / name)
        try:
            state, why = state_of(directory)
            records = directory.records()
        except (OSError, ValueError, CorruptRunError) as error:  # its files are no files, or others
            state, why, records = "damaged", str(error), []
        step = next((record.get("step") for record in reversed(records) if record.get("kind") == "step"), None)
        return OfRun(name, state, why, _last(records), step if isinstance(step, int) else None)


def _wanted(directory: Path) -> int | None:
    """Runs in all; None where the definition does not say, or is not there."""
    from ..sweep.definition import from_dict
    from ..sweep.directory import FILE
    from ..tracking.files import UnusableFileError, parse_yaml, read_text

    try:
        definition = from_dict(parse_yaml(read_text(directory / FILE)))
    except (OSError, UnusableFileError, ConfigError, KeyError, TypeError, ValueError):
        return None
    sizes = [size for size in (definition.size() if definition.finite else None, definition.trials) if size is not None]
    return min(sizes) * (definition.seeds or 1) if sizes else None


def _last(records: "list[Record]") -> str:
    from ..tracking.progress import number, score_of

    begun: dict[str, Any] = next((record for record in records if record.get("kind") == "start"), {})
    step = next((record for record in reversed(records) if record.get("kind") == "step"), None)
    scores = (score_of(record) for record in reversed(records) if record.get("kind") == "evaluation")
    parts: list[str] = []
    if step is not None:
        steps = f" of {begun['steps']}" if begun.get("steps") else ""
        parts += [f"step {step.get('step')}{steps}", f"loss {number(step.get('loss'), '.4f')}"]
    parts += [score for score in scores if score][:1]
    return ", ".join(parts)


def watch_sweep(directory: Path, once: bool, as_json: bool) -> int:
    """The exit status. Raises KeyboardInterrupt."""
    watched = Watched(directory)
    if once:
        found = watched.look()
        if as_json:
            show_json(_plain(found))
        else:
            table = [[run.name, run.state, run.last, run.why.splitlines()[0] if run.why else ""] for run in found.runs]
            show("\n".join([*aligned(table, numbers_from=4), found.said()]) if table else found.said())
        return CODES[found.state]
    found = _follow(watched, show)
    note(found.said())
    return CODES[found.state]


def _follow(watched: Watched, tell: Callable[[str], None]) -> OfSweep:
    """A line when a run begins, one when it has ended, until the sweep has."""
    known: dict[str, str] = {}
    while True:
        found = watched.look()
        for run in found.runs:
            if known.get(run.name) != run.state:
                last = f": {run.last}" if run.has_ended and run.last else ""
                tell(
                    f"{run.name} {run.state}{last}; {found.ended}{f' of {found.wanted}' if found.wanted else ''} ended"
                )
                known[run.name] = run.state
        if found.state != "running":
            return found
        time.sleep(LOOK)


def _plain(found: OfSweep) -> dict[str, Any]:
    return {
        "sweep": found.name,
        "state": found.state,
        "ended": found.ended,
        "wanted": found.wanted,
        "runs": [
            {"run": run.name, "state": run.state, "why": run.why, "step": run.step, "last": run.last}
            for run in found.runs
        ],
    }
