"""Local SGD: replicas train alone and average their weights now and then (Stich 2019, "Local SGD Converges Fast and
Communicates Little", ICLR; arXiv 1805.09767).

Replica i has weights w_i, the gradient G_i of its mini-batch, and steps alone; a round ends at every H-th step (t in
I_T), where all take the mean:

    w_i <- mean_j (w_j - eta G_j)   if t in I_T,      w_i - eta G_i   otherwise.

(Where this is printed with w_i - eta mean_j(G_j) for t in I_T, replicas that differed before would differ after: it is
the models that are averaged.) The mean weighs a replica by the samples n_i that it has trained on in the round,
sum_i (n_i / n) w_i, so that H = 1 with plain SGD equals BSP, uneven batches included. The last round may be short.

*Momentum*, and whatever else an optimizer keeps, stays a replica's own: after a round it goes on with a direction that
belongs to the weights it has left. `average_state` names state that is averaged as the weights are. With
[momentum_buffer] H = 1 equals BSP under momentum SGD too, uneven batches included. Each name costs as much as the
weights.

*Post-local SGD* (Lin et al. 2020, "Don't Use Large Mini-Batches, Use Local SGD", ICLR; arXiv 1808.07217): before
`switch_step` gradients are averaged in every step (BSP itself), and rounds begin there.

*DiLoCo* (Douillard et al. 2023, arXiv 2311.08105, Algorithm 1): the mean is not taken as it is; its change from
the weights w that the round began with is a gradient for an outer SGD with Nesterov momentum mu and rate nu, alike on
all:

    D = w - sum_i (n_i / n) w_i,      v <- mu v + D,      w_i <- w - nu (D + mu v).

nu = 1 and mu = 0 is local SGD. Deviations: replicas share one order of samples, where the paper gives them shards; the
mean is weighted. The paper's inner optimizer is AdamW, its H 500, nu 0.7 and mu 0.9.

With `compress` a replica sends the message of its change in the round, (n_i / n) (w_i - w) from the weights w that the
round began with, and all take w + the sum of what is decoded. State that is averaged goes uncompressed.

With an `aggregate` other than the mean every replica gets the changes w_i - w of all, and all add to w the change that
the rule makes of them (exchange/aggregation.py); an outer optimizer steps with that. With an `attack` some send another
change than theirs, in rounds that end in `attack.from_step` or later.

The consensus is what a round that ended now would leave, lies included, without compression. One replica alone is
serial training, bit for bit, unless there is an outer optimizer.

Cost per step, S bytes of weights, K replicas, a names of averaged state: the collective's for sums of S (1 + a) bytes,
divided by H; with `compress` the weights' share of it is what exchange/channel.py states. Where all get the changes
of all, send (K-1) S / H and all_gather 8 (K-1) / H, and K S of memory. Before the switch it is BSP's, and what is
stated is the mean over the steps of the run.

Use `local_sgd` where the network is slow and a small loss of accuracy a step may be made good by more steps;
`post_local_sgd` where large batches generalise badly and the first steps still need every average; `diloco` where
workers are far apart, in other data centres, and exchange every hundred steps or so.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...cost.transfer import passes
from ...exchange.aggregate import Aggregator
from ...exchange.attack import Attack
from ...exchange.buckets import views_of
from ...exchange.clip import Clip
from ...exchange.collectives import Collective
from ...exchange.compress import Compressor, Dense, vector_of
from ...exchange.exchange import Exchange
from ...exchange.finishing import Finished
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.outer import nesterov
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import Transfers, World, payload, spaced
from ..core.local_steps import LocalSteps
from ..core.state import State
from ..core.sync import SyncTraits
from ..core.terms import ADDED_UP, HONEST, UNCOMPRESSED, Need
from .bsp import BSP


class LocalSGD(LocalSteps):
    """Replicas step together and differ between rounds."""

    traits = SyncTraits(weights_agree=False, averages="own", sends_changes=True, aggregates="updates")

    def __init__(
        self,
        period: Annotated[int, Ge(1)] = 4,
        average_state: Sequence[str] = (),
        switch_step: Annotated[int, Ge(0)] = 0,
        outer_lr: Annotated[float, Gt(0)] | None = None,
        outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.0,
        compress: Compressor | None = None,
        collective: Collective | None = None,
        aggregate: Aggregator | None = None,
        attack: Attack | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`period`: H. `average_state`: keys of what the optimizer keeps for a parameter. `outer_lr`, `outer_momentum`:
        nu and mu. `compress`: None for no compression. `collective`: None for the fabric's. `aggregate`, `attack`:
        None for the mean, and for nobody. `clip`: of a replica's own gradient, before the switch of the mean; None for
        none. Raises `ConfigError`.
        """
        self.exchange = Exchange(compress, collective, aggregate, attack, purpose="average")
        self.compress, self.collective, self.aggregation = self.exchange.parts
        self.clip = clip
        needs: list[Need] = []
        if average_state:
            as_it_is = "averages the optimizer's state as it is, that of Byzantine workers too"
            states = f"sync.average_state={list(average_state)}", "sync.average_state=[]"
            needs += [Need(term, as_it_is, *states) for term in (ADDED_UP, HONEST)]
        if switch_step > 0:
            both = "exchanges gradients before the switch and changes of weights after it"
            switch = f"sync.switch_step={switch_step}", "sync.switch_step=0"
            needs += [Need(term, both, *switch) for term in (ADDED_UP, HONEST, UNCOMPRESSED)]
        if outer_lr is None and outer_momentum > 0:
            raise ConfigError(
                f"sync.outer_momentum={outer_momentum}: there is no outer optimizer. Choose sync.outer_lr=0.7 too, "
                "or sync.outer_momentum=0."
            )
        self.period, self.average_state, self.switch_step = period, list(average_state), switch_step
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        unaveraged = self.traits.unaveraged
        if outer_lr is not None:
            unaveraged = "knows what is evaluated only where an outer step is made"
        elif not self.aggregation.plain:
            unaveraged = "joins the changes of replicas, of which some lie or a rule makes what it will"
        self.traits = replace(
            self.traits,
            unaveraged=unaveraged,
            serial_alone=outer_lr is None,  # the outer optimizer steps on a lone replica, too
            steps_together=switch_step > 0,  # to begin with
            requires=tuple(needs),
        )

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._params = list(parameters.values())
        self._weights = flatten(self._params)  # w_i
        start_alike(parameters, comm)
        self._before_switch = BSP(collective=self.collective, clip=self.clip) if self.switch_step > 0 else None
        if self._before_switch is not None:
            self._before_switch.configure(self.setting)
            self._before_switch.prepare(parameters, optimizer, comm)
        self.exchange.prepare(comm, {"way": self._params})
        self._began = None if self._sends_whole(comm.size) else self._weights.clone()  # w
        self._state = torch.empty_like(self._weights) if self.average_state else None
        self._outer = None  # w and v
        if self.outer_lr is not None:
            self._outer = self._weights.clone(), torch.zeros_like(self._weights)
        self._t = 0
        self._own = self._all = 0  # n_i and n
        self._step = 0  # of the run, the last that began

    def _sends_whole(self, replicas: int) -> bool:
        """Returns False where replicas send their change in the round instead of their weights."""
        return (isinstance(self.compress, Dense) and self.aggregation.plain) or replicas == 1

    # -- steps

    def _bsp(self) -> BSP | None:
        """Returns the mode in charge before the switch; None after it."""
        return self._before_switch if self._t < self.switch_step else None

    def begin(self, batch: Batch) -> None:
        if (bsp := self._bsp()) is not None:
            bsp.begin(batch)
        else:
            super().begin(batch)
            self._step = batch.step
            self._own += batch.size
            self._all += batch.total

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        if (bsp := self._bsp()) is not None:
            bsp.before_backward(roots, last)

    def finish_gradients(self) -> Finished:
        return Finished.OWN if (bsp := self._bsp()) is None else bsp.finish_gradients()

    def skip(self) -> None:
        """Skips the step: before the switch on all replicas, after it on this one, which keeps to the round."""
        if (bsp := self._bsp()) is not None:
            bsp.skip()
        else:
            super().skip()

    def update(self) -> None:
        if (bsp := self._bsp()) is None:
            super().update()
            return
        bsp.update()
        if self._outer is not None:
            self._outer[0].copy_(self._weights)
        self._t += 1

    def exchange_weights(self) -> None:
        self._t += 1
        if (self._t - self.switch_step) % self.period == 0:
            self._end_round()

    # -- rounds

    def _end_round(self) -> None:
        self._average_state()
        if self._began is None:
            self._average(self._weights)
        else:
            self._average(self._weights.sub_(self._began))  # w_i - w
            self._weights.add_(self._began)
        if self._outer is not None:
            self._outer = self._outer_step(self._outer, self._weights)
            self._weights.copy_(self._outer[0])
        if self._began is not None:
            self._began.copy_(self._weights)
        self._own = self._all = 0

    def _average(self, x: Tensor) -> None:
        """x <- sum_i (n_i / n) x_i, in place, or what the aggregate makes of all x_i."""
        self.exchange.mean("way", x, self._own, self._all, self._step)

    def _uncompressed(self, x: Tensor) -> Tensor:
        """The same without compression; x is written over."""
        return self.exchange.uncompressed_mean(x, self._own, self._all, self._step)

    def _outer_step(self, outer: tuple[Tensor, Tensor], mean: Tensor) -> tuple[Tensor, Tensor]:
        assert self.outer_lr is not None
        return nesterov(*outer, mean, self.outer_lr, self.outer_momentum)

    def _average_state(self) -> None:
        for name in self.average_state:
            assert self._state is not None
            kept = [self.optimizer.state.get(parameter, {}).get(name) for parameter in self._params]
            self._check_that_there_is(name)
            self._state.zero_()  # what a replica has no state for (an unused parameter, no batch yet) adds nothing
            views = views_of(self._state, self._params)
            for view, own in zip(views, kept, strict=True):
                if own is not None:
                    view.copy_(own)
            self._uncompressed(self._state)
            for view, own in zip(views, kept, strict=True):
                if own is not None:
                    own.copy_(view)

    def _check_that_there_is(self, name: str) -> None:
        states = [(parameter, self.optimizer.state.get(parameter, {})) for parameter in self._params]
        known = {
            key
            for parameter, state in states
            for key, value in state.items()
            if isinstance(value, Tensor) and value.shape == parameter.shape
        }
        if name not in known and self._own > 0:
            raise ConfigError(
                f"sync.average_state: {type(self.optimizer).__name__} keeps no {name} for a parameter; "
                f"it keeps {', '.join(sorted(known)) or 'nothing'}"
            )

    def finish(self) -> None:
        if self._all > 0:
            self._end_round()

    def consensus(self) -> dict[str, Tensor]:
        """Returns the weights that the round would leave if it ended now."""
        if self._all == 0:
            return super().consensus()
        if self._began is None or self.aggregation.plain:
            weights = self._uncompressed(self._weights.clone())
        else:
            weights = self._began + self._uncompressed(self._weights - self._began)
        if self._outer is not None:
            weights, _ = self._outer_step(self._outer, weights)
        return dict(zip(self.parameters, views_of(weights, self._params), strict=True))

    # -- state and measures

    def state_dict(self) -> State:
        return {
            **super().state_dict(),
            "t": self._t,
            "samples": [self._own, self._all],
            "outer": self._outer,
            "began": self._began,
            **self.exchange.state_dict(),
        }

    def unjoinable(self, state: State) -> str:
        if state["samples"][1] == 0:  # replicas have just agreed; the optimizer's state is averaged, as residuals are
            return ""
        return f"the checkpoint lies inside a round of {self.period} steps, where each replica has weights of its own"

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        self._own, self._all = state["samples"]
        if self._outer is not None:
            for own, saved in zip(self._outer, state["outer"], strict=True):
                own.copy_(saved)
        if self._began is not None:
            self._began.copy_(state["began"])
            self.exchange.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        own = [each for each in (self._state, self._began) if each is not None]
        switch = self._before_switch.buffers() if self._before_switch else ()
        return [*own, *(self._outer or ()), *self.exchange.buffers(), *switch]

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return self.exchange.notes([vector_of(parameters)], world)

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        self.aggregation.check(world.replicas)
        self.aggregation.check_not_alone(world.replicas)
        size, names, replicas = payload(parameters), len(self.average_state), world.replicas
        vectors = [vector_of(parameters)]
        sent = self.exchange.transfers(vectors, world)
        sent += [each for _ in range(names) for each in self.collective.transfers(size, world)]
        own = size * (min(names, 1) + (2 if self.outer_lr is not None else 0))
        own += self.exchange.held(vectors, replicas) + (0 if self._sends_whole(replicas) else size)
        if replicas > 1 and self.outer_lr is not None:  # the change since the last mean, the momentum, the step
            outer = passes("add_", vectors[0].n, 3)
            sent[0] = replace(sent[0], kernels=(*sent[0].kernels, *outer))
        sent = spaced(sent, self.period, self.switch_step + self.period)
        varies, unpredicted = (
            self.compress.varies(world.steps),
            self.aggregation.unpredicted or self.compress.unpredicted,
        )
        if self.switch_step > 0:
            unpredicted = f"sync.switch_step={self.switch_step}: steps before and after it take different times"
            before = BSP(collective=self.collective).transfers(parameters, world)
            own += before.buffers
            if world.steps is None:
                varies = (
                    f"sync.switch_step={self.switch_step}: how many steps follow it is known once the data are dealt"
                )
            else:
                share = min(self.switch_step / world.steps, 1.0)
                sent = [*(replace(each, times=share) for each in before.sent), *sent]
        return Transfers(sent, own, varies, unpredicted if replicas > 1 else "")
