"""Asynchronous pairwise gossip: gossiping SGD by pushes (Jin et al. 2016, "How to scale distributed deep learning?",
arXiv 1611.04581, push-gossip).

Workers go at their own pace; nobody waits for anybody. Worker i, before a step, mixes in what has arrived since the one
before, in the order of arrival:

    W_i <- (W_i + W_j) / 2               for each W_j that was pushed to i

then takes a step of its own, W_i <- step(W_i, g_i(W_i)), and every `period` steps pushes W_i to another worker, drawn
uniformly. The sender's weights stay as they are: it is no exchange, so the mean of all W is conserved in expectation
over the draws and not in any one push; what always holds is that mixing makes convex combinations, so that no entry
leaves the range of what all workers hold and what is under way.

`conserve` takes the sum-weights of Blot et al. 2016, "Gossip training for deep learning" (GoSGD, arXiv 1611.09726):
worker i holds a weight w_i, 1 at first; a push halves it and carries the other half,

    push    w_i <- w_i / 2;  send (W_i, w_i)
    mix     W_i <- (w_i W_i + w_j W_j) / (w_i + w_j);  w_i <- w_i + w_j

so that under zero gradients sum w W, and sum w = n, are conserved, what is under way counted in. (Plain averaging is
the same with all w = 1 for ever.)

Deviations from the papers: pushes happen every `period` steps, where GoSGD draws whether to. What is mixed is a model
of some steps ago: its staleness is how many steps fewer its sender had done, when it sent, than i has done, or 0.

`consensus` while training goes on is replica 0's own W, which asks nobody. At the end all that is under way is
received and mixed (`drain`), and the mean over the living replicas, weighted by w, is the result (`finish`). A worker
that is through waits `hardware.timeout` at most for the next message. A resumed run starts all workers from replica 0's
weights, with w = 1.

A push is waited for when the next one is due, until it has left: with a model that the network's buffers do not hold,
until its receiver looks for messages, before its next step.

A worker that dies is pushed to no more, and what it has not sent whole is dropped; with `conserve` its w goes with it.

Cost per step, S bytes of weights: a worker sends (S + 24) / period, the weights and a header.

Use it where workers differ much in speed, there shall be no server, and nobody shall wait: what comes late is mixed
in late.
"""

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, PeerLostError, Work
from ...cost.transfer import Transfer
from ...exchange.clip import Clip
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.survivors import isend_to, mean_of_living, recv_from, wait_for
from ..core.batch import Batch
from ..core.cost import UNMEASURED, Transfers, World, payload
from ..core.state import State
from ..core.sync import Measures, Sync, SyncTraits

HEADER = 24  # bytes: float64 message, steps that the sender has done, w


class GossipMessage(IntEnum):
    """The first entry of a header: what follows it."""

    PUSH = 0  # weights
    DONE = 1  # to worker 0: how often I have pushed to each worker; I will push no more
    DRAIN = 2  # from worker 0: how often each worker has pushed to you; nobody will push any more


