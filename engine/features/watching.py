"""Watches what the workers and servers of a virtual cluster hold, for the animated picture of a small run.

A worker is looked at when its first step begins and at the end of each step, a server after it changed the weights. Of
every worker: the number of its steps (clock). Of a worker that is a whole replica, and may differ from the others: its
weights, as a point in a plane. A mode or a strategy may show more (`Shown`). Of a mode whose updates a rule aggregates
(`Aggregation`), worker 0 and the first server show the rows of each aggregation and what the rule made of them.

The plane is that of the two main directions in which replicas differ: of the deviations of all weights that were seen
from the mean of the replicas at that time. (The main directions of the weights themselves are those of training, in
which replicas hardly differ.)

The consensus distance is sqrt(mean_i |W_i - mean|^2), over the last weights that were seen of each replica. Replicas
that share their memory have neither points nor distances: they have the same weights at any time.

A watched run has one feature more, whose hooks look. A run that nobody watches has no trace of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...comm import Comm
from ...exchange.aggregation import Aggregation
from ...strategies.core.held import Held, HeldCells, HeldNumber, HeldPoint, HeldRows
from ...strategies.core.protocols import shown_by
from ...strategies.core.with_servers import SyncWithServers
from ..fabrics.layout import RunLayout
from .feature import Context, Feature, Hooks, Parts

MOST_POINTS = 600  # vectors of workers in the plane; where there are more, every second, third, ... step is taken
MOST_NUMBERS = 2**25  # of all these vectors together: 128 MiB
ROUNDING = 1e-14  # of the largest square: what differences of squares have of it
BLOCKS = 12  # cells of weights in memory that workers share
CLOCK, WEIGHTS, OVERWRITTEN, DISTANCE = "clock", "weights", "entries overwritten", "consensus distance"
UPDATES = "updates given to the rule"
Plain = dict[str, Any]


class Sample(NamedTuple):
    """The value that worker or server `rank` held at a time, in seconds of the virtual clock."""

    at: float
    rank: int
    name: str
    held: Held


class SentBytes(NamedTuple):
    """The size of a message, launched at a time in seconds of the virtual clock."""

    at: float
    source: int
    destination: int
    purpose: str
    nbytes: int


class Watcher:
    """All that was seen of one run."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._samples: list[Sample] = []
        self._sent: list[SentBytes] = []
        self._servers: dict[int, SyncWithServers] = {}
        self._made_at: dict[int, float] = {}  # of what was seen of each server
        self._memories: dict[int, int] = {}  # addresses of workers' weights

    def watched(self, parts: Parts) -> Parts:
        """Returns the parts of a run that is watched."""
        following = None if parts.following is None else self.watched(parts.following)
        return replace(parts, features=(*parts.features, WatchedFeature(self)), following=following)

    def see(self, source: int, destination: int, purpose: str, at: float, message: Tensor) -> None:
        """Notes a message (comm/virtual_state.py, `Watch`)."""
        self._sent.append(SentBytes(at, source, destination, purpose, message.nbytes))

    def add_server(self, rank: int, sync: SyncWithServers) -> None:
        self._servers[rank], self._made_at[rank] = sync, -inf

    def add_weights(self, rank: int, weights: Sequence[Tensor]) -> None:
        """Notes where a worker has its weights: in memory of its own, or that others have, too."""
        self._memories[rank] = weights[0].data_ptr()

    @property
    def _is_shared(self) -> bool:
        return len({*self._memories.values()}) < len(self._memories)

    def look(self, at: float, rank: int, found: Mapping[str, Held]) -> None:
        """Notes what a worker or a server holds."""
        self._samples += [Sample(at, rank, name, _copied(held)) for name, held in found.items()]

    def look_at_servers(self) -> None:
        """Notes what the servers hold that have changed."""
        for server, sync in self._servers.items():
            if sync.made_at > self._made_at[server]:
                self._made_at[server] = sync.made_at
                self.look(sync.made_at, server, shown_by(sync))

    def told(self) -> Plain:
        """Returns all as plain values, times in seconds.

        {"held": [{"name", "kind", "samples": [[rank, at, ...]]}], "curves": [{"name", "samples": [[at, value]]}],
        "sent": [[at, from, to, purpose, bytes]]}. A sample of a number is [rank, at, value], of cells [rank, at, texts,
        shares], of a point [rank, at, x, y], of rows [rank, at, rows, [x, y] of the result], where each of the rows is
        [worker, x, y, is_picked, is_apart].
        """
        self.look_at_servers()
        samples = sorted(self._samples, key=lambda each: each.at)
        places, distances = self._plane([] if self._is_shared else _new_points(samples, self._layout.workers))
        tracks: dict[str, Plain] = {}
        for each in samples:
            if isinstance(each.held, HeldPoint) and id(each) not in places:
                continue
            if each.name == OVERWRITTEN and not self._is_shared:  # by updates within its own passes
                continue
            kind, values, more = _plain(each, places)
            track = tracks.setdefault(each.name, {"name": each.name, "kind": kind, **more, "samples": []})
            track["samples"].append([each.rank, each.at, *values])
        curves = [{"name": DISTANCE, "samples": distances}] if any(value for _, value in distances) else []
        return {"held": [*tracks.values()], "curves": curves, "sent": [list(each) for each in sorted(self._sent)]}

    def _plane(self, points: Sequence[Sample]) -> tuple[dict[int, tuple[float, float]], list[list[float]]]:
        """Returns the place of each sample in the plane by its identity, and the consensus distance over time."""
        if not points:
            return {}, []
        vectors = torch.stack([_vector(each.held).double() for each in points])
        vectors -= vectors.mean(0)
        gram = vectors @ vectors.T
        largest = float(gram.diagonal().max())
        means = torch.zeros_like(gram)  # row s: by which samples' mean the replicas' mean is at the time of sample s
        last: dict[int, int] = {}  # worker -> its newest sample
        distances: list[list[float]] = []
        for number, each in enumerate(points):
            is_replica = each.name == WEIGHTS and each.rank < self._layout.workers
            if is_replica:
                last[each.rank] = number
            now = [*last.values()] or [number]
            means[number, now] = 1 / len(now)
            if is_replica and len(last) == self._layout.replicas > 1:
                own = gram[now][:, now]
                squares = float(own.diagonal().mean() - own.mean())  # mean_i |W_i|^2 - |mean|^2
                distances.append([each.at, sqrt(squares) if squares > ROUNDING * largest else 0.0])
        places = plane_of(gram, torch.eye(len(points), dtype=gram.dtype) - means).tolist()
        return {id(each): (x, y) for each, (x, y) in zip(points, places, strict=True)}, distances


