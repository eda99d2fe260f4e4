"""The cost of a step in closed form: bytes that leave a worker, and bytes that it holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

Traffic = Mapping[str, float]  # primitive -> payload bytes that leave one worker in one step
Memory = Mapping[str, int]  # kind -> bytes on a worker's device; "host_" + kind: in its host's memory instead


@dataclass(frozen=True)
class World:
    """The holders of one part of the model, and the run, for which a sync mode states its cost."""

    replicas: int
    steps_per_epoch: int | None = None  # None before the data are there
    hosts: tuple[int, ...] | None = None  # of each replica's holder, numbered in any way; None where it is not known
    steps: int | None = None  # of the run; None where it is not known: then costs are those of a run without end
    busy: tuple[tuple[int, int], ...] = ()  # (steps of the run with samples, replicas that have so many); (): all

    def often(self, every: int, first: int | None = None, with_samples: bool = False) -> float:
        """Returns mean occurrences per step of an event that happens at steps `first`, `first + every`, ...

        Steps count from 1; `first` defaults to `every`. `with_samples`: steps without samples are not counted.
        """
        if self.steps is None:
            return 1 / every
        begins = every if first is None else first
        counts = self.steps_of(with_samples)
        happens = sum(max(0, (steps - begins) // every + 1) * replicas for steps, replicas in counts)
        return happens / (self.steps * self.replicas)

    def steps_of(self, with_samples: bool) -> tuple[tuple[int, int], ...]:
        """(steps, replicas that have so many), where it is known how many steps there are."""
        assert self.steps is not None
        return self.busy if with_samples and self.busy else ((self.steps, self.replicas),)


@dataclass(frozen=True)
class Cost:
    """The closed-form cost of one step of an algorithm, by role, on average over the run."""

    worker: Traffic = field(default_factory=dict)
    server: Traffic = field(default_factory=dict)
    buffers: int = 0  # bytes of communication buffers on each of them
    varies: str = ""  # why nobody can say beforehand what is sent; "" where `worker` and `server` say it


def payload(tensors: Sequence[Tensor]) -> int:
    """S: the bytes of these tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def kept_of(state: int, parameters: Sequence[Tensor]) -> tuple[int, int]:
    """(bytes for each entry, bytes for each tensor) of an optimizer's `state`, where it keeps the same for all: what is
    of a parameter's shape and dtype, as momentum is, and what is less than that, as a count of steps is.
    """
    width = parameters[0].element_size()
    entries = max(sum(each.numel() for each in parameters), 1)
    each = width * (state // (width * entries))
    return each, (state - each * entries) // len(parameters)
