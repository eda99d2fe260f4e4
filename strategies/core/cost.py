"""The cost of a step in closed form: bytes that leave a worker, and bytes that it holds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from ...conf.notes import Note
from ...cost.transfer import Transfer

Traffic = Mapping[str, float]  # primitive -> payload bytes that leave one worker in one step
Memory = Mapping[str, int]  # kind -> bytes on a worker's device; "host_" + kind: in its host's memory instead


UNMEASURED = Note(("sync",), "the time of its messages was not measured")  # see `Transfers.unpredicted`


@dataclass(frozen=True)
class World:
    """The holders of one part of the model, and the run, for which a sync mode states its cost."""

    replicas: int
    steps_per_epoch: int | None = None  # None before the data are there
    hosts: tuple[int, ...] | None = None  # of each replica's holder, numbered in any way; None where it is not known
    steps: int | None = None  # of the run; None where it is not known: then costs are those of a run without end
    # (steps of the run with samples, replicas that have so many); (): all; None: known once the data are dealt
    busy: tuple[tuple[int, int], ...] | None = ()

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
    varies: Note | str = ""  # why nobody can say beforehand what is sent; "" where `worker` and `server` say it


@dataclass(frozen=True)
class Transfers:
    """The statement of all that a sync mode sends in a step. Bytes and the predicted time of a step follow from it.

    Args:
        sent: the transfers, in the order in which a worker makes them.
        buffers: bytes of communication buffers on each worker.
        varies: why nobody can say beforehand how many bytes are sent; "" if `sent` says it.
        unpredicted: why the time of these transfers is not modelled; "" if `sent` says it.
        unpredicted_stragglers: why the time that stragglers add is not modelled.
        hooked: parameters whose gradients are handed on one by one during backward.
        served: the time at which servers step: at each push, or once all have pushed. None without servers.
        waits_for: replicas that a step waits for; None for all.
    """

    sent: Sequence[Transfer] = ()
    buffers: int = 0
    varies: Note | str = ""
    unpredicted: Note | str = ""
    unpredicted_stragglers: str = ""
    hooked: int = 0
    served: Literal["each", "all"] | None = None
    waits_for: int | None = None

    def cost(self, world: World, servers: int) -> Cost:
        """Returns the bytes of one step by role, the mean over the steps of `world`, with so many servers."""
        worker = traffic_of((each for each in self.sent if not each.from_server), world)
        server = traffic_of((each for each in self.sent if each.from_server), world, world.replicas)
        shared = {primitive: nbytes / max(servers, 1) for primitive, nbytes in server.items()}
        return Cost(worker, shared, self.buffers, self.varies)


def spaced(transfers: Iterable[Transfer], every: int, first: int | None = None) -> list[Transfer]:
    """Returns the transfers at steps `first`, `first + every`, ...; `first` defaults to `every`."""
    return [replace(each, every=every, first=first) for each in transfers]


def traffic_of(transfers: Iterable[Transfer], world: World, copies: int = 1) -> Traffic:
    """Returns the bytes of one step by primitive, the mean over the steps of `world`, of so many copies of each."""
    together: dict[tuple[str, int, int | None, bool, float], float] = {}  # those of the same steps
    for each in transfers:
        if not each.is_counted:
            continue
        key = each.counted_as, each.every, each.first, each.with_samples, each.times
        together[key] = together.get(key, 0) + copies * each.nbytes
    found: dict[str, float] = {}
    for (primitive, every, first, with_samples, times), nbytes in together.items():
        found[primitive] = found.get(primitive, 0) + world.often(every, first, with_samples) * (times * nbytes)
    return found


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
