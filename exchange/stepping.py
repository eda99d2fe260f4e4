"""A parameter server's side: the weights that it holds, and the optimizer that steps them with what workers push.

Its version is the number of its steps. The staleness of a push is the number of versions that came between its worker's
last fetch and the push.

Where the rate follows a schedule, the server is as far in it as it has seen samples: step t is what comes after t whole
batches of all replicas, whoever pushed them. One worker alone has the rates of serial training.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm, MessageError
from ..compat.optimizers import step
from ..conf.errors import ConfigError
from ..strategies.core.schedule import Rate, scaled
from ..strategies.core.state import State
from ..strategies.core.sync import Measures
from .aggregation import Aggregation, Rows
from .buckets import put_gradients, views_of
from .channel import Channel
from .compress import Compressor, vector_of
from .flat import as_bytes, flatten
from .serving import Serving

ROUNDING = 1e-6  # of a batch of all replicas: the shares in it sum to 1 but for rounding


def _refuse(worker: int, share: float) -> None:
    raise MessageError(f"worker {worker} says that its batch is {share:g} of the step's samples, more than all")


class Stepping:
    """One server's weights w, and the gradient that it steps them with.

    `gradient` is to be filled before `step`. With `aggregation` a server may also gather the gradients of a clock, all
    of one version, and step once with what the rule makes of them, whoever was first.
    """

    def __init__(
        self,
        shard: Sequence[nn.Parameter],
        optimizer: Optimizer,
        serving: Serving,
        compress: Compressor,
        aggregation: Aggregation | None,
        rate: Rate,
    ) -> None:
        """`shard`: its parameters. `rate`: how the optimizer's goes over the run."""
        self.weights = flatten(shard)
        self.gradient = torch.zeros_like(self.weights)
        self._gradients = views_of(self.gradient, shard)
        self.serving, self._params, self._optimizer = serving, shard, optimizer
        self._key = str(serving.comm.rank)  # under which workers push to this server
        self._channel = Channel(compress, serving.comm, {self._key: vector_of(shard)})
        self._header = torch.zeros(1, dtype=torch.float64)
        self._version, self._fetched = 0, [0] * serving.workers
        self._rate, self._coming = rate, 0.0
        self._seen = torch.zeros(1, dtype=torch.float64)  # batches of all replicas, whose gradients were stepped with
        self._staleness: Counter[int] = Counter()
        self._answers: Channel | None = None
        self._aggregation = self._remembers = aggregation
        self._reads: Aggregation | None = aggregation
        self._received = None if aggregation is None else torch.empty_like(self.weights)
        self._clock = None if aggregation is None else aggregation.onto(self.gradient, serving.workers)

    def remember(self, aggregation: Aggregation) -> None:
        """Save what this rule remembers: the server steps with one push at a time."""
        self._remembers = self._reads = aggregation

    def share(self, servers: Comm) -> None:
        """Shares the weights of the first of these servers with all of them, in the host's memory."""
        if self.weights.device.type != "cpu":
            raise ConfigError(
                "sync.lock=false: servers share the weights in the host's memory. Choose hardware.device=cpu."
            )
        self.weights, self._seen = servers.shared(self.weights), servers.shared(self._seen)
        for parameter, view in zip(self._params, views_of(self.weights, self._params), strict=True):
            parameter.data = view

    def first(self) -> tuple[int, float]:
        """The worker whose message is first, and its header: see pushing.py."""
        worker = self.serving.comm.recv_any(self._header)
        return worker, float(self._header)

    # -- pushes

    def receive(self, gradient: Tensor, worker: int) -> None:
        """The gradient that this worker pushes."""
        receive = partial(self._channel.recv, self._key, gradient, worker)
        if self._reads is None:
            receive()
        else:
            self._reads.read(worker, gradient, receive)

    def count(self, worker: int, batches: float) -> None:
        """Counts a push that is about to be applied. `batches`: its share of all replicas' batch, or its batches."""
        self._staleness[self._version - self._fetched[worker]] += 1
        self._coming += batches

    def step(self, share: float) -> None:
        """w <- step(w, gradient), at this share of the rate."""
        if (made := self._channel.finish(self._key, self.gradient)) is not self.gradient:
            self.gradient.copy_(made)
        put_gradients(self._params, self._gradients)  # those of other servers' parameters stay None
        factor = self._rate.factor(int(self._seen + ROUNDING))
        with scaled([self._optimizer], share * factor):
            step(self._optimizer)
        self._version += 1
        self._seen += self._coming
        self._coming = 0.0

    def gather(self, worker: int, share: float) -> None:
        """Receive one of the clock's gradients."""
        assert self._received is not None and self._clock is not None
        self.receive(self._received, worker)
        if share > 1 + ROUNDING and self._aggregation is not None:
            self._aggregation.read(worker, self._received, partial(_refuse, worker, share))
            share = 1 / self.serving.workers
        self._clock.add(worker, share, self._received)
        self.count(worker, share)

    def step_with_gathered(self) -> bool:
        """w <- step(w, g), g = sum_j share_j g_j / sum_j share_j, or what the rule makes of all g_j, if any came."""
        if self._clock is None or not self._clock.ranks:
            return False
        lost = len(self.serving.comm.lost())
        if self._aggregation is not None:
            self._aggregation.check_left(self.serving.workers - lost, lost)
            if not self._aggregation.streaming:
                self._coming = 1.0  # one batch of all, whatever share of it a liar says that it has
        # the mean is over the sum of shares: less than 1 where a worker has died
        self._clock.close(int(self._seen + ROUNDING))
        self.step(1.0)
        self._clock.clear()
        return True

    # -- answers

    def answer(self, worker: int) -> None:
        """Sends the weights to the worker."""
        self._fetched[worker] = self._version
        with self.serving.comm.timeline.named("fetch"):
            self.serving.send(self.weights, worker)

    def compress_answers(self) -> None:
        """Makes `answer_all` send C(w - x) from now on: see sync/parameter_server.py."""
        self._known = self.weights.clone()  # x
        vectors = {self._key: vector_of(self._params)}
        self._answers = Channel(self._channel.compress, self.serving.comm, vectors, feedback=False)

    def answer_all(self, workers: Sequence[int]) -> None:
        """Sends the workers the weights, or the message of their difference from the weights that all workers have."""
        if self._answers is None:
            for worker in workers:
                self.answer(worker)
            return
        message = self._answers.encode(self._key, self.weights - self._known)
        self._known += self._answers.decode(self._key, message, self._known, self.serving.comm.rank)
        for worker in workers:
            self._fetched[worker] = self._version
            with self.serving.comm.timeline.named("fetch"):
                self.serving.send(as_bytes(message), worker)

    def answer_save(self, worker: int, keeps_weights: bool) -> None:
        """Sends the worker this server's state.

        `keeps_weights`: the weights are saved here; else replica 0, or another server, saves them.
        """
        weights = self.weights if keeps_weights else None
        state = {"optimizer": self._optimizer.state_dict(), "weights": weights, "seen": float(self._seen)}
        if self._answers is not None:
            state["answers"] = self._answers.state_dict()
        if self._remembers is not None and (remembered := self._remembers.state_dict()):
            state["joining"] = remembered
        self.serving.send_state(state, worker)

    # -- state and measures

    def load_state_dict(self, own: State) -> None:
        """Restores the state that this server sent in `answer_save`."""
        self._optimizer.load_state_dict(own["optimizer"])
        self._seen.fill_(own["seen"])
        if own["weights"] is not None:
            self.weights.copy_(own["weights"])
        if self._answers is not None:
            self._answers.load_state_dict(own["answers"])
        if self._remembers is not None:
            self._remembers.load_state_dict(own.get("joining", {}))

    def buffers(self) -> list[Tensor]:
        received = [] if self._received is None else [self._received]
        answers = [] if self._answers is None else [self._known, *self._answers.buffers()]
        rows = self._clock.buffers() if isinstance(self._clock, Rows) else []
        return [self.gradient, *received, *rows, *self._channel.buffers(), *answers]

    def report(self) -> Measures:
        return {"staleness": dict(self._staleness), "lost": sorted(self.serving.comm.lost())}
