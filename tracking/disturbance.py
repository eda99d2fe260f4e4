"""Tells from what the operating system says whether other programs disturbed a measurement.

Four signs count, each of them only where it cannot be the run itself:

- other programs kept cores busy, no core was left, and the run's processes were interrupted;
- the hypervisor took processor time (steal);
- the load average is far above what the run and the cores explain;
- step times spread, and the run's processes were interrupted while other programs ran.

Nothing is told of a run on the virtual cluster, whose times are modelled.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .columns import BY_KEY

LEAST_SECONDS = 1.0  # of a measurement, for differences of processor time to mean anything
STOLEN = 0.05  # share of the processor time
OTHERS = 0.1  # share of the cores, that other programs kept busy
FULL = 0.9  # share of the cores: no core is left
INTERRUPTED = 20.0  # involuntary context switches a second of a process: it shares its core
SPREAD = 2.0  # 90th percentile of the step times over their median
TIMES = (
    *("throughput_samples_per_s", "updates_per_second", "step_ms", "compute_ms", "communication_ms", "waiting_ms"),
    *("time_to_accuracy_s", "time_per_pass_s", "dollars", "blocked", "compile_s", "predicted_error"),
    *("speedup_throughput", "speedup_time_to_accuracy", "dollars_ratio"),
)
OF_SUMMARY = ("throughput", "step_time", "time_to_accuracy", "seconds")  # and what is below them: step_time/median
REPEAT = "Repeat them while nothing else runs."


@dataclass(frozen=True)
class ProcessUse:
    """The readings of one process of a run, over its measurement. None: the system does not say.

    Args:
        own: seconds of processor time of the process.
        switches: involuntary context switches of the process.
        busy: seconds of processor time of all programs of the host.
        stolen: those that the hypervisor took.
        all: those that there were, idle ones included.
        load: the load average of the last minute, at the end.
    """

    host: str
    process: int
    seconds: float
    own: float
    switches: int
    busy: float | None
    stolen: float | None
    all: float | None
    load: float | None
    cores: int


@dataclass(frozen=True)
class HostLoad:
    """The load of one host during a run. `own`, `others`: cores that the run and other programs kept busy."""

    host: str
    cores: int
    processes: int
    seconds: float
    own: float
    others: float | None
    stolen: float | None  # share
    load: float | None
    interrupted: float  # involuntary context switches a second of a process
    spread: float | None

    def disturbances(self) -> list[str]:
        """Returns the signs of other programs, in words; []: there are none."""
        found: list[str] = []
        others = self.others or 0.0
        if self.stolen is not None and self.stolen >= STOLEN:
            found.append(f"the hypervisor took {self.stolen:.0%} of the processor time (steal)")
        is_full = self.own + others >= FULL * self.cores
        if others >= OTHERS * self.cores and is_full and self.interrupted >= INTERRUPTED:
            found.append(f"other programs kept {others:.1f} of {self.cores} cores busy")
        if self.load is not None and self.load > max(2.0 * self.cores, self.cores + self.processes + 1.0):
            found.append(f"the load average was {self.load:.0f} on {self.cores} cores")
        is_interrupted = self.interrupted >= INTERRUPTED and others >= OTHERS / 2 * self.cores
        if self.spread is not None and self.spread >= SPREAD and is_interrupted:
            found.append(f"a tenth of the steps took {self.spread:.1f} times the median")
        return found

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def loads(uses: Iterable[ProcessUse], steps: Sequence[float]) -> list[HostLoad]:
    """The load of each host of a run. `steps`: the times of its timed steps."""
    hosts: dict[str, dict[int, ProcessUse]] = {}
    for use in uses:
        hosts.setdefault(use.host, {})[use.process] = use  # workers that share a process count once
    return [_load(host, list(processes.values()), _spread(steps)) for host, processes in hosts.items()]


def disturbed(found: Iterable[HostLoad]) -> str | None:
    """Returns why the measurement of a run on these hosts is not to be trusted; None: it is."""
    hosts = list(found)
    signs = {load.host: load.disturbances() for load in hosts}
    told = [f"{'; '.join(each)}{f' on {host}' if len(hosts) > 1 else ''}" for host, each in signs.items() if each]
    return "; ".join(told) or None


def _load(host: str, processes: list[ProcessUse], spread: float | None) -> HostLoad:
    seconds = max(use.seconds for use in processes)
    longest = max(processes, key=lambda use: use.seconds)
    is_long = seconds >= LEAST_SECONDS
    own = sum(use.own for use in processes) / seconds if is_long else 0.0
    others = stolen = None
    if is_long and longest.busy is not None and longest.stolen is not None and longest.all:
        stolen = longest.stolen / longest.all
        others = max((longest.busy - longest.stolen) / longest.seconds - own, 0.0)
    interrupted = max((use.switches / use.seconds for use in processes if use.seconds >= LEAST_SECONDS), default=0.0)
    loads = [use.load for use in processes if use.load is not None]
    cores = longest.cores
    return HostLoad(
        host, cores, len(processes), seconds, own, others, stolen, max(loads, default=None), interrupted, spread
    )


def _spread(steps: Sequence[float]) -> float | None:
    usual = median(steps) if steps else 0.0
    return sorted(steps)[int(0.9 * (len(steps) - 1))] / usual if usual > 0 else None


# -- what is said of it


def note_on(table: Sequence[Mapping[str, Any]]) -> str:
    """Returns a sentence on the rows of a comparison that other programs disturbed; "": there are none."""
    rows = [row for row in table if row.get("disturbed")]
    if not rows:
        return ""
    named = ", ".join(f"{row['run']} ({row['disturbed']})" for row in rows[:4])
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    blurred = {
        "speed-ups": any(row.get("speedup_throughput") for row in rows),
        "marks of the front": any("~" in (row.get("front") or "") for row in table),
    }
    named_so = " and ".join(what for what, is_there in blurred.items() if is_there)
    ratios = f" {named_so.capitalize()} with ~ may be theirs." if named_so else ""
    return f"other programs disturbed the times of {named}{more}.{ratios} {REPEAT}"


def is_timed(metric: str) -> bool:
    """Returns whether a column, or a number of W&B's summary, depends on the machine's speed."""
    names = (*TIMES, *(BY_KEY[key].short for key in TIMES))
    return metric in names or metric.partition("/")[0] in OF_SUMMARY
