"""A worker's side of parameter servers: what it pushes to them, and fetches from them.

Each message to a server has a header of one float64: the batch's share of the step's samples announces a push, whose
gradient follows; any other is a `ServerRequest`. Where there are several servers each has a contiguous run of whole
parameters (server_shards.py), and a worker talks to all of them; its pushes and fetches are then of that many pieces.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm, Work
from ..conf.notes import Note
from ..strategies.core.cost import World
from ..strategies.core.held import Held
from ..strategies.core.state import State, recv_state
from .aggregation import Aggregation
from .buckets import views_of
from .channel import Channel, held
from .compress import Compressor, Dense, Vector, vector_of
from .flat import flatten

HEADER = 8  # bytes


class ServerRequest(IntEnum):
    """The kind of a worker's message to a server, other than a push."""

    SKIP = 0  # my batch has no samples: no gradient follows
    FETCH = -1  # send me the weights, as soon as I may go on
    SAVE = -2  # send me your state, then too
    DONE = -3  # I will ask no more; send me the last weights once all are done


@dataclass(frozen=True)
class ServerShard:
    """One server's part of a worker's weights and accrued gradients (views)."""

    server: int
    weights: Tensor
    accrued: Tensor


class Pushing:
    """One worker's weights w, the gradients a that it has accrued and not pushed, and the servers it trains with."""

    def __init__(
        self,
        shards: Sequence[Sequence[nn.Parameter]],
        servers: Sequence[int],
        workers: int,
        comm: Comm,
        compress: Compressor,
        aggregation: Aggregation,
    ) -> None:
        """`shards`: of the part, those of `servers`. `workers`: of the group, all that follow are servers.

        `aggregation`: says who pushes another gradient than its own.
        """
        self._params = [parameter for shard in shards for parameter in shard]
        self._weights = flatten(self._params)  # w
        self.accrued = torch.zeros_like(self._weights)  # a
        self._gradients = views_of(self.accrued, self._params)
        sizes = [sum(parameter.numel() for parameter in shard) for shard in shards]
        pieces = zip(servers, self._weights.split(sizes), self.accrued.split(sizes), strict=True)
        self.places = [ServerShard(*piece) for piece in pieces]
        self._comm, self._aggregation, self._workers = comm, aggregation, workers
        self._vectors = {str(server): vector_of(shard) for server, shard in zip(servers, shards, strict=True)}
        self._channel = Channel(compress, comm, self._vectors)
        self._differences: Channel | None = None
        self._header = torch.zeros(1, dtype=torch.float64)
        self.steps = 0  # with samples
        self._share, self._step = 1.0, 0  # of the last of them
        self.owes = False  # what it has accrued

    def accrue(self, share: float, step: int) -> None:
        """a <- a + g, of a batch that has this share of the step's samples."""
        for accrued, parameter in zip(self._gradients, self._params, strict=True):
            if parameter.grad is not None:
                accrued.add_(parameter.grad)
        self._share, self._step = share, step
        self.steps += 1
        self.owes = True

    def push(self) -> None:
        """a goes to the servers, and a <- 0."""
        # nothing is waited for in between: two servers may each be receiving from another worker
        sent = self._aggregation.sent(self.accrued, self._comm.rank, self._workers, self._step)
        pieces = sent.split([len(place.accrued) for place in self.places])
        with self._comm.timeline.named("push header"):
            pushing = self._tell(self._share)
        with self._comm.timeline.named("push"):
            for place, piece in zip(self.places, pieces, strict=True):
                pushing.append(self._channel.isend(str(place.server), piece, place.server))
        _wait(pushing)
        self.accrued.zero_()
        self.owes = False

    def shows(self) -> dict[str, Held]:
        return self._channel.shows()

    def skip(self) -> None:
        """Tells the servers that no push comes from this batch."""
        _wait(self._tell(ServerRequest.SKIP))

    def forget(self) -> None:
        """Drops the gradients that were not pushed, and what compression left out of pushes."""
        self.accrued.zero_()
        self.owes = False
        self._channel.load_state_dict({})

    def fetch(self) -> None:
        # ready to receive from all before all have been told: a server that is blocked in a send takes no message
        with self._comm.timeline.named("fetch request"):
            asking = self._tell(ServerRequest.FETCH)
        _wait([*asking, *self._pull()])

    def expect_differences(self) -> None:
        """Makes `pull` receive the messages of `Stepping.answer_all` from now on."""
        self._differences = Channel(self._channel.compress, self._comm, self._vectors, feedback=False)

    def pull(self) -> None:
        """Receive weights that the servers send by themselves."""
        if self._differences is None:
            _wait(self._pull())
            return
        for place in self.places:
            place.weights.add_(self._differences.receive(str(place.server), place.weights, place.server))

    def finish(self) -> None:
        """Tell all servers, and receive the last weights."""
        _wait(self._tell(ServerRequest.DONE, self._all_servers))
        _wait(self._pull())

    def _pull(self) -> list[Work]:
        return [self._comm.irecv(place.weights, place.server) for place in self.places]

    def _tell(self, header: float, servers: Iterable[int] | None = None) -> list[Work]:
        """`servers`: to be told; None for those that this worker trains with."""
        self._header.fill_(header)
        told = [place.server for place in self.places] if servers is None else servers
        return [self._comm.isend(self._header, server) for server in told]

    @property
    def _all_servers(self) -> range:
        return range(self._workers, self._comm.size)

    # -- state and measures

    def state_dict(self, optimizer: Optimizer) -> State:
        """Returns the state to save.

        Replica 0 returns the servers' state, and its own between two pushes or fetches. Every replica returns the error
        feedback of its messages.
        """
        slots = self._channel.state_dict()
        own = {"channel": slots} if slots else {}
        if self._comm.rank != 0:
            return own
        _wait(self._tell(ServerRequest.SAVE, self._all_servers))
        return {
            **own,
            "servers": [recv_state(server, self._comm) for server in self._all_servers],
            "t": self.steps,
            "share": self._share,
            "accrued": self.accrued.clone() if self.owes else None,
            "optimizer": optimizer.state_dict(),
        }

    def load_state_dict(self, state: State, optimizer: Optimizer, own: bool) -> None:
        """`own`: it is what this replica saved, not replica 0."""
        if own or self._comm.rank == 0:
            self._channel.load_state_dict(state.get("channel", {}))
        if self._comm.rank == 0:
            optimizer.load_state_dict(state["optimizer"])
            self.steps, self._share = state["t"], state["share"]
            if state["accrued"] is not None:
                self.accrued.copy_(state["accrued"])
                self.owes = True

    def buffers(self) -> list[Tensor]:
        return [self.accrued, *self._channel.buffers()]


