"""Sums and means of the replicas' vectors: what a sync mode communicates with, whatever travels in their place.

`mean` is the weighted mean sum_i (n_i / n) x_i. With a compressor messages travel in place of the vectors
(channel.py). With an attack some replicas send other vectors than theirs, and with an aggregate all replicas get the
vectors of all and join them by its rule (aggregation.py).
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..comm import Comm, Work
from ..conf.notes import Note
from ..cost.transfer import Transfer, passes
from ..strategies.core.cost import World
from ..strategies.core.held import Held
from ..strategies.core.state import State
from . import profiling
from .aggregate import Aggregator
from .aggregation import Aggregation
from .attack import Attack
from .channel import Channel, held, notes_on_sums, sums
from .collectives import Collective, Fabric
from .compress import Compressor, Dense, Vector, vector_of

SHARE = 8  # bytes: a float64, by which a row counts


class Exchange:
    """One replica's. `prepare` comes before everything that communicates."""

    def __init__(
        self,
        compress: Compressor | None = None,
        collective: Collective | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        purpose: str = "gradients",
    ) -> None:
        """Takes these choices.

        Args:
            compress: None sends vectors as they are.
            collective: None takes the fabric's.
            aggregate: None takes the mean.
            attack: None: every replica is honest.
            purpose: Names the messages in a trace.
        """
        self.compress, self.collective, self.purpose = compress or Dense(), collective or Fabric(), purpose
        self.aggregation = Aggregation(aggregate, attack)

    @property
    def parts(self) -> tuple[Compressor, Collective, Aggregation]:
        return self.compress, self.collective, self.aggregation

    def prepare(self, comm: Comm, vectors: Mapping[str, Sequence[Tensor]]) -> None:
        """Makes the memory. `vectors`: by key, the tensors that a vector consists of."""
        self.comm = comm
        shapes = {key: vector_of(tensors) for key, tensors in vectors.items()}
        self._channel = Channel(self.compress if comm.size > 1 else Dense(), comm, shapes, self.collective)
        gathers = comm.size > 1 and not self.aggregation.streaming
        self._rows = {key: vectors[key][0].new_empty(comm.size, shapes[key].n) for key in shapes} if gathers else {}

    def sum(self, key: str, x: Tensor) -> Work:
        """x <- sum_i x_i, in place once waited for. All replicas have the same bits."""
        with self.comm.timeline.named(self.purpose):
            return self._channel.all_reduce(key, x)

    def mean(self, key: str, x: Tensor, weight: float, total: float, step: int) -> None:
        """x <- sum_i (weight_i / total) x_i in place, or what the aggregate makes of all x_i.

        `step`: of the run. Raises `NotFiniteError` where the aggregate withstands fewer rows that are not finite.
        """
        sent = self._sent(x, step)
        with self.comm.timeline.named(self.purpose):
            if key not in self._rows:
                self._channel.all_reduce(key, x.copy_(sent).mul_(weight / total)).wait()
                return
            self._channel.all_gather(key, sent, self._rows[key], self.aggregation.read)
            x.copy_(self._channel.finish(key, self._joined(self.aggregation, self._rows[key], weight, step)))

    def uncompressed_mean(self, x: Tensor, weight: float, total: float, step: int) -> Tensor:
        """Returns what `mean` would make of `x` without compression; `x` may be written over.

        An aggregate that remembers earlier rows does not remember these.
        """
        sent = self._sent(x, step)
        if not self.aggregation.streaming:
            return self._joined(copy.deepcopy(self.aggregation), self.comm.all_gather(sent), weight, step)
        sent.mul_(weight / total)
        with self.comm.timeline.named(self.purpose):
            self.collective.all_reduce(sent, self.comm).wait()
        return sent

    def _sent(self, x: Tensor, step: int) -> Tensor:
        return self.aggregation.sent(x, self.comm.rank, self.comm.size, step)

    def _joined(self, aggregation: Aggregation, rows: Tensor, weight: float, step: int) -> Tensor:
        """[K, n], which are written over -> [n]."""
        gathered = self.comm.all_gather(torch.tensor([weight], dtype=torch.float64))
        weights = dict(enumerate(gathered.flatten().tolist()))
        return aggregation.join_in_place(rows, list(weights), weights, self.comm.size, step)

    def keep(self, key: str, kept: Tensor) -> None:
        """`kept`, [n] of bool: all other entries of this vector are 0 on all replicas from now on."""
        self._channel.keep({key: kept})

    def state_dict(self) -> State:
        """Leaves out parts without anything to remember."""
        state = {"channel": self._channel.state_dict(), "joining": self.aggregation.state_dict()}
        return {name: each for name, each in state.items() if each}

    def load_state_dict(self, state: State) -> None:
        self._channel.load_state_dict(state.get("channel", {}))
        self.aggregation.load_state_dict(state.get("joining", {}))

    def buffers(self) -> list[Tensor]:
        return [*self._rows.values(), *self._channel.buffers()]

    def shows(self) -> dict[str, Held]:
        """Returns what compression left out."""
        return self._channel.shows()

    def transfers(self, vectors: Sequence[Vector], world: World) -> list[Transfer]:
        """Returns what a replica sends for one mean of these vectors; of one where they are not added up."""
        if self.aggregation.streaming:
            sent = sums(self.compress, self.collective, vectors, world)
        else:
            others, [vector] = world.replicas - 1, vectors
            rows = others * self.compress.mean_nbytes(vector, world.steps)
            kernels = passes("mul_", vector.n)
            sent = [
                Transfer("all_gather", world.replicas, rows, primitive="send", kernels=kernels),
                Transfer("all_gather", world.replicas, others * SHARE),
            ]
        if not self.aggregation.plain and world.replicas > 1:
            rule = partial(profiling.of_rule, self.aggregation, vectors[0], world.replicas)
            sent[0] = replace(sent[0], profile=rule)
        return sent

    def held(self, vectors: Sequence[Vector], replicas: int) -> int:
        """Returns the stated bytes of `buffers`, for these vectors."""
        if replicas == 1:
            return 0
        rows = 0 if self.aggregation.streaming else replicas * sum(vector.nbytes for vector in vectors)
        return rows + held(self.compress, vectors)

    def unpredicted(self, replicas: int) -> Note | str:
        """Returns why the time of these transfers is not modelled; "" if it is."""
        if self.aggregation.plain:
            return self.compress.unpredicted if replicas > 1 else ""
        if not isinstance(self.compress, Dense):
            return "aggregate or attack with compress: the time to decode all rows is not modelled"
        return ""

    def notes(self, vectors: Sequence[Vector], world: World) -> list[Note | str]:
        """See `Sync.notes`."""
        own = self.aggregation.notes(self.compress, world.replicas) if world.replicas > 1 else []
        if not self.aggregation.streaming:
            return own
        return [*own, *notes_on_sums(self.compress, self.collective, vectors, world)]
