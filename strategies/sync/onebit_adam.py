"""1-bit Adam: Adam for a while, then with a frozen variance and signs of the momentum (Tang et al. 2021, "1-bit Adam:
Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML; arXiv 2102.02888, Algorithm 1).

In the first T_w steps, the warm-up, gradients are averaged and all step with Adam: BSP, bit for bit. Then the second
moment v stays what it is, so that the step is linear in the momentum, which may travel compressed:

    m_i = beta1 m + (1 - beta1) g_i,      m <- sum_i C(m_i),      e_i <- m_i + e_i - C(m_i + e_i),
    w <- w - eta / (1 - beta1^t) m / (sqrt(v / (1 - beta2^T_w)) + eps)

where C sends a sign for each entry and the mean magnitude of each parameter, with error feedback
(exchange/compress/ef_signsgd.py), and m_i, like g_i, is weighed by the replica's share of the step's samples. The rate,
the betas, eps and the weight decay are those of the run's optimizer, which must be Adam or AdamW.

Deviations from the paper: there is no server, so that sums are not compressed a second time: each replica sends its
message to all others. Adam's bias corrections go on, v's as it was at the end of the warm-up; the paper has none, and
then the first step after the warm-up would have another length. A sign moves every entry, also one whose gradient is
always 0, and the step divides by a v that is next to nothing. So an entry that had no gradient in the warm-up, v = 0,
is left alone, and no m is taken to be larger than `most` sqrt(v): Adam's own steps are hardly ever longer than eta.

Replicas stay bit-identical; what a replica has left out is its own. One replica alone sends nothing, and is Adam.

Cost per step among K replicas, for S bytes of n entries: the collective's for a sum of S in the warm-up, then send
(K-1) m, m = n / 8 bytes and four for each parameter; what is stated is the mean over the steps of the run.
Buffers: BSP's buckets, S; m_i and, after the warm-up, e_i, S each.

Use it with optimizer=adam on slow networks, where the variance settles after a warm-up and a run goes on for long
after it. Before that it sends what sync=bsp does.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ...comm import Comm
from ...conf.errors import ConfigError
from ...exchange.buckets import views_of
from ...exchange.collectives import Collective, Fabric
from ...exchange.compress import EFSignSGD, vector_of
from ...exchange.exchange import Exchange
from ...exchange.finishing import Finished
from ...exchange.flat import check_one_dtype
from ..core.batch import Batch
from ..core.cost import UNMEASURED, Transfers, World, payload
from ..core.state import State
from ..core.sync import Sync, SyncTraits, drop_gradients
from ..core.trial import Trial
from .bsp import BSP


class OneBitAdam(Sync):
    """Replicas step together and agree."""

    traits = SyncTraits(exact=False, state_agrees=False, steps_together=True, entrywise=False, shows_gradients=False)
    trial = Trial(optimizer={"optimizer": "adam", "optimizer.lr": 0.005})

    def __init__(
        self,
        warmup: Annotated[int, Ge(1)] = 20,
        most: Annotated[float, Gt(0)] = 1.0,
        collective: Collective | None = None,
    ) -> None:
        """`warmup`: T_w, steps. `most`: what m may be at most, in sqrt(v). `collective`: None for the fabric's."""
        self.warmup, self.most, self.collective = warmup, most, collective or Fabric()
        self.exchange = Exchange(EFSignSGD(), purpose="momentum")

    def check_optimizer(self, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups
        if not isinstance(optimizer, Adam) or any(group["amsgrad"] or group["maximize"] for group in groups):
            raise ConfigError(
                f"compresses Adam's momentum, and {type(optimizer).__name__} is another optimizer or "
                "has amsgrad or maximize. Choose optimizer=adam or optimizer=adamw, with amsgrad and maximize false.",
                about=("sync",),
            )

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self.check_optimizer(optimizer)
        self._params = list(parameters.values())
        check_one_dtype(self._params)
        self._bsp = BSP(collective=self.collective)
        self._bsp.configure(self.setting)
        self._bsp.prepare(parameters, optimizer, comm)
        self.exchange.prepare(comm, {"momentum": self._params})
        self._sent = self._params[0].new_empty(sum(x.numel() for x in self._params) if comm.size > 1 else 0)  # m_i
        self._t = 0

    @property
    def _is_adam(self) -> bool:
        return self._t < self.warmup or self.comm.size == 1

    def begin(self, batch: Batch) -> None:
        self._share = batch.share
        if self._is_adam:
            self._bsp.begin(batch)
        else:
            super().begin(batch)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        if self._is_adam:
            self._bsp.before_backward(roots, last)

    def finish_gradients(self) -> Finished:
        return self._bsp.finish_gradients() if self._is_adam else Finished.UNSENT

    def update(self) -> None:
        if self._is_adam:
            self._bsp.update()
        else:
            self._step()
        self._t += 1

    def skip(self) -> None:
        """Skips the step without counting it, so that v is of as many gradients as the warm-up has."""
        if self._is_adam:
            self._bsp.skip()
        drop_gradients(self.parameters.values())

    @torch.no_grad()
    def _step(self) -> None:
        options = {x: group for group in self.optimizer.param_groups for x in group["params"]}
        own = views_of(self._sent, self._params)  # m_i
        for x, m_i in zip(self._params, own, strict=True):
            _decay(x, options[x])
            beta1 = options[x]["betas"][0]
            torch.mul(self.optimizer.state[x]["exp_avg"], beta1 * self._share, out=m_i)
            if x.grad is not None:
                m_i.add_(x.grad, alpha=(1 - beta1) * self._share)
        self.exchange.sum("momentum", self._sent).wait()
        for x, total in zip(self._params, own, strict=True):
            self._step_with(x, total, options[x])

    def _step_with(self, x: Tensor, total: Tensor, options: dict[str, Any]) -> None:
        """w <- w - eta / (1 - beta1^t) m / (sqrt(v / (1 - beta2^T_w)) + eps)"""
        state, (beta1, beta2) = self.optimizer.state[x], options["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        root = (v / (1 - beta2**self.warmup)).sqrt_()
        m.copy_(total)
        bound = root * (self.most * (1 - beta1 ** (self._t + 1)))
        step = torch.minimum(torch.maximum(m, -bound), bound)  # 0 where v is
        x.addcdiv_(step, root.add_(options["eps"]), value=-options["lr"] / (1 - beta1 ** (self._t + 1)))

    # -- state and cost

    def state_dict(self) -> State:
        return {**super().state_dict(), "t": self._t, **self.exchange.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self.exchange.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return [*self._bsp.buffers(), self._sent, *self.exchange.buffers()]

    def notes(self, parameters: Sequence[Tensor], world: World) -> list[str]:
        if world.replicas == 1:
            return []
        plain = sum(self.collective.traffic(payload(parameters), world).values())
        sent = sum(each.nbytes for each in self.exchange.transfers([vector_of(parameters)], world))
        return [
            f"sync.warmup={self.warmup}: a worker sends {plain:,.0f} bytes a step in the first {self.warmup:,}, and "
            f"{sent:,.0f} after them"
        ]

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        if world.replicas == 1:
            return Transfers(unpredicted=UNMEASURED)
        vectors = [vector_of(parameters)]
        own, left_out = 2 * payload(parameters), self.exchange.held(vectors, world.replicas)
        if world.steps is None:
            return Transfers(
                buffers=own + left_out,
                varies=f"sync.warmup={self.warmup}: how many steps come after it is known once the data are dealt",
                unpredicted=UNMEASURED,
            )
        warm = min(self.warmup / world.steps, 1.0)
        own += left_out if warm < 1 else 0
        adam = BSP(collective=self.collective).transfers(parameters, world).sent
        signs = self.exchange.transfers(vectors, world)
        sent = [(adam, warm), (signs, 1 - warm)]
        return Transfers(
            [replace(each, times=share) for some, share in sent for each in some],
            buffers=own,
            unpredicted=UNMEASURED,
        )


def _decay(x: Tensor, options: dict[str, Any]) -> None:
    """Weight decay as Adam and AdamW have it."""
    if not (rate := options["weight_decay"]):
        return
    if options.get("decoupled_weight_decay"):
        x.mul_(1 - options["lr"] * rate)
    elif x.grad is None:
        x.grad = x * rate
    else:
        x.grad = x.grad.add(x, alpha=rate)