def stated(shards: Sequence[Sequence[Tensor]], compress: Compressor, world: World, every: int = 1) -> tuple[float, int]:
    """Bytes a step of pushes, one in `every` steps with samples, without their headers, and those that slots hold.

    Raises `ConfigError`.
    """
    vectors = [vector_of(shard) for shard in shards]
    for vector in vectors:
        compress.check(vector)
    return sum(_pushed(vector, compress, world, every) for vector in vectors), held(compress, vectors)


def varying(compress: Compressor, world: World) -> Note | str:
    """Returns why the bytes of pushes cannot be stated beforehand; "" if `stated` says them."""
    if world.busy is None:
        return Note(("partition",), "in which steps a worker has samples to push for is known once the data are dealt")
    return compress.varies(world.steps)


def unpredicted(compress: Compressor, servers: int, aggregation: Aggregation | None = None) -> Note | str:
    """Returns why the time of a step with servers is not modelled; "" if it is."""
    if aggregation is not None and aggregation.unpredicted:
        return aggregation.unpredicted
    if not isinstance(compress, Dense):
        return Note(("compress", "sync"), "the time that messages to and from a server take was not measured")
    if servers > 1:
        return "sync.servers: how several servers share the cores was not tried against measurements"
    return ""


def _pushed(vector: Vector, compress: Compressor, world: World, every: int) -> float:
    if world.steps is None:
        return compress.mean_nbytes(vector, None) / every
    counts = [(steps // every, replicas) for steps, replicas in world.steps_of(with_samples=True)]
    sent = sum(pushes * compress.mean_nbytes(vector, pushes) * replicas for pushes, replicas in counts)
    return sent / (world.steps * world.replicas)


def _wait(works: Iterable[Work]) -> None:
    for work in works:
        work.wait()
