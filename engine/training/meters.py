"""The measurements of one worker while it trains, and a run's figures from those of all workers.

A step's time runs from taking the batch to having updated parameters. Evaluation, checkpoints and set-up lie outside.
Where replicas go at their own paces, the others train on meanwhile: there the pauses count in `seconds`, and so in time
to accuracy.
Compute is the time in which the worker was not blocked; how blocked time divides into communication and waiting is
said in comm/timeline.py. On a GPU these are times of its stream, from events (comm/marks.py).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ...comm import Comm
from ...comm.timeline import Operation, StepSplit, TimedPass, last_launches, split
from ...exchange.collectives.base import added
from ...strategies.core.sync import Measures
from ...tracking.disturbance import ProcessUse, disturbed, loads
from ...tracking.records import Measured, MeasuredStepTime, Staleness, Wire, WorkerTime
from ..base import machine
from ..fabrics.layout import Role, RunLayout
from ..features.compiling import Compiler

KEPT_STEPS = 10_000  # the most recent ones that a worker reports one by one; fewer where the timeline keeps less
LEAST_STEPS, LEAST_SECONDS = 10, 0.1  # timed ones, for figures on a measured clock


@dataclass
class Report:
    """One worker's measures, as JSON."""

    rank: int
    kind: str
    part: int
    steps: list[tuple[float, float, int]]  # (start, end, samples)
    operations: list[Operation]
    trained_steps: int
    seconds: float  # of training
    samples: int
    bytes: dict[str, float]  # of a ring's share they may be no whole number
    messages: dict[str, int]
    memory: dict[str, int]
    along: dict[str, float] = field(default_factory=dict[str, float])  # of `bytes`, by the axis of the mesh
    sync: Measures = field(default_factory=Measures)
    left_out: int = 0  # how many of the first steps are left out of throughput and step times
    known_from: float = float("-inf")  # before that, operations are no longer kept
    passes: list[TimedPass] = field(default_factory=list[TimedPass])  # none where no trace was asked for
    jumped: int = 0  # steps of the run that this worker took no part in
    compiled: float | None = None  # s that it compiled for; None: it did not
    told: Mapping[str, float] = field(default_factory=dict[str, float])  # by hooks of features, by name
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as machine.used

    @property
    def measured(self) -> list[tuple[float, float, int]]:
        return self.steps[self.left_out :]

    def whole(self, steps: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
        """(start, end) of those whose operations are all kept; the others would look as if they had only computed."""
        return [(start, end) for start, end, _ in steps if start >= self.known_from]

    def as_json(self) -> dict[str, Any]:
        """Returns the fields, for `json.dumps`. They are not copied: many workers of one process report at once."""
        return dict(vars(self))

    @staticmethod
    def from_json(plain: dict[str, Any]) -> "Report":
        report = Report(**plain)
        report.operations = [Operation(*operation) for operation in plain["operations"]]
        report.passes = [TimedPass(*each) for each in plain["passes"]]
        return report


class Meter:
    """Times the steps of one worker."""

    def __init__(
        self,
        comm: Comm,
        left_out: int,
        counts_pauses: bool,
        elapsed: float = 0.0,
        compiler: Compiler | None = None,
    ) -> None:
        """`left_out`: first steps of the run to leave out of throughput and step times. `elapsed`: training seconds
        before. `compiler`: what it compiles in a step takes no time of the step.
        """
        self._compiler = compiler
        self._counts_pauses = counts_pauses
        self._comm, self._left_out = comm, left_out
        self._kept = min(KEPT_STEPS, comm.timeline.kept)
        self.seconds = self._before = elapsed  # of training so far, earlier lives of a resumed run included
        self._begun: float | None = None  # when the first step began, or others began it
        self.ended = float("-inf")  # when the last one was over
        self.steps: list[tuple[float, float, int]] = []  # the most recent ones
        self.last = 0.0
        self.trained_steps = self.samples = 0
        self.jumped = 0  # steps of the run that this worker takes no part in
        self._own_left_out = 0  # of those that are left out, the ones that this worker takes
        self.in_steps = self.blocked = 0.0  # seconds in steps, and of these blocked

    def jump(self, steps: int) -> None:
        """Skips so many steps of the run, which other workers take."""
        if steps and self._begun is None:
            self._begun = self._comm.now()
        self.jumped += steps

    @contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """One without samples in which nothing is exchanged takes no time, as on the virtual cluster's clock."""
        self._counts, self._further = True, 0
        exchanged = self._exchanged() if samples == 0 else None
        compiled = self._compiled()
        blocked, begin = self._comm.timeline.blocked, self._comm.mark()
        yield
        start, end = self._comm.times(begin, self._comm.mark())
        start += self._compiled() - compiled
        if samples == 0 and self._exchanged() == exchanged:
            start = end
        samples = samples + self._further if self._counts else 0
        self.last = end - start
        self.in_steps += self.last
        self.blocked += self._comm.timeline.blocked - blocked
        self.ended = end
        if self._begun is None:
            self._begun = start
        self.seconds = self.at(end) if self._counts_pauses else self.seconds + self.last
        self._own_left_out += self.trained_steps + self.jumped < self._left_out
        self.trained_steps += 1
        self.samples += samples
        self.steps.append((start, end, samples))
        if len(self.steps) > 2 * self._kept:
            del self.steps[: -self._kept]

    @contextmanager
    def drain(self) -> Iterator[None]:
        """Times the end of operations that the last step left under way, and adds it to that step."""
        begin = self._comm.mark()
        yield
        start, end = self._comm.times(begin, self._comm.mark())
        if not self.steps:
            return
        self.ended = end
        self.seconds = self.at(end) if self._counts_pauses else self.seconds + end - start
        begun, over, samples = self.steps[-1]
        self.steps[-1] = begun, over + end - start, samples

    def discount(self) -> None:
        """The step under way took time, but its samples did not train the model."""
        self._counts = False

    def add(self, samples: int) -> None:
        """The step under way trains on so many samples more than it was begun with."""
        self._further += samples

    def at(self, moment: float) -> float:
        """Seconds of training at a moment of the fabric's clock, where pauses count."""
        begun = moment if self._begun is None else self._begun
        return self._before + max(moment - begun, 0.0)

    def _compiled(self) -> float:
        return 0.0 if self._compiler is None else self._compiler.seconds

    def _exchanged(self) -> tuple[int, float]:
        """Grows with each message of this worker's, and with each time that it waits for one."""
        return self._comm.ledger.messages.total(), self._comm.timeline.blocked

    def report(self, rank: int, role: Role, memory: dict[str, int], sync: Measures) -> Report:
        steps, timeline = self.steps[-self._kept :], self._comm.timeline
        since = steps[0][0] if steps else float("inf")
        some_are_gone = len(timeline.operations) == timeline.kept
        return Report(
            rank=rank,
            kind=role.kind,
            part=role.part,
            steps=steps,
            operations=[op for op in timeline.operations if op.end > since or role.kind == "server"],
            trained_steps=self.trained_steps,
            seconds=self.seconds,
            samples=self.samples,
            bytes={primitive: float(count) for primitive, count in self._comm.ledger.bytes.items()},
            messages=dict(self._comm.ledger.messages),
            along={axis: float(sum(its.bytes.values())) for axis, its in self._comm.ledger.axes.items() if its.bytes},
            memory=memory,
            sync=sync,
            left_out=max(self._own_left_out - (self.trained_steps - len(steps)), 0),
            known_from=timeline.operations[0].start if some_are_gone else float("-inf"),
            passes=[each for each in timeline.passes or () if each.end > since],
            jumped=self.jumped,
            compiled=None if self._compiler is None else self._compiler.seconds,
            machine=machine.used(),
        )


def summarise(reports: list[Report], layout: RunLayout) -> Measured:
    """The measured half of a run's summary."""
    workers = [report for report in reports if report.kind == "worker"]
    servers = [report for report in reports if report.kind == "server"]
    of_loss = [report for report in workers if report.part == layout.loss_part]
    step_time, per_worker = _step_times(reports, workers)
    return Measured(
        throughput=_throughput(of_loss),
        step_time=step_time,
        per_worker=per_worker,
        memory=_peaks(workers),
        server_memory=_peaks(servers) if servers else None,
        wire=_wire(reports, workers),
        staleness=_staleness(reports),
        dropped=sum(report.sync.get("dropped", 0) for report in reports),
        lost=sorted(set(range(layout.world_size)) - {report.rank for report in reports}),
        too_short=False,
        left=sum(report.sync.get("left", 0) for report in reports),
        given_up=sum(report.sync.get("given_up", 0) for report in reports),
        cut_share=_cut_share(reports),
        compile_s=max((each.compiled for each in workers if each.compiled is not None), default=None),
    )


def is_too_short(reports: list[Report]) -> bool:
    """Returns whether so little was timed that the machine's other work decides: two identical runs of 5 steps showed
    4,404 and 18,434 samples/s. The worker that timed the most counts: not every client trains in each of FedAvg's
    rounds.
    """
    timed = [report.measured for report in reports if report.kind == "worker"]
    steps = max(map(len, timed), default=0)
    seconds = max((sum(end - start for start, end, _ in each) for each in timed), default=0.0)
    return steps < LEAST_STEPS or seconds < LEAST_SECONDS


def with_loads(measured: Measured, reports: list[Report]) -> Measured:
    """Returns the measurements with the load of the hosts, and what of it disturbed them."""
    steps = [end - start for report in reports if report.kind == "worker" for start, end, _ in report.measured]
    found = loads([ProcessUse(**report.machine) for report in reports if report.machine], steps)
    return replace(measured, hosts=[load.plain() for load in found], disturbed=disturbed(found))


def without_times(measured: Measured) -> Measured:
    """Returns the measurements without the times, which are not reliable."""
    return replace(measured, throughput=None, step_time=MeasuredStepTime(None), per_worker=[], too_short=True)


def _throughput(replicas: list[Report]) -> float:
    """Samples a second of all replicas, the first `measure.after` steps and what lies between steps left out.

    Each replica has its share of the samples, so all of them have been seen when the slowest is through. Where some
    take no part in some steps, no replica's own steps take as long as those of all: see `_rate_in_turns`.
    """
    if any(report.jumped for report in replicas):
        return _rate_in_turns(replicas)
    slowest = max(sum(end - start for start, end, _ in report.measured) for report in replicas)
    return sum(samples for report in replicas for *_, samples in report.measured) / slowest if slowest else 0.0


def _rate_in_turns(replicas: list[Report]) -> float:
    """Samples a second of all replicas from when the last of them is through its untimed steps until the last one ends.

    What lies between steps counts: others train in it.
    """
    timed = [report.steps[0][0] for report in replicas if len(report.steps) < report.trained_steps]
    timed += [report.steps[report.left_out - 1][1] for report in replicas if report.left_out]
    steps = [step for report in replicas for step in report.steps]
    since = max(timed, default=min((start for start, _, _ in steps), default=0.0))
    seconds = max((end for _, end, _ in steps), default=since) - since
    return sum(samples for _, end, samples in steps if end > since) / seconds if seconds else 0.0


def _step_times(reports: list[Report], workers: list[Report]) -> tuple[MeasuredStepTime, list[WorkerTime]]:
    launches = last_launches([report.operations for report in reports])
    rows: list[WorkerTime] = []
    durations: list[float] = []
    splits: list[StepSplit] = []
    for report in workers:
        own = split(report.whole(report.measured), report.operations, launches)
        steps = [end - start for start, end, _ in report.measured if end > start]  # else it had nothing to do in it
        durations += steps
        splits += own
        if own and steps:
            rows.append(WorkerTime(report.rank, _divided(median(steps), own)))
    step = median(durations) if durations else None
    return _divided(step, splits) if step is not None and splits else MeasuredStepTime(step), rows


def _divided(step: float, splits: list[StepSplit]) -> MeasuredStepTime:
    """The median step, divided as all of the time was: what happens in few steps only is not lost, and it adds up."""
    shares = {
        "compute": sum(part.compute for part in splits),
        "communication": sum(part.communication for part in splits),
        "waiting": sum(part.waiting for part in splits),
    }
    total = sum(shares.values()) or 1.0
    hidden = sum(part.hidden for part in splits)  # of compute
    return MeasuredStepTime(
        step, **{name: step * share / total for name, share in {**shares, "hidden": hidden}.items()}
    )


def _peaks(workers: list[Report]) -> dict[str, int]:
    kinds = dict.fromkeys(kind for report in workers for kind in report.memory)  # not all have an average
    return {kind: max(report.memory.get(kind, 0) for report in workers) for kind in kinds}


def _wire(reports: list[Report], workers: list[Report]) -> Wire:
    """Payload bytes of training; a worker's step is charged its share of what servers sent."""
    messages: Counter[str] = Counter()
    for report in reports:
        messages.update(report.messages)
    total = {primitive: round(count) for primitive, count in added(*(report.bytes for report in reports)).items()}
    along = added(*(report.along for report in reports))
    steps = sum(report.trained_steps for report in workers)
    return Wire(
        bytes_per_step=sum(total.values()) / steps if steps else 0.0,
        by_primitive={primitive: count / steps for primitive, count in total.items()} if steps else {},
        by_axis={axis: count / steps for axis, count in along.items()} if steps else {},
        total=sum(total.values()),
        messages=sum(messages.values()),
    )


def _cut_share(reports: list[Report]) -> float | None:
    entries = sum(report.sync.get("entries", 0) for report in reports)
    return sum(report.sync.get("cut", 0) for report in reports) / entries if entries else None


def _staleness(reports: list[Report]) -> Staleness | None:
    histogram: Counter[int] = Counter()
    for report in reports:
        histogram.update({int(k): v for k, v in report.sync.get("staleness", {}).items()})
    count = histogram.total()
    if count == 0:  # nobody pushed, or all steps were left out
        return None
    mean = sum(staleness * times for staleness, times in histogram.items()) / count
    return Staleness(mean, max(histogram), {str(k): histogram[k] for k in sorted(histogram)})
