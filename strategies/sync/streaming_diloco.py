"""Streaming DiLoCo: one fragment of the model at a time, while training goes on (Douillard et al. 2025, "Streaming
DiLoCo with overlapping communication: Towards a Distributed Free Lunch", arXiv 2501.18512, Algorithm 2).

The weights are cut into P fragments. Fragment p is sent in the steps t with t = t_p (modulo H), where t_p = p H / P
rounded up, p = 1 ... P; it arrives tau steps later, and is taken over then. With w_p, what all replicas hold of it in
common, and w_ip, what replica i has trained since:

    at t, send            D_ip = (n_i / n) (w_ip - w_p)
    at t + tau            (w_p, v_p) <- Nesterov(w_p, v_p, sum_i D_ip)
                          w_ip <- alpha w_ip + (1 - alpha) w_p

The outer step is DiLoCo's: see exchange/outer.py. n_i are the samples that replica i has trained on since it sent the
fragment before. P = 1, tau = 0 and alpha = 0 is DiLoCo: in every step bit for bit where messages are compressed, as
DiLoCo then sends the same changes; without compression DiLoCo sums weights, and differs in the last bits.

With `compress` it is D_ip that is sent as a message, with error feedback of each fragment's own (the paper has 4-bit
floating point numbers, without).

Deviations from the paper: the mean is weighted by samples; replicas share one order of samples; a fragment is made of
layers, a layer being a parameter of two dimensions or more and the vectors that follow it, where the paper's are
transformer blocks. "strided" gives layer l to fragment l modulo P, "sequential" a run of layers to each. A part of the
model with fewer layers than P has fragments without anything, which are not sent. The paper has H = 100, P up to 8 of
three blocks each, tau = 1 to 5, alpha = 0.5, nu = 0.4 and mu = 0.9.

The consensus is what would be left if all that is under way arrived, and then a round of each fragment ended, without
compression and delay; at the end of training that is what happens. An evaluation or a checkpoint waits for what is
under way, which counts as training. A collective that moves nothing before it is waited for overlaps nothing.

Cost per step, S bytes of weights, K replicas: the collective's for sums of S bytes, one for each fragment, divided by
H; with `compress` what exchange/channel.py states of the fragments. Buffers: w, v and D, 3 S, and what the channel
holds. So the most that is sent at once is a P-th of DiLoCo's.

Use it for what sync=diloco is for, where the bytes of one exchange at once are too many for the link: fragments go in
turn, and are hidden behind the steps that follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm import Comm, Work
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...exchange.buckets import views_of
from ...exchange.clip import Clip
from ...exchange.collectives import Collective
from ...exchange.compress import Compressor, Vector, vector_of
from ...exchange.exchange import Exchange
from ...exchange.flat import check_one_dtype, flatten
from ...exchange.outer import nesterov
from ...exchange.start_alike import start_alike
from ..core.batch import Batch
from ..core.cost import UNMEASURED, Transfers, World, payload, spaced
from ..core.state import State
from ..core.sync import Sync, SyncTraits

Pattern = Literal["strided", "sequential"]


@dataclass
class Fragment:
    """Views of its piece of the weights and of the buffers, and where its round stands."""

    key: str
    at: int  # t_p, from 1 to H
    weights: Tensor  # w_ip
    common: Tensor  # w_p
    momentum: Tensor  # v_p
    way: Tensor  # D_ip, and once it has arrived their sum
    own: int = 0  # n_i
    all: int = 0  # n
    arrives: int | None = None  # the step after which it is taken over; None when nothing is under way
    work: Work | None = None  # None once it has arrived

    def arrive(self) -> None:
        if self.work is not None:
            self.work.wait()
            self.work = None


class StreamingDiLoCo(Sync):
    """Replicas step together and differ."""

    traits = SyncTraits(
        weights_agree=False,
        sends_changes=True,
        unaveraged="knows what is evaluated only where an outer step is made",
        serial_alone=False,  # the outer optimizer steps on a lone replica, too
    )

    def __init__(
        self,
        period: Annotated[int, Ge(1)] = 4,
        fragments: Annotated[int, Ge(1)] = 2,
        delay: Annotated[int, Ge(0)] = 1,
        local_share: Annotated[float, Ge(0), Lt(1)] = 0.5,
        outer_lr: Annotated[float, Gt(0)] = 0.5,
        outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.5,
        pattern: Pattern = "strided",
        compress: Compressor | None = None,
        collective: Collective | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`period`: H. `fragments`: P. `delay`: tau. `local_share`: alpha. `outer_lr`, `outer_momentum`: nu and mu.
        `compress`: None for no compression. `collective`: None for the fabric's. `clip`: of a replica's own gradient;
        None for none. Raises `ConfigError`.
        """
        self.exchange = Exchange(compress, collective, purpose="fragment")
        self.compress, self.collective, _ = self.exchange.parts
        self.clip = clip
        if fragments > period:
            raise ConfigError(
                f"sync.fragments={fragments}: one is sent in a step, and a round has sync.period={period} steps. "
                f"Choose {period} fragments at most, or a longer period."
            )
        if delay >= period:
            raise ConfigError(
                f"sync.delay={delay}: a fragment must have arrived before it is sent again, sync.period={period} steps "
                f"later. Choose {period - 1} at most, or a longer period."
            )
        self.period, self.fragments, self.delay, self.local_share = period, fragments, delay, local_share
        self.outer_lr, self.outer_momentum = outer_lr, outer_momentum
        self.pattern: Pattern = pattern

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        params = list(parameters.values())
        cut = self._cut(params)
        in_order = [params[i] for indices in cut for i in indices]
        self._names = [list(parameters)[i] for indices in cut for i in indices]
        self._weights = flatten(in_order)
        start_alike(parameters, comm)
        self._common, self._momentum = self._weights.clone(), torch.zeros_like(self._weights)
        self._ways = torch.zeros_like(self._weights)
        vectors = {str(p): [params[i] for i in indices] for p, indices in enumerate(cut) if indices}
        self.exchange.prepare(comm, vectors)
        sizes = [sum(each.numel() for each in own) for own in vectors.values()]
        pieces = [x.split(sizes) for x in (self._weights, self._common, self._momentum, self._ways)]
        self._fragments = [
            Fragment(key, first_step(int(key), self.fragments, self.period), *views)
            for key, *views in zip(vectors, *pieces, strict=True)
        ]
        self._t = 0
        self._finished = False

    def _cut(self, params: Sequence[Tensor]) -> list[list[int]]:
        return fragments_of([tensor.dim() for tensor in params], self.fragments, self.pattern)

    # -- steps

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        for fragment in self._fragments:
            fragment.own += batch.size
            fragment.all += batch.total

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()
        self._t += 1
        for fragment in self._fragments:
            if (self._t - fragment.at) % self.period == 0:
                self._send(fragment)
            if fragment.arrives == self._t:
                self._take_over(fragment)

    def _send(self, fragment: Fragment) -> None:
        """D_ip = (n_i / n) (w_ip - w_p)"""
        torch.sub(fragment.weights, fragment.common, out=fragment.way)
        fragment.way.mul_(fragment.own / fragment.all)
        fragment.work = self.exchange.sum(fragment.key, fragment.way)
        fragment.arrives = self._t + self.delay
        fragment.own = fragment.all = 0

    def _take_over(self, fragment: Fragment) -> None:
        self._arrive(fragment)
        common, momentum = self._outer_step(fragment, fragment.way)
        fragment.common.copy_(common)
        fragment.momentum.copy_(momentum)
        self._merge(fragment.weights, fragment.common)
        fragment.arrives = None

    def _arrive(self, fragment: Fragment) -> None:
        """Waits for a fragment, as part of training, also where an evaluation or a checkpoint cannot wait for it."""
        with self.comm.ledger.of_training(), self.comm.timeline.named("fragment"):
            fragment.arrive()

    def _outer_step(self, fragment: Fragment, way: Tensor) -> tuple[Tensor, Tensor]:
        mean = fragment.common + way
        return nesterov(fragment.common, fragment.momentum, mean, self.outer_lr, self.outer_momentum)

    def _merge(self, weights: Tensor, common: Tensor) -> None:
        """w_ip <- alpha w_ip + (1 - alpha) w_p"""
        if self.local_share == 0:
            weights.copy_(common)
        else:
            torch.lerp(common, weights, self.local_share, out=weights)

    # -- consensus

    def _common_now(self, fragment: Fragment) -> Tensor:
        """w_p, if all that is under way arrived now, and a round ended after it."""
        common, momentum, weights = fragment.common, fragment.momentum, fragment.weights
        if fragment.arrives is not None:
            self._arrive(fragment)
            common, momentum = self._outer_step(fragment, fragment.way)
            weights = weights.clone()
            self._merge(weights, common)
        if fragment.all == 0:
            return common.clone()
        way = (weights - common).mul_(fragment.own / fragment.all)
        self.collective.all_reduce(way, self.comm).wait()
        return nesterov(common, momentum, common + way, self.outer_lr, self.outer_momentum)[0]

    def consensus(self) -> dict[str, Tensor]:
        if self._finished:
            return super().consensus()
        common = torch.cat([self._common_now(fragment) for fragment in self._fragments])
        views = views_of(common, [self.parameters[name] for name in self._names])
        by_name = dict(zip(self._names, views, strict=True))
        return {name: by_name[name] for name in self.parameters}

    def finish(self) -> None:
        self._weights.copy_(torch.cat([self._common_now(fragment) for fragment in self._fragments]))
        self._finished = True

    # -- state and measures

    def state_dict(self) -> State:
        for fragment in self._fragments:
            self._arrive(fragment)
        return {
            **super().state_dict(),
            "t": self._t,
            "rounds": [[fragment.own, fragment.all, fragment.arrives] for fragment in self._fragments],
            "vectors": [self._common, self._momentum, self._ways],
            **self.exchange.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._t = state["t"]
        for fragment, saved in zip(self._fragments, state["rounds"], strict=True):
            fragment.own, fragment.all, fragment.arrives = saved
        for own, vector in zip((self._common, self._momentum, self._ways), state["vectors"], strict=True):
            own.copy_(vector)
        self.exchange.load_state_dict(state)

    def buffers(self) -> list[Tensor]:
        return [self._common, self._momentum, self._ways, *self.exchange.buffers()]

    def _vectors(self, parameters: Sequence[Tensor]) -> dict[int, Vector]:
        """Returns the vector of each fragment that has any parameters."""
        cut = enumerate(self._cut(parameters))
        return {p: vector_of(parameters[i] for i in indices) for p, indices in cut if indices}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        vectors = self._vectors(parameters)
        notes = self.exchange.notes([*vectors.values()], world)
        if (empty := self.fragments - len(vectors)) > 0:
            notes.append(f"sync.fragments={self.fragments}: with {len(vectors)} layers {empty} of them are empty")
        return notes

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        check_one_dtype(parameters)
        vectors = self._vectors(parameters)
        sent = [
            spaced(
                self.exchange.transfers([vector], world),
                self.period,
                first_step(p, self.fragments, self.period),
            )
            for p, vector in vectors.items()
        ]
        return Transfers(
            [*chain.from_iterable(sent)],
            buffers=3 * payload(parameters) + self.exchange.held([*vectors.values()], world.replicas),
            varies=self.compress.varies(world.steps),
            unpredicted=UNMEASURED,
        )


def first_step(p: int, fragments: int, period: int) -> int:
    """t_p of fragment p = 0 ... P - 1: ceil((p + 1) H / P)."""
    return -(-(p + 1) * period // fragments)


def fragments_of(dimensions: Sequence[int], count: int, pattern: Pattern) -> list[list[int]]:
    """Indices of the parameters of each fragment. `dimensions`: of each parameter."""
    layers: list[list[int]] = []
    for i, dimension in enumerate(dimensions):
        if not layers or (dimension >= 2 and any(dimensions[j] >= 2 for j in layers[-1])):
            layers.append([])
        layers[-1].append(i)
    if pattern == "strided":
        return [[i for layer in layers[p::count] for i in layer] for p in range(count)]
    bounds = [p * len(layers) // count for p in range(count + 1)]
    return [[i for layer in layers[start:stop] for i in layer] for start, stop in pairwise(bounds)]