def plane_of(gram: Tensor, differences: Tensor) -> Tensor:
    """Places k vectors in the plane of the two main directions of m differences between them: [k, 2].

    Args:
        gram: [k, k], the inner products of the vectors v.
        differences: [m, k], each a sum of vectors: d = A v.

    The directions are those of the greatest eigenvalues l of A G A^T. A vector's place along direction e is
    G A^T e / sqrt(l). Signs are such that the place that is farthest from 0 is positive.
    """
    values, found = torch.linalg.eigh(differences @ gram @ differences.T)
    values, found = values.flip(0)[:2], found.flip(1)[:, :2]
    is_one = values > 1e-12 * gram.diagonal().max()
    two = gram @ differences.T @ found * torch.where(is_one, values.clamp(min=1e-300).rsqrt(), 0.0)
    two = torch.nn.functional.pad(two, (0, 2 - two.shape[1]))
    farthest = two.gather(0, two.abs().argmax(0, keepdim=True))
    return two * torch.where(farthest < 0, -1.0, 1.0)


def _vector(held: Held) -> Tensor:
    assert isinstance(held, HeldPoint)
    return held.vector


def _copied(held: Held) -> Held:
    match held:
        case HeldPoint():
            return replace(held, vector=held.vector.detach().clone())
        case HeldRows():
            return replace(held, rows=held.rows.detach().clone(), result=held.result.detach().clone())
        case _:
            return held


def _new_points(samples: Sequence[Sample], workers: int) -> list[Sample]:
    """Returns the points without those of which another worker had the same copy before; none if no worker has one."""
    seen: set[tuple[str, bytes]] = set()
    found: list[Sample] = []
    for each in samples:
        if not isinstance(each.held, HeldPoint):
            continue
        key = each.name, each.held.vector.cpu().numpy().tobytes()
        if each.name == WEIGHTS or key not in seen:
            found.append(each)
        seen.add(key)
    return found if any(each.name == WEIGHTS and each.rank < workers for each in found) else []


