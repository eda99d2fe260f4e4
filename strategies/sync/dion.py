"""Dion: orthonormalised low-rank momentum, of which the factors alone travel (Ahn, Xu, Abreu, Langford 2025, "Dion:
Distributed Orthonormalized Updates", arXiv 2504.05295).

For each weight X, [m, n], that is a matrix, worker i keeps a momentum M_i of its own gradients G_i, and all have the
same Q, [n, r]. A step is one power iteration for the mean of B_i, warm-started by the step before:

    B_i = M_i + G_i
    P = orthonormalise(sum_i B_i Q)                     [m, r], summed over the workers first
    R_i = B_i^T P,      R = sum_i R_i                   [n, r], summed as well
    M_i <- B_i - (1 - mu) P R_i^T                       error feedback: what rank r has not caught stays
    Q <- R, each column divided by its norm
    X <- X - eta sqrt(m / n) P Q^T

G_i is weighted by the replica's share of the step's samples. As all is linear in B, the sum of all M_i is the momentum
of one worker with all samples, and the step is its step, but for rounding (by test).

At full rank, r = min(m, n), and with Q the right singular vectors of B, P Q^T is the polar factor U V^T of B = U S V^T,
which is what Muon (Jordan et al. 2024) steps with; the power iteration comes to it as B stands still. mu is then Muon's
momentum without Nesterov's look ahead.

What is no matrix (biases, norms, convolutions) has its gradient all-reduced whole, and is stepped by the run's
optimizer. (The paper has Lion or AdamW there, and for embeddings and the last layer too, which here are matrices like
others.) Weight decay of the matrices is the optimizer's group's, decoupled: X <- (1 - eta lambda) X. Other deviations:
Q starts as a random orthonormal matrix drawn from (seed, the parameter's place) on the CPU; a column of R
that is nothing but rounding (less than 100 eps of the largest, where B has a lower rank than r) steps by nothing and
keeps its old Q; the paper adds 1e-8 to norms.

Replicas start alike and stay bit-identical, as far as their machines orthonormalise alike. A worker's M_i is its own.
One replica alone steps so too, and sends nothing.

Cost per step: the collective's for sums of r (m + n) entries for all matrices, in two sums, and of what is no matrix.
Buffers: M, m n entries, and Q, n r, of each matrix.

Use it for models whose weights are large matrices, such as transformers, where orthonormalised updates (Muon) are
wanted and whole gradients are too much to send.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...exchange.buckets import views_of
from ...exchange.collectives import Collective, Fabric
from ...exchange.flat import check_one_dtype
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import UNMEASURED, Transfers, World
from ..core.memory_format import laid_out
from ..core.schedule import scaled
from ..core.state import State
from ..core.sync import Sync, SyncTraits, drop_gradients


class Dion(Sync):
    """Replicas step together and agree."""

    traits = SyncTraits(
        exact=False,  # serial training has the run's optimizer
        serial_alone=False,
        state_agrees=False,
        steps_together=True,
        entrywise=False,
        shows_gradients=False,
    )

    def __init__(
        self,
        rank: Annotated[int, Ge(1)] = 16,
        momentum: Annotated[float, Ge(0), Lt(1)] = 0.95,
        lr: Annotated[float, Gt(0)] = 0.02,
        seed: Annotated[int, Ge(0)] = 0,
        collective: Collective | None = None,
    ) -> None:
        """`rank`: r, or the matrix's smaller side where that is less. `momentum`: mu. `lr`: eta, of matrices. `seed`:
        of the start of Q. `collective`: None for the fabric's.
        """
        self.rank, self.momentum, self.lr, self.seed = rank, momentum, lr, seed
        self.collective = collective or Fabric()

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        params = list(parameters.values())
        check_one_dtype(params)
        start_alike(parameters, comm)
        decays = {p: float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups for p in group["params"]}
        self._matrices = [parameter for parameter in params if parameter.dim() == 2 and parameter in decays]
        self._others = [parameter for parameter in params if parameter.dim() != 2 or parameter not in decays]
        self._m = [torch.zeros_like(x, requires_grad=False) for x in self._matrices]  # M_i
        self._q = [self._start(k, x) for k, x in enumerate(self._matrices)]
        self._decay = [decays[x] for x in self._matrices]  # lambda

    def _start(self, place: int, x: Tensor) -> Tensor:
        """[n, r]"""
        draws = torch.Generator().manual_seed((self.seed << 20) + place)
        random = torch.randn(x.shape[1], min(self.rank, *x.shape), generator=draws, dtype=torch.float64)
        return orthonormal(random).to(x).contiguous()  # as it is after a resume: sums follow the order in memory

    @contextmanager
    def at_rate(self, factor: float) -> Iterator[None]:
        """Scales the rate of matrices, too."""
        lr, self.lr = self.lr, self.lr * factor
        try:
            with scaled([self.optimizer], factor):
                yield
        finally:
            self.lr = lr

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._share = batch.share

    @torch.no_grad()
    def update(self) -> None:
        for m, x in zip(self._m, self._matrices, strict=True):
            if x.grad is not None:
                m.add_(x.grad, alpha=self._share)  # B_i
            x.grad = None  # the optimizer leaves it alone
        p = [orthonormal(y) for y in self._sum([m @ q for m, q in zip(self._m, self._q, strict=True)], "factors")]
        own = [m.T @ p_k for m, p_k in zip(self._m, p, strict=True)]  # R_i
        r = self._sum([r_k.clone() for r_k in own], "factors")
        for k, x in enumerate(self._matrices):
            self._m[k].addmm_(p[k], own[k].T, alpha=-(1 - self.momentum))
            norms = r[k].norm(dim=0)
            found = norms > 100 * torch.finfo(norms.dtype).eps * norms.max()
            q = torch.where(found, r[k] / norms, 0)
            self._q[k].copy_(torch.where(found, q, self._q[k]))
            x.mul_(1 - self.lr * self._decay[k])
            x.addmm_(p[k], q.T, alpha=-self.lr * (x.shape[0] / x.shape[1]) ** 0.5)
        self._step_others()

    def skip(self) -> None:
        drop_gradients(self.parameters.values())

    def _step_others(self) -> None:
        for x in self._others:
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad.mul_(self._share)
        found = self._sum([x.grad for x in self._others if x.grad is not None], "gradients")
        for x, gradient in zip(self._others, found, strict=True):
            x.grad = laid_out(gradient, x)
        self.optimizer.step()

    def _sum(self, tensors: list[Tensor], name: str) -> list[Tensor]:
        """Sums the tensors over all workers, in one message."""
        if self.comm.size == 1 or not tensors:
            return tensors
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self.comm.timeline.named(name):
            self.collective.all_reduce(flat, self.comm).wait()
        return views_of(flat, tensors)

    def state_dict(self) -> State:
        return {**super().state_dict(), "m": self._m, "q": self._q}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for own, saved in zip([*self._m, *self._q], [*state["m"], *state["q"]], strict=True):
            own.copy_(saved)

    def buffers(self) -> list[Tensor]:
        return [*self._m, *self._q]

    def stepped(self, parameters: Sequence[Tensor], replicas: int) -> list[Sequence[Tensor]]:
        return [[x for x in parameters if x.dim() != 2]]

    def check_model(self, parts: Sequence[Sequence[Tensor]]) -> None:
        matrices = [tuple(x.shape) for part in parts for x in part if x.dim() == 2]
        most = max(matrices, key=min, default=None)
        if most is not None and min(most) < self.rank:
            raise ConfigError(
                f"sync.rank={self.rank}: must be at most {min(most)}, the rank that the matrix [{most[0]}, {most[1]}] "
                "can have and no other exceeds"
            )

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[Note]:
        if any(x.dim() == 2 for x in parameters):
            return []
        return [Note(("sync",), "the model has no matrix, and all is stepped by the optimizer")]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        item = parameters[0].element_size()
        shapes = [(*x.shape, min(self.rank, *x.shape)) for x in parameters if x.dim() == 2]
        sums = [sum(m * r for m, _, r in shapes), sum(n * r for _, n, r in shapes)]
        sums.append(sum(x.numel() for x in parameters if x.dim() != 2))
        return Transfers(
            [each for entries in sums if entries for each in self.collective.transfers(entries * item, world)],
            buffers=item * sum(m * n + n * r for m, n, r in shapes),
            unpredicted=UNMEASURED,
        )


def orthonormal(x: Tensor) -> Tensor:
    """[m, r], r <= m -> orthonormal columns that span the same space."""
    return torch.linalg.qr(x).Q
