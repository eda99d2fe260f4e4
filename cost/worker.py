"""A training step of one worker of a machine that was measured: what it computes and exchanges -> seconds by part.

    step = host + input + turns x (forward + backward + optimizer) + what is exchanged

Everything is traced once (engine/base/operators.py) and can be costed many times, on other rates and among other
numbers of workers: `seconds` is a pure function. Workers that share out all cores hide no exchange behind their
computation, as both take the same cores; where more compute than there are cores, they take turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .calibration import Calibration
from .kernels import Kernel, KernelRates
from .transfer import Kernels, Transfer

FORMULAS = {
    "compute": "each operator, forward and backward, between the sizes that were measured (docs/calibrate.md)",
    "tensor": "alpha + S beta for each exchange within a replica",
    "bubble": "what the schedule leaves idle of the busiest stage, by simulation with the stages' own times",
    "communication": "alpha + S beta for each exchange of replicas, less what idle cores hide of it",
    "waiting": "the slowest of the workers that wait for one another, by order statistics",
    "optimizer": "its operators, those of clipping and averaging, and what stepping a parameter takes beside",
    "input": "gathering the batch's rows",
    "host": "what a step of the training loop takes beside",
}


@dataclass(frozen=True)
class StepWork:
    """The work of one worker in a step. For a pipeline's stage it is that of all its micro-batches."""

    forward: Kernels
    backward: Kernels
    modules: int  # calls of them
    passes: int = 1  # of these operators: one for each micro-batch
    optimizer: Kernels = ()
    stepped: int = 0  # parameters
    taken: Kernels = ()  # the batch's rows
    hooked: int = 0  # parameters whose gradients are handed on as backward makes them
    accumulated: int = 1  # micro-batches, one after another: what is sent goes beside the last one's backward pass

    @property
    def flops(self) -> float:
        return self.passes * sum(kernel.flops for kernel in (*self.forward, *self.backward))


@dataclass(frozen=True)
class HostProcesses:
    """Processes of one host: workers, and servers that are idle for most of the time; threads of each."""

    workers: int
    servers: int
    threads: int

    def turns(self, cores: int) -> float:
        """Returns how many workers share a core, at least one."""
        return max(1.0, self.workers * self.threads / cores)

    def rates(self, calibration: Calibration) -> KernelRates:
        return calibration.of(self.threads, self.workers)


def taking_turns(intervals: Sequence[tuple[float, float]], end: float, alike: float, cores: float) -> float:
    """Seconds that a schedule of `end` seconds takes where its workers share cores. `intervals`: when one of them
    computes, with a core of its own; `alike`: so many do the same at the same time.

    While more compute than there are cores, each gets its share of them, and the schedule goes on more slowly.
    """
    edges = sorted([*((start, 1) for start, _ in intervals), *((stop, -1) for _, stop in intervals), (end, 0)])
    before, busy, taken = 0.0, 0, 0.0
    for at, change in edges:
        taken += (at - before) * max(1.0, busy * alike / cores)
        before, busy = at, busy + change
    return taken


def passes(work: StepWork, rates: KernelRates) -> float:
    """Seconds of forward and backward, of one of several workers that do not have to take turns."""
    return work.passes * (rates.forward(work.forward, work.modules) + rates.backward(work.backward))


def optimizer(work: StepWork, rates: KernelRates) -> float:
    return rates.plain(work.optimizer) + work.stepped * rates.costs["stepped"]


def handed_on(hooked: int, transfers: Sequence[Transfer], rates: KernelRates) -> float:
    """Seconds of gradients into buckets, and of what a worker computes for its transfers."""
    moved: dict[tuple[float, int], list[Kernel]] = {}
    for each in transfers:
        moved.setdefault((each.times, each.every), []).extend(each.kernels)
    seconds = sum(times * rates.plain(kernels) / every for (times, every), kernels in moved.items())
    return hooked * rates.costs["parameter"] + seconds


def transferred(transfers: Sequence[Transfer], calibration: Calibration) -> float:
    return sum(
        times * calibration.link(each.operation, each.workers).seconds(nbytes)
        for each in transfers
        if each.takes_time
        for nbytes, times in each.calls()
    )


def seconds(
    work: StepWork,
    placed: HostProcesses,
    calibration: Calibration,
    inside: Sequence[Transfer] = (),
    between: Sequence[Transfer] = (),
) -> dict[str, float]:
    """Returns the seconds by part of `FORMULAS`. `inside`: transfers within a replica. `between`: those of replicas."""
    rates, turns = placed.rates(calibration), placed.turns(calibration.cores)
    parts = {
        "compute": turns * passes(work, rates),
        "optimizer": turns * optimizer(work, rates),
        "input": turns * rates.plain(work.taken),
        "host": turns * max(rates.costs["step"], 0.0),
    }
    if inside:
        parts["tensor"] = transferred(inside, calibration)
    if work.hooked or any(each.takes_time or each.kernels for each in between):
        idle = placed.workers * placed.threads < calibration.cores
        sent = transferred(between, calibration)
        if idle:  # buckets travel during the last backward pass, which is two thirds of its micro-batch's
            sent = max(sent - 2 / 3 * parts["compute"] / work.accumulated, 0.1 * sent)
        parts["communication"] = sent + turns * handed_on(work.hooked, between, rates)
    return parts