def _plain(sample: Sample, places: Mapping[int, tuple[float, float]]) -> tuple[str, list[Any], Plain]:
    """Returns the kind of a sample, its values, and what else there is to say of all of its name."""
    match sample.held:
        case HeldNumber(value, within):
            return "number", [value], {"within": within} if within is not None else {}
        case HeldCells(texts, shares):
            return "cells", [list(texts), [round(share, 3) for share in shares]], {}
        case HeldPoint(_, ties):
            return "point", list(places[id(sample)]), {"ties": ties}
        case HeldRows(rows, of, result, apart):
            every = torch.cat([rows, result.unsqueeze(0)]).double()
            every -= every.mean(0)
            gram = every @ every.T
            *drawn, made = plane_of(gram, torch.eye(len(gram), dtype=gram.dtype)).tolist()
            picked = (rows == result).all(1).tolist()
            found = [[i, *at, is_it, i in apart] for i, at, is_it in zip(of, drawn, picked, strict=True)]
            return "rows", [found, made], {}


# -- on a worker


@dataclass(frozen=True)
class WatchedFeature(Feature):
    """Lets a watcher see each worker and server of a run."""

    watcher: Watcher

    def set_up(self, parts: Parts, comm: Comm) -> None:
        if isinstance(parts.sync, SyncWithServers) and comm.rank >= parts.layout.workers:
            self.watcher.add_server(comm.rank, parts.sync)
        aggregation = getattr(parts.sync, "aggregation", None)
        if isinstance(aggregation, Aggregation) and comm.rank in (0, parts.layout.workers):
            aggregation.watch(lambda rows: self.watcher.look(comm.now(), comm.rank, {UPDATES: rows}))

    def hooks(self, context: Context) -> Hooks:
        return WatchingHooks(self.watcher, context)


class WatchingHooks(Hooks):
    """Looks at one worker."""

    def __init__(self, watcher: Watcher, context: Context) -> None:
        self._watcher, self._context, self._sync = watcher, context, context.parts.sync
        parts = context.parts
        steps = parts.experiment.steps_in_all(parts.deal().steps_per_epoch) or 1
        vectors, numbers = steps * parts.layout.replicas, sum(each.numel() for each in parts.model.parameters())
        # steps between two looks at weights and servers
        self._every = -(-vectors // min(MOST_POINTS, max(MOST_NUMBERS // numbers, 1)))
        self._differs = parts.layout.parts == 1 and not self._sync.traits.weights_agree
        self._begun = False

    def begin_step(self, step: int) -> None:
        self._before = self._weights()
        if not self._begun:
            self._begun = True
            self._watcher.add_weights(self._context.comm.rank, [*self._sync.parameters.values()])
            self._look(step)

    def after_backward(self, step: int) -> None:
        self._after_passes = self._weights()

    def after_update(self, step: int, took: bool) -> None:
        now = self._weights()
        theirs, own = self._after_passes != self._before, now != self._after_passes
        overwritten = {OVERWRITTEN: in_blocks(theirs & own)} if bool(theirs.any()) else {}
        self._look(step + 1, overwritten)

    def _look(self, clock: int, more: Mapping[str, Held] | None = None) -> None:
        generic: dict[str, Held] = {CLOCK: HeldNumber(clock)}
        is_due = clock % self._every == 0
        if self._differs and is_due:
            generic[WEIGHTS] = HeldPoint(self._weights())
        found = {**generic, **(more or {}), **shown_by(self._sync), **shown_by(self._context.parts.strategy)}
        self._watcher.look(self._context.comm.now(), self._context.comm.rank, found)
        if is_due:
            self._watcher.look_at_servers()

    def _weights(self) -> Tensor:
        return torch.cat([each.detach().flatten() for each in self._sync.parameters.values()])


def in_blocks(entries: Tensor) -> HeldCells:
    """[n] of bool -> how many entries are True in each of `BLOCKS` blocks, one after the other."""
    blocks = entries.tensor_split(min(BLOCKS, len(entries)))
    counts = [int(block.sum()) for block in blocks]
    return HeldCells(
        tuple(str(count) if count else "" for count in counts),
        tuple(count / len(block) for count, block in zip(counts, blocks, strict=True)),
    )
