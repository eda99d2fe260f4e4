"""Records a collective message by message: a sum with one entry a chunk, on a virtual cluster without other traffic.

Each worker's entries say whose they are and which: 2^rank + 2^40 place. A sum of them says whose values are in it and
which entry it is of, so that what travels can be read off the messages themselves, whatever the algorithm.
"""

from dataclasses import dataclass

import torch

from ...comm import Comm
from ...comm.network import Network, NetworkLink
from ...comm.virtual import SimulatedCluster
from ...conf.errors import ConfigError
from .base import Collective

MOST = 16  # workers of a picture
_PLACE = 40  # bits for the workers
_CHUNK_SECONDS, _LATENCY = 1.0, 1e-5  # so that messages of one step begin within less time than a chunk takes

Values = frozenset[int]  # the workers whose values have been added up


@dataclass(frozen=True)
class RecordedMessage:
    source: int
    destination: int
    chunks: tuple[int, ...]
    adds: bool  # to what is there; False: it takes its place


@dataclass(frozen=True)
class RecordedStep:
    name: str  # the algorithm's word for it
    messages: tuple[RecordedMessage, ...]
    after: tuple[tuple[Values, ...], ...]  # [workers][chunks], once all have arrived


@dataclass(frozen=True)
class Recording:
    hosts: tuple[int, ...]  # of each worker
    steps: tuple[RecordedStep, ...]
    chosen: tuple[str, ...] = ()  # as `Collective.explain` tells

    @property
    def workers(self) -> int:
        return len(self.hosts)


@dataclass(frozen=True)
class _SeenMessage:
    at: float
    source: int
    destination: int
    name: str
    entries: tuple[int, ...]


def nbytes_of(workers: int) -> int:
    """Returns the bytes of the recorded sum, which has one entry a chunk."""
    return workers * torch.int64.itemsize


def record(collective: Collective, workers: int, workers_per_host: int = 1) -> Recording:
    """Raises `ConfigError` where there are no messages, or too many workers for a picture."""
    if not 2 <= workers <= MOST:
        raise ConfigError(f"hardware.workers={workers}: a picture of a collective has 2 to {MOST} workers")
    seen: list[_SeenMessage] = []

    def watch(source: int, destination: int, name: str, at: float, message: torch.Tensor) -> None:
        seen.append(_SeenMessage(at, source, destination, name, tuple(message.view(-1).tolist())))

    def sum_up(comm: Comm) -> list[int]:
        mine = torch.tensor([(1 << comm.rank) + (place << _PLACE) for place in range(workers)])
        collective.all_reduce(mine, comm).wait()
        return mine.tolist()

    link = NetworkLink(_LATENCY, torch.int64.itemsize / _CHUNK_SECONDS)
    cluster = SimulatedCluster(workers, Network(link, link, workers_per_host=workers_per_host), watch=watch)
    results = cluster.run(sum_up)
    hosts = tuple(cluster.fabric.host(rank) for rank in range(workers))
    if not seen:
        chosen = "".join(f" ({why})" for why in collective.explain())
        raise ConfigError(
            f"is made by the fabric{chosen}, and sends no messages of its own that could be drawn. Choose "
            "one that does, such as collective=ring.",
            about=("collective",),
        )
    _check_sums(results)
    return Recording(hosts, _steps(seen, workers), tuple(collective.explain()))


def _steps(seen: list[_SeenMessage], workers: int) -> tuple[RecordedStep, ...]:
    state = [[frozenset({rank}) for _ in range(workers)] for rank in range(workers)]
    steps: list[RecordedStep] = []
    for group in _together(seen):
        messages: list[RecordedMessage] = []
        for each in sorted(group, key=lambda each: (each.source, each.destination)):
            entries = [_read(entry) for entry in each.entries]
            there = state[each.destination]
            adds = all(there[place].isdisjoint(values) for place, values in entries)
            for place, values in entries:
                there[place] = there[place] | values if adds else values
            messages.append(RecordedMessage(each.source, each.destination, tuple(place for place, _ in entries), adds))
        names = dict.fromkeys(each.name for each in group if each.name)
        steps.append(RecordedStep(", ".join(names), tuple(messages), tuple(tuple(row) for row in state)))
    return tuple(steps)


def _together(seen: list[_SeenMessage]) -> list[list[_SeenMessage]]:
    """Groups the messages that began at the same time, apart from latencies."""
    groups: list[list[_SeenMessage]] = []
    for each in sorted(seen, key=lambda each: each.at):
        if groups and each.at - groups[-1][0].at < _CHUNK_SECONDS / 2:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _read(entry: int) -> tuple[int, Values]:
    """(which entry it is of, whose values are in it)"""
    values = frozenset(rank for rank in range(MOST) if entry >> rank & 1)
    return (entry >> _PLACE) // len(values), values


def _check_sums(results: list[list[int]]) -> None:
    """All have all. Raises `ConfigError`: an algorithm may be the user's own."""
    everyone = frozenset(range(len(results)))
    for rank, row in enumerate(results):
        for place, entry in enumerate(row):
            _, values = _read(entry)
            if values != everyone:
                raise ConfigError(
                    f"worker {rank} has the values of workers {', '.join(map(str, sorted(values)))} in its "
                    f"chunk {place} in the end; must be the sum of all",
                    about=("collective",),
                )