class AsyncGossip(Sync):
    """Replicas go at their own pace, without a server."""

    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        unaveraged="joins the weights of all when training is over, and no average of them is known before",
        survives=True,
    )

    def __init__(
        self,
        period: Annotated[int, Ge(1)] = 1,
        conserve: bool = False,
        seed: Annotated[int, Ge(0)] = 0,
        clip: Clip | None = None,
    ) -> None:
        """`period`: steps between two pushes. `conserve`: sum-weights. `seed`: of the draws of whom to push to.
        `clip`: of a replica's own gradient; None for none.
        """
        self.period, self.conserve, self.seed, self.clip = period, conserve, seed, clip

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._weights = flatten(parameters.values())  # W_i
        room = len(self._weights) if comm.size > 1 else 0
        self._received, self._leaving = (torch.empty(room, dtype=self._weights.dtype) for _ in range(2))
        self._header, self._leaving_header = (torch.zeros(3, dtype=torch.float64) for _ in range(2))
        self._sending: list[Work] = []
        self._w = 1.0
        self._t = 0
        self._is_drained = False
        self._is_back = False  # after a failure: the next weights that come take the place of its own
        self._pushed = torch.zeros(comm.size, dtype=torch.int64)  # how often, to each worker
        self._mixed = torch.zeros(comm.size, dtype=torch.int64)  # how often, from each worker
        self._told: dict[int, Tensor] = {}  # what came with DONE, on worker 0, or with DRAIN, elsewhere
        self._staleness: Counter[int] = Counter()

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._take_arrived()

    def _take_arrived(self) -> None:
        while self.comm.size > 1 and (sender := self.comm.try_recv_any(self._header)) is not None:
            self._take(sender)

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()
        self._t += 1
        if self._t % self.period == 0 and (peer := self._draw()) is not None:
            self._push(peer)

    def rejoin(self) -> None:
        """The worker begins anew with the first weights that come; until some do, with those it had."""
        self._is_back = True
        self.optimizer.state.clear()
        self._take_arrived()

    def _draw(self) -> int | None:
        """Another living worker, if there is one."""
        size, lost = self.comm.size, self.comm.lost()
        if size - len(lost) <= 1:
            return None
        rng = np.random.default_rng((self.seed, self._t, self.comm.rank))
        peer = self.comm.rank
        while peer == self.comm.rank or peer in lost:
            peer = int(rng.integers(size))
        return peer

    def _push(self, peer: int) -> None:
        wait_for(self._sending)  # the last push, before its room is used again
        if self.conserve:
            self._w /= 2
        self._leaving.copy_(self._weights)
        self._leaving_header.copy_(self._header_of(GossipMessage.PUSH))
        with self.comm.timeline.named("push"):
            self._sending = isend_to(self._leaving_header, [peer], self.comm) + isend_to(
                self._leaving, [peer], self.comm
            )
        self._pushed[peer] += 1

    def _take(self, sender: int) -> None:
        """Receives and handles the message whose header has come."""
        message, its_t, its_w = self._header.tolist()
        if message != GossipMessage.PUSH:
            counts = torch.empty_like(self._pushed)
            if recv_from(counts, sender, self.comm):
                self._told[sender] = counts
        elif recv_from(self._received, sender, self.comm):
            self._mix(int(its_t), its_w)
            self._mixed[sender] += 1

    def _mix(self, its_t: int, its_w: float) -> None:
        if self._is_back and its_w > 0:
            self._weights.copy_(self._received)
            self._is_back = False
        elif its_w > 0:  # which a thousand pushes without an answer would halve to nothing
            # W_i <- (w_i W_i + w_j W_j) / (w_i + w_j)
            self._weights.lerp_(self._received.to(self._weights.device), its_w / (self._w + its_w))
        if self.conserve:
            self._w += its_w
        self._staleness[max(self._t - its_t, 0)] += 1

    # -- the end

    def drain(self) -> None:
        """Receives all pushes that are under way, and goes on receiving until nobody has one left.

        Worker 0 learns from everyone how often it pushed to whom, and then tells everyone how many pushes to wait for:
        O(n) messages. A worker that is through and did not listen would stop those that push to it.
        """
        if self.comm.size == 1 or self._is_drained:
            return
        if self.comm.rank == 0:
            self._hear_all_done()
        else:
            self._hear_what_is_due()
        wait_for(self._sending)
        self._is_drained = True

    def finish(self) -> None:
        """Takes the mean over all."""
        self.drain()
        if self.comm.size > 1:
            mean = mean_of_living(self._weights * self._w, self._w, self.comm)
            self._weights.copy_(mean)

    def _hear_all_done(self) -> None:
        """Waits on worker 0 until all workers are done, and sends each the number of pushes to it. Messages of one
        sender come in order: a worker that is done has pushed to worker 0 for the last time.
        """
        others = set(range(1, self.comm.size))
        while others - self._told.keys() - self.comm.lost():
            self._take_next()
        nothing = torch.zeros_like(self._pushed)
        pushed = torch.stack([self._pushed, *(self._told.get(sender, nothing) for sender in sorted(others))])
        for worker, due in enumerate(pushed.T.contiguous()):
            if worker != 0:
                self._tell(worker, GossipMessage.DRAIN, due)

    def _hear_what_is_due(self) -> None:
        self._tell(0, GossipMessage.DONE, self._pushed)
        while 0 not in self._told or self._misses(due=self._told[0]):
            self._take_next()

    def _misses(self, due: Tensor) -> bool:
        lost = self.comm.lost()
        return any(sender not in lost for sender in (self._mixed < due).nonzero().flatten().tolist())

    def _take_next(self) -> None:
        """The next message, or the news that somebody has died. Raises `PeerLostError` if that is worker 0."""
        try:
            sender = self.comm.recv_any(self._header)
        except PeerLostError as error:
            if error.rank == 0:
                raise
            return
        self._take(sender)

    def _tell(self, worker: int, message: GossipMessage, counts: Tensor) -> None:
        header = self._header_of(message)
        wait_for(isend_to(header, [worker], self.comm) + isend_to(counts, [worker], self.comm))

    def _header_of(self, message: GossipMessage) -> Tensor:
        return torch.tensor([message, self._t, self._w], dtype=torch.float64)

    # -- state and measures

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]

    def buffers(self) -> list[Tensor]:
        return [self._received, self._leaving]

    def report(self) -> Measures:
        return {"staleness": dict(self._staleness), "lost": sorted(self.comm.lost())}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        size = payload(parameters)
        if world.replicas == 1:
            return Transfers(unpredicted=UNMEASURED)
        push = Transfer("send", world.replicas, size + HEADER, every=self.period)
        return Transfers([push], buffers=2 * size, unpredicted=UNMEASURED)
