"""The shared part of sync modes with parameter servers: workers push gradients, and servers step with them.

A replica's side is exchange/pushing.py, a server's exchange/stepping.py. When a worker pushes and fetches, and when a
server steps and answers, is each mode's own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.notes import Note
from ...exchange.aggregation import Aggregation
from ...exchange.clip import Clip
from ...exchange.compress import Compressor
from ...exchange.elementwise import check_uncoupled
from ...exchange.pushing import Pushing
from ...exchange.server_shards import shards_of
from ...exchange.serving import Serving
from ...exchange.start_alike import start_alike
from ...exchange.stepping import Stepping
from ..core.batch import Batch
from ..core.cost import World
from ..core.held import Held, HeldPoint
from ..core.state import State
from ..core.sync import Measures
from ..core.with_servers import SyncWithServers


class ServerSync(SyncWithServers):
    """Workers and, for each part of the model, one or several servers."""

    def __init__(
        self, servers: int, compress: Compressor, aggregation: Aggregation, clip: Clip | None, gathers: bool
    ) -> None:
        """`gathers`: servers step once with the gradients of a clock, whoever is first, and not with each push."""
        self.servers, self.compress, self.aggregation, self.clip = servers, compress, aggregation, clip
        self.gathers = gathers
        self.traits = replace(
            self.traits,
            state_agrees=not compress.keeps,
            exact=compress.traits.lossless and aggregation.plain and (clip is None or not clip.clips),
        )

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.compress.check_optimizer(optimizer)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if len(self._shards_of(parameters)) > 1:
            check_uncoupled(optimizer, f"sync.servers={self.servers}", "sync.servers=1")

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        start_alike(parameters, comm)
        self._workers = comm.size - self.servers
        self._number = comm.rank - self._workers  # of this server
        shards = self._shards_of(list(parameters.values()))
        if self._serves:
            serving = Serving(comm, self._workers, self.traits.survives)
            shard, aggregation = shards[self._number % len(shards)], self.aggregation if self.gathers else None
            self._server = Stepping(shard, optimizer, serving, self.compress, aggregation, self.setting.rate)
        else:
            servers = self._servers_of(comm.rank)
            self._worker = Pushing(shards, servers, self._workers, comm, self.compress, self.aggregation)

    def _shards_of(self, parameters: Sequence[Any]) -> list[list[Any]]:
        """Returns the shards of the servers that a worker pushes to."""
        return shards_of(parameters, self.servers)

    def _servers_of(self, worker: int) -> Sequence[int]:
        """Returns the ranks of these servers."""
        return range(self._workers, self.comm.size)

    @property
    def _serves(self) -> bool:
        return self._number >= 0

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share, self._of_step = batch.share, batch.step

    def finish(self) -> None:
        self._worker.finish()

    def rejoin(self) -> None:
        """The next step fetches the servers' weights."""
        self._worker.forget()
        self.optimizer.state.clear()

    # -- state and measures

    def state_dict(self) -> State:
        """Returns, on replica 0, the servers' state, and its own between two pushes or fetches. On all replicas, the
        state has what was left out of messages.
        """
        return self._worker.state_dict(self.optimizer)

    def load_state_dict(self, state: State) -> None:
        if self._serves:
            self._server.load_state_dict(state["servers"][self._number])
        else:
            self._worker.load_state_dict(state, self.optimizer, own=self.traits.synchronous)

    def buffers(self) -> list[Tensor]:
        return self._server.buffers() if self._serves else self._worker.buffers()

    def report(self) -> Measures:
        return self._server.report() if self._serves else {}

    def shows(self) -> dict[str, Held]:
        """Returns the weights of a server that has all of them, and what compression left out on a worker."""
        if not self._serves:
            return self._worker.shows()
        return {"weights": HeldPoint(self._server.weights)} if self.servers == 1 else {}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return self.aggregation.notes(self.compress, world.replicas)
