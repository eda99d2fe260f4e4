"""Hogwild! (Niu, Recht, Re, Wright 2011, "HOGWILD!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent",
NeurIPS, Algorithm 1; arXiv 1106.5730).

All replicas have their weights in the same memory of one host. Each, at its own pace and with no lock,

    reads the weights w_v, v in e, of the support e of its batch, as they are at that moment
    computes the gradient G_e
    w_v <- w_v - eta G_e,v   for v in e, and writes nothing else.

So where supports are small, replicas seldom write to the same weight, and those that do not are serial SGD in some
order. That takes a model whose gradients are sparse tensors (model=sparse_logistic_regression) and plain SGD: momentum
and weight decay move weights outside the support. Dense gradients work too, with any optimizer, whose state each worker
has for itself; then all weights are in every support.

`lock="step"` makes a step, from reading the weights to having written them, one that no other worker's step overlaps: a
serial order of all steps, without staleness, and without speed-up but for what lies between steps. It is what Hogwild!
is to be compared with. `lock="update"` protects the writing alone, so that no update is lost, but weights are still
read while others write: the weaker baseline. (The paper's own locking variant, AIG, locks one weight at a time.) Parts
of a pipeline have locks of their own, and two replicas that each hold one whole step of a part wait for each other for
ever: `lock="step"` is for replicas that are one worker each.

Deviations from the paper: an addition to a weight is a load, a sum and a store, where the paper takes it to be atomic,
so that of two at once to the same weight one may be lost; batches may hold several samples; each replica has its own
share of the samples, without replacement.

What holds: one worker is serial training, bit for bit; so are several whose supports are disjoint, in any order. The
staleness of an update is how many of the others' came between reading the weights and writing them, as counted in
shared memory. A worker that dies is missed by nobody; what it was writing may be half there.

`consensus` is a copy of the shared weights. At the end replica 0 hears from all who live that they are done, so that
the weights are final. A checkpoint holds replica 0's optimizer, with which all go on.

Cost per step: no messages. The weights are in memory once; each worker's memory account has them in full.

Use it on one host, for models whose gradients are sparse, so that workers seldom write the same entries.
`hogwild_locked` is the baseline that shows what the lock costs.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ...comm import Comm
from ...comm.errors import FabricError
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...exchange.buckets import views_of
from ...exchange.clip import Clip
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.survivors import isend_to, recv_from, wait_for
from ..core.batch import Batch
from ..core.cost import Transfers, World
from ..core.sync import Measures, Sync, SyncTraits
from ..core.trial import Trial


class Hogwild(Sync):
    """Replicas at their own pace, on the same weights."""

    trial = Trial(of_64={"optimizer.lr": 0.002})  # each of 64 writers steps in full
    traits = SyncTraits(
        synchronous=False,
        weights_agree=False,
        survives=True,
        waits_in_passes=True,  # for the others' writes, whenever time passes
        over_parts="the replicas of each stage share that stage's weights in memory; a step may see the stages at "
        "different times",
    )

    def __init__(self, lock: Literal["none", "update", "step"] = "none", clip: Clip | None = None) -> None:
        """`lock`: what only one worker does at a time. `clip`: of a replica's own gradient, where that is dense; None
        for none.
        """
        self.lock, self.clip = lock, clip
        self.traits = replace(
            self.traits, whole_replica="locks the weights for a whole step" if lock == "step" else ""
        )  # parts wait for each other within a step

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        """Raises `ConfigError` where no memory can be shared."""
        super().prepare(parameters, optimizer, comm)
        self._weights = list(parameters.values())  # w
        if any(w.device.type != "cpu" for w in self._weights):
            raise ConfigError("sync=hogwild shares the weights in the host's memory. Choose hardware.device=cpu.")
        try:
            shared = comm.shared(flatten(self._weights))
            self._updates = comm.shared(torch.zeros(comm.size, dtype=torch.int64)).numpy()  # that each worker has made
            if self.lock != "none":
                self._mutex = comm.mutex()
        except FabricError as error:
            raise ConfigError(f"{error}; sync=asp works across hosts", about=("sync",)) from error
        for w, view in zip(self._weights, views_of(shared, self._weights), strict=True):
            w.data = view
        self._held = ExitStack()  # holds the lock in a step, where there is one
        self._staleness: Counter[int] = Counter()

    def begin(self, batch: Batch) -> None:
        if self.lock == "step":
            self._held.enter_context(self._mutex)
        for w in self._weights:
            w.grad = None  # the optimizer's zero_grad, without its hooks
        self._has_samples = batch.size > 0
        self._read_at = self._version()

    def update(self) -> None:
        with self._held:
            if self._has_samples:
                self.clip_gradients()  # before the lock is held: the parts of a replica wait for one another
            if self.lock == "update":
                self._held.enter_context(self._mutex)
            if self._has_samples:
                self._staleness[self._version() - self._read_at] += 1
                self._write()
                self._updates[self.comm.rank] += 1

    def skip(self) -> None:
        self._held.close()

    def rejoin(self) -> None:
        """The weights are in the host's memory; the optimizer's state was the worker's own."""
        self.optimizer.state.clear()

    def _version(self) -> int:
        """The number of all workers' updates."""
        return sum(self._updates.tolist())

    @torch.no_grad()
    def _write(self) -> None:
        for group in self.optimizer.param_groups:
            for w in group["params"]:
                if w.grad is not None and w.grad.is_sparse:
                    self._check_sparse(group)
                    # w_v <- w_v - eta G_e,v: what SGD.step does, without its hooks
                    w.add_(w.grad, alpha=-group["lr"])
                    w.grad = None
        if any(w.grad is not None for w in self._weights):
            self.optimizer.step()

    def _check_sparse(self, group: dict[str, Any]) -> None:
        """Raises `ConfigError` unless the optimizer's step is that of plain SGD, on the support alone."""
        if not isinstance(self.optimizer, SGD) or group["momentum"] or group["weight_decay"] or group["maximize"]:
            raise ConfigError(
                "this model's gradients are sparse, and only plain SGD writes to their support alone. "
                "Choose optimizer=sgd optimizer.momentum=0 optimizer.weight_decay=0, or model.sparse_gradients=false.",
                about=("sync",),
            )

    def finish(self) -> None:
        """Wait until all who live are done: they tell replica 0, which tells them so."""
        word, others = torch.zeros(1), range(1, self.comm.size)
        if self.comm.rank == 0:
            for worker in others:
                recv_from(word, worker, self.comm)
            wait_for(isend_to(word, others, self.comm))
        else:
            wait_for(isend_to(word, [0], self.comm))
            self.comm.recv(word, 0)

    def consensus(self) -> dict[str, Tensor]:
        return {name: w.detach().clone() for name, w in self.parameters.items()}

    def report(self) -> Measures:
        return {"staleness": dict(self._staleness), "lost": sorted(self.comm.lost())}

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        waits = Note(("sync",), "how long a worker waits for the lock was not measured")
        return Transfers(unpredicted="" if self.lock == "none" else waits)
