"""Synchronous SGD through parameter servers (Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter
Server", OSDI, with its sequential consistency): what bsp computes, through a server.

In each step every worker j pushes the gradient g_j of its mini-batch, and the server, which has the optimizer, steps
once with their mean over samples, added in the order of ranks, whoever comes first:

    g = sum_j share_j g_j / sum_j share_j
    w <- step(w, g)

A push is answered with the new weights, so that workers agree after every step, whatever the optimizer; a batch without
samples is told of in place of a push. All gradients are of the newest version: their staleness is 0.

*Several servers*: each has a contiguous run of whole parameters, balanced by bytes; workers talk to all of them.

`aggregate` may say how a step's gradients become one (exchange/aggregation.py); with `attack` some workers push others
than theirs. With `compress` a worker pushes the message of its gradient (exchange/channel.py), to each server its own,
and adds what was left out to its next push; servers answer with whole weights.

*Double compression* (Tang et al. 2019, "DoubleSqueeze: Parallel Stochastic Gradient Descent with Double-pass
Error-Compensated Compression", ICML; arXiv 1905.05957): with `compress_answers` a server answers all with one message
of what its weights w differ from those that workers have, x, and both move:

    x <- x + C(w - x).

What C leaves out stays in w - x, and is sent later; no more is kept for it. Deviation: the paper's server sends the
mean gradient, and workers step. Workers train with x; at the end they are given w.

A server keeps what the workers pushed that wait: P - 1 gradients at the most. A checkpoint holds replica 0's weights
and the servers' optimizers, and w where it is another than x.

Cost per step, S bytes of gradient, n servers: a worker sends S + 8 n, and all servers S to each worker. With `compress`
the S of a push is that of its messages, and with `compress_answers` so is that of an answer.

Use it to set servers beside all-reduce with nothing else changed, or where workers reach the servers over faster
links than each other. One server's link carries what all workers send: sync=bsp is faster on equal links.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, MessageError
from ...conf.errors import ConfigError
from ...cost.transfer import Transfer
from ...exchange.aggregate import Aggregator
from ...exchange.aggregation import Aggregation
from ...exchange.attack import Attack
from ...exchange.clip import Clip
from ...exchange.compress import Compressor, Dense, vector_of
from ...exchange.flat import check_one_dtype
from ...exchange.pushing import HEADER, ServerRequest, stated, unpredicted, varying
from ...exchange.server_shards import held_by_servers, shards_of
from ..core.cost import Memory, Transfers, World, payload
from ..core.sync import SyncTraits
from ..core.terms import FOR_CHANGES, Need
from .servers import ServerSync


class ParameterServer(ServerSync):
    """Each step waits for all pushes."""

    traits = SyncTraits(steps_on_workers=False, steps_together=True, drops_writes=True)

    def __init__(
        self,
        servers: Annotated[int, Ge(1)] = 1,
        compress: Compressor | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        compress_answers: bool = False,
        clip: Clip | None = None,
    ) -> None:
        """`compress`: of pushes; None for no compression. `aggregate`, `attack`: None for the mean, and for nobody.
        `compress_answers`: those of servers, too. `clip`: of a gradient before it is pushed; None for none.

        Raises `ConfigError`.
        """
        compress = compress or Dense()
        if compress_answers:
            if isinstance(compress, Dense):
                raise ConfigError(
                    "sync.compress_answers=true: there is no compression. Choose compress=bf16, or another."
                )
            answers = "has servers answer with changes of weights", "sync.compress_answers=true"
            self.traits = replace(self.traits, requires=(Need(FOR_CHANGES, *answers, "sync.compress_answers=false"),))
        super().__init__(servers, compress, Aggregation(aggregate, attack), clip, gathers=True)
        self.compress_answers = compress_answers

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        if self.compress_answers and self._serves:
            self._server.compress_answers()
        elif self.compress_answers:
            self._worker.expect_differences()

    # -- a worker

    def update(self) -> None:
        if self._share > 0:
            self.clip_gradients()
            self._worker.accrue(self._share, self._of_step)
            self._worker.push()
        else:
            self._worker.skip()
        self._worker.pull()

    def skip(self) -> None:
        self._worker.skip()
        self._worker.pull()

    # -- a server

    def serve(self) -> None:
        serving = self._server.serving
        self._waiting: list[int] = []  # for this step's weights
        while serving.going:
            serving.hear(self._listen)
            if self._waiting and len(self._waiting) == len(serving.going):
                self._step()
        serving.send_last(self._server.weights)

    def _listen(self) -> None:
        worker, header = self._server.first()
        match header:
            case ServerRequest.SAVE:
                self._server.answer_save(worker, keeps_weights=self.compress_answers)
            case ServerRequest.DONE:
                self._server.serving.going.discard(worker)
            case share:
                if worker in self._waiting:
                    raise MessageError(f"worker {worker} sent a second message of the same step")
                if share > 0:
                    self._server.gather(worker, share)
                self._waiting.append(worker)

    def _step(self) -> None:
        """All that are going have pushed, or have nothing to push."""
        if self._server.step_with_gathered():
            self.made_at = self.comm.now()
        self._server.answer_all(self._waiting)
        self._waiting.clear()

    # -- what is stated

    def server_memory(self, held: Memory, parameters: Sequence[Tensor], world: World) -> Memory:
        """The gradient, one that is received, those of all where a rule looks at them together, and what all workers
        have where answers are compressed.
        """
        shards = shards_of(parameters, self.servers)
        vectors = 2 + self.aggregation.rows_held(world.replicas)
        if not self.compress_answers:
            return held_by_servers(held, shards, vectors)
        remembered = max(self.compress.remembered(vector_of(shard)) for shard in shards)
        return held_by_servers(held, shards, vectors + 1, remembered)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        self.aggregation.check(world.replicas)
        size = payload(parameters)
        shards = shards_of(parameters, self.servers)
        pushed, kept = stated(shards, self.compress, world)
        answer = size
        if self.compress_answers:  # also to a worker that had no samples
            answer = sum(self.compress.mean_nbytes(vector_of(shard), world.steps) for shard in shards)
        return Transfers(
            [
                Transfer("send", 2, pushed),
                Transfer("send", 2, HEADER * self.servers, timed=False),
                Transfer("send", 2, answer, from_server=True),
            ],
            buffers=size + kept,
            varies=varying(self.compress, world),
            unpredicted=unpredicted(self.compress, self.servers, self.aggregation),
            served="all",
        )
