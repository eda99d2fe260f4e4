"""What one worker measures while it trains, and what all workers' measures make of a run.

A step's time runs from taking the batch to having updated parameters. Evaluation, checkpoints and set-up lie outside.
Compute is the time in which the worker was not blocked; how blocked time divides into communication and waiting is
said in comm/timeline.py.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch

from ..comm import Comm
from ..comm.timeline import Operation, StepSplit, last_launches, split
from .layout import Layout, Role

KEPT_STEPS = 10_000  # the most recent ones that a worker reports one by one


@dataclass
class Report:
    """One worker's measures, as JSON."""

    rank: int
    kind: str
    part: int
    steps: list[tuple[float, float, int]]  # (start, end, samples) of steps after the warm-up
    operations: list[Operation]
    trained_steps: int
    seconds: float  # of training
    samples: int
    bytes: dict[str, int]
    memory: dict[str, int]
    sync: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(plain: dict[str, Any]) -> "Report":
        report = Report(**plain)
        report.operations = [Operation(*operation) for operation in plain["operations"]]
        return report


class Meter:
    """Times the steps of one worker."""

    def __init__(self, comm: Comm, warmup: int, device: torch.device, elapsed: float = 0.0) -> None:
        """`warmup`: steps to leave out of throughput and step times. `elapsed`: training seconds before."""
        self._comm, self._warmup, self._device = comm, warmup, device
        self.seconds = elapsed  # of training so far, earlier lives of a resumed run included
        self.steps: list[tuple[float, float, int]] = []
        self.last = 0.0
        self.trained_steps = self.samples = 0

    @contextmanager
    def step(self, samples: int) -> Iterator[None]:
        start = self._now()
        yield
        end = self._now()
        self.last = end - start
        self.seconds += self.last
        self.trained_steps += 1
        self.samples += samples
        if self.trained_steps > self._warmup:
            self.steps.append((start, end, samples))
            if len(self.steps) > 2 * KEPT_STEPS:
                del self.steps[:-KEPT_STEPS]

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._comm.now()

    def report(self, rank: int, role: Role, memory: dict[str, int], sync: dict[str, Any]) -> Report:
        steps = self.steps[-KEPT_STEPS:]
        since = steps[0][0] if steps else float("inf")
        return Report(
            rank=rank,
            kind=role.kind,
            part=role.part,
            steps=steps,
            operations=[op for op in self._comm.timeline.operations if op.end > since or role.kind == "server"],
            trained_steps=self.trained_steps,
            seconds=self.seconds,
            samples=self.samples,
            bytes=self._comm.ledger.snapshot(),
            memory=memory,
            sync=sync,
        )


def summarise(reports: list[Report], layout: Layout) -> dict[str, Any]:
    """The measured half of a run's summary."""
    workers = [report for report in reports if report.kind == "worker"]
    of_loss = [report for report in workers if report.part == layout.loss_part]
    return {
        "throughput": sum(_throughput(report) for report in of_loss),
        "step_time": _step_times(reports, workers),
        "memory": _peaks(workers),
        "wire": _wire(reports, workers),
        "staleness": _staleness(reports),
    }


def _throughput(report: Report) -> float:
    """Samples a second of one replica, warm-up and what lies between steps left out."""
    seconds = sum(end - start for start, end, _ in report.steps)
    return sum(samples for *_, samples in report.steps) / seconds if seconds else 0.0


def _step_times(reports: list[Report], workers: list[Report]) -> dict[str, float | None]:
    launches = last_launches([report.operations for report in reports])
    splits: list[StepSplit] = []
    for report in workers:
        # the timeline keeps the most recent operations only: steps before them cannot be split
        known = report.operations[0].start if report.operations else float("-inf")
        steps = [(start, end) for start, end, _ in report.steps if start >= known] if report.operations else []
        steps = steps or [(start, end) for start, end, _ in report.steps]
        splits += split(steps, report.operations, launches)
    durations = [end - start for report in workers for start, end, _ in report.steps]
    if not durations:
        return {"median": None, "compute": None, "communication": None, "waiting": None}
    return {
        "median": median(durations),
        "compute": median(part.compute for part in splits),
        "communication": median(part.communication for part in splits),
        "waiting": median(part.waiting for part in splits),
    }


def _peaks(workers: list[Report]) -> dict[str, int]:
    return {kind: max(report.memory[kind] for report in workers) for kind in workers[0].memory}


def _wire(reports: list[Report], workers: list[Report]) -> dict[str, Any]:
    """Payload bytes of training; a worker's step is charged its share of what servers sent."""
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report.bytes)
    steps = sum(report.trained_steps for report in workers)
    return {
        "bytes_per_step": sum(total.values()) / steps if steps else 0.0,
        "by_primitive": {primitive: count / steps for primitive, count in total.items()} if steps else {},
        "total": sum(total.values()),
    }


def _staleness(reports: list[Report]) -> dict[str, Any] | None:
    histogram: Counter[int] = Counter()
    for report in reports:
        histogram.update({int(k): v for k, v in report.sync.get("staleness", {}).items()})
    if not histogram:
        return None
    count = sum(histogram.values())
    mean = sum(staleness * times for staleness, times in histogram.items()) / count
    return {"mean": mean, "max": max(histogram), "histogram": {str(k): histogram[k] for k in sorted(histogram)}}
