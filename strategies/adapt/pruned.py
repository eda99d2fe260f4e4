"""Magnitude pruning, and the lottery ticket: train, take out the smallest weights, begin again with the others.

Han, Pool, Tran, Dally 2015, "Learning both Weights and Connections for Efficient Neural Networks" (NeurIPS); Frankle,
Carbin 2019, "The Lottery Ticket Hypothesis: Finding Sparse, Trainable Neural Networks" (ICLR; arXiv 1803.03635),
section 2 and appendix B, strategy 1; rewinding to step k: Frankle, Dziugaite, Roy, Carbin 2020, "Linear Mode
Connectivity and the Lottery Ticket Hypothesis" (ICML; arXiv 1912.05671), Algorithm 2. With theta_0 drawn at random and
a mask m of ones, a run of n rounds is

    train m * theta_k for j steps, which gives theta                       (k = 0: theta_0)
    n times:   m <- m without the p of its ones where |theta| is smallest  (of all layers: global; of each: layer)
               train m * theta_k for j steps                               (restart=rewind, the winning ticket)

so that n rounds keep (1 - p)^n. `restart=none` trains m * theta (Han et al.: fine-tuning). `restart=random` is the
paper's control: tickets are found as above, and the last of them begins with other random weights.

A round takes out round(p ones), as torch.nn.utils.prune does, half to even: after any number of rounds the ones are
within 1 / (2 p) of (1 - p)^n of them (of a layer, where by layer). Of equal magnitudes those of the first layers go,
and in a layer the first. Weights of two dimensions or more are pruned: biases and the scales of norms have one.

Gradients are 0 where m is, before anybody sums them or takes their norm, and so are weights after each update: no
momentum, weight decay, noise of a compressor or update of a whole matrix brings one back. With a round all begins anew
but the samples, which go on: the optimizer's state (momentum is that of no weight that is gone), the schedule of the
rate, what compressors remember. Each worker finds m by itself, of weights that agree; where a replica is several
workers, the global threshold is found by counts that they sum, and no weight travels.

Deviations: the papers prune output layers at half the rate, or not at all (`modules` may leave them out), and rewinding
to k trains j - k steps, here j.

Cost: a byte for each weight that may be pruned, and with rewinding a second copy of the weights. Matrices stay dense,
so that a step takes as long as before; what a sum sends shrinks with compress=masked.

Use it to find how small a model may be, or which of its weights were enough from the start. It makes no run faster.
"""

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt, MinLen
from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..core.cost import payload
from ..core.placements import placements_of
from ..core.protocols import Prunable
from ..core.state import Named, State, load_state, recv_state, state_of, to_messages
from ..core.strategy import Strategy
from ..core.sync import Sync
from ..core.terms import RESETTABLE, Need, required
from .base import Adapt, AdaptContext, While
from .patterns import matches, shown
from .smallest import alone, smallest

SHOWN = 12  # rounds that a plan tells one by one


class Pruned(Adapt):
    def __init__(
        self,
        rounds: Annotated[int, Ge(0)] = 5,
        share: Annotated[float, Gt(0), Lt(1)] = 0.2,
        scope: Literal["global", "layer"] = "global",
        restart: Literal["rewind", "random", "none"] = "rewind",
        rewind_to: Annotated[int, Ge(0)] = 0,
        modules: Annotated[Sequence[Annotated[str, MinLen(1)]], MinLen(1)] = ("*",),
    ) -> None:
        """`rounds`: n. `share`: p. `scope`: among which weights the smallest are looked for. `restart`: what a round
        begins with. `rewind_to`: k, in steps. `modules`: whose weights are pruned, by the module's name, or by what it
        ends in after a dot; * stands for anything. Raises `ConfigError`.
        """
        self.rounds, self.share, self.scope, self.restart, self.rewind_to = rounds, share, scope, restart, rewind_to
        self.modules = tuple(modules)
        if restart == "none" and rewind_to:
            raise ConfigError(
                f"adapt.rewind_to={rewind_to}: with adapt.restart=none a round goes on with the weights that were "
                "trained, and nothing is set back. Choose adapt.restart=rewind or random, or adapt.rewind_to=0."
            )
        self.trainings, self.prunes = 1 + rounds, rounds > 0
        self.sizes: dict[str, int] = {}  # entries of the model's weights that may be pruned, in its order
        self.dtype = torch.float32  # theirs

    def apply(self, model: nn.Module) -> nn.Module:
        """Returns the model unchanged."""
        matrices = {name: each for name, each in model.named_parameters() if each.requires_grad and each.dim() >= 2}
        if not matrices:
            raise ConfigError(
                "adapt=pruned: prunes weights of two dimensions or more, and the model has none to train; adapt=none"
            )
        owners = {name: name.rpartition(".")[0] for name in matrices}
        for pattern in self.modules:
            if not any(matches(owner, pattern) for owner in owners.values()):
                raise ConfigError(
                    f"adapt.modules={list(self.modules)}: no module with a weight of two dimensions or more is called "
                    f"{pattern}; there are {', '.join(shown(dict.fromkeys(owners.values())))}"
                )
        chosen = {
            name: each
            for name, each in matrices.items()
            if any(matches(owners[name], pattern) for pattern in self.modules)
        }
        dtypes = {each.dtype for each in chosen.values()}
        if self.scope == "global" and len(dtypes) > 1:
            raise ConfigError(
                f"adapt.scope=global: these weights are {' and '.join(sorted(map(str, dtypes)))}, whose magnitudes are "
                "rounded in other ways. Choose adapt.scope=layer, or adapt.modules of one dtype."
            )
        self.sizes, self.dtype = {name: each.numel() for name, each in chosen.items()}, dtypes.pop()
        self._check_rounds()
        return model

    def _check_rounds(self) -> None:
        """Raises `ConfigError` where a round has no weight left to take out, or leaves none."""
        kept = self.ones(sum(self.sizes.values()))
        useful = sum(after < before and after > 0 for before, after in pairwise(kept))
        if useful < self.rounds:
            what = "none" if kept[useful + 1] else "all"
            raise ConfigError(
                f"adapt.rounds={self.rounds}: after {useful} rounds of adapt.share={self.share:g} there are "
                f"{kept[useful]:,} of {kept[0]:,} weights left, and another one would take out {what} of them. Choose "
                f"adapt.rounds={useful} or fewer, or another share."
            )

    # -- what it goes with

    @property
    def needs(self) -> tuple[Need, ...]:
        return required((Need(RESETTABLE, "changes weights between steps, and sets them back"), self.prunes))

    def check(self, strategy: Strategy, sync: Sync, parts: Sequence[nn.Module], names: tuple[str, str]) -> None:
        if not self.prunes:
            return
        chosen, _ = names
        if cut := [name for part in parts for name in placements_of(part) if name in self.sizes]:
            raise ConfigError(
                f"adapt=pruned: strategy={chosen} holds {cut[0]} in pieces, of which a worker has one, and which "
                "weights are the smallest is found where they are whole. Choose strategy=data_parallel, pipeline, "
                "domain or offload."
            )

    def check_steps(self, steps: int) -> None:
        if self.prunes and self.restart != "none" and self.rewind_to >= steps:
            raise ConfigError(
                f"adapt.rewind_to={self.rewind_to}: a training has {steps:,} steps. Choose adapt.rewind_to below that."
            )

    # -- what it comes to

    def ones(self, entries: int) -> list[int]:
        """Returns how many of so many weights are kept, by training."""
        found = [entries]
        for _ in range(self.rounds):
            found.append(found[-1] - round(self.share * found[-1]))
        return found

    def kept(self, parameters: Mapping[str, Tensor]) -> list[list[int]] | None:
        own = {name: each for name, each in parameters.items() if name in self.sizes}
        if self.scope == "global" and len(own) < len(self.sizes):
            return None  # the threshold is that of all parts
        if self.scope == "layer":
            counts = {name: self.ones(each.numel()) for name, each in own.items()}
        else:
            counts = _in_order(own, self.ones(sum(self.sizes.values())))
        return [
            [counts[name][training] if name in counts else each.numel() for name, each in parameters.items()]
            for training in range(self.trainings)
        ]

    def holds(self, part: nn.Module) -> int:
        if not self.prunes:
            return 0
        masks = sum(each.numel() for name, each in part.named_parameters() if name in self.sizes)
        return masks + (payload(list(state_of(part).values())) if self.restart != "none" else 0)

    def notes(self, steps: int | None) -> list[str]:
        if not self.prunes:
            return []
        every = sum(self.sizes.values())
        ones = self.ones(every)
        if self.scope == "layer":
            ones = [sum(each) for each in zip(*map(self.ones, self.sizes.values()), strict=True)]
        told = [f"{each:,}" for each in (ones if len(ones) <= SHOWN else [*ones[: SHOWN - 2], ones[-1]])]
        if len(ones) > SHOWN:
            told.insert(-1, "...")
        length = "the run's epochs each" if steps is None else f"{steps:,} steps each"
        return [
            f"adapt=pruned: {self.trainings} trainings of {length}, with {', '.join(told)} of {every:,} weights that "
            "may be pruned"
        ]

    def begin(self, held: AdaptContext) -> While:
        return Pruning(self, held)


def _in_order(own: Mapping[str, Tensor], ones: Sequence[int]) -> dict[str, list[int]]:
    """Counts of which the sums over tensors are `ones`, by name and training: the first tensors have all they can."""
    counts: dict[str, list[int]] = {name: [] for name in own}
    for left in ones:
        for name, each in own.items():
            counts[name].append(min(left, each.numel()))
            left -= counts[name][-1]
    return counts


def _state_of_all(sync: Sync) -> State:
    """Returns a state that this replica may load: its own, or replica 0's where they agree (`sync.shard`)."""
    state, comm = copy.deepcopy(sync.state_dict()), sync.comm
    if comm.size == 1 or not sync.traits.state_agrees:
        return state
    if comm.rank != 0:
        return recv_state(0, comm)
    for other in range(1, comm.size):
        for message in to_messages(state):
            comm.send(message, other)
    return state


class Pruning(While):
    """One worker's. `gone`: by the name of a weight, True where m is 0; before the first round there is nothing."""

    def __init__(self, pruned: Pruned, held: AdaptContext) -> None:
        self._pruned, self._held = pruned, held
        self._weights = {name: each for name, each in held.sync.parameters.items() if name in pruned.sizes}
        self.gone: dict[str, Tensor] = {}
        self._rewind: dict[str, Tensor] = {}  # theta_k, with buffers; nothing before step k
        self._fresh = _state_of_all(held.sync)
        self._rounds = 0
        pruned.check_steps(held.steps)
        for name, weight in self._weights.items():
            weight.register_hook(lambda gradient, name=name: self._masked(name, gradient))

    def _masked(self, name: str, gradient: Tensor) -> Tensor:
        """g <- m * g"""
        if gradient.layout is not torch.strided:
            raise ConfigError(
                f"adapt=pruned: the gradient of {name} is sparse, and masks are dense. Choose model.sparse_gradients="
                "false, or adapt.modules that leave it out."
            )
        gone = self.gone.get(name)
        return gradient if gone is None else gradient.masked_fill(gone, 0)

    def acts_before(self, step: int) -> bool:
        return self._pruned.prunes and (self._copies(step) or (step > 0 and step % self._held.steps == 0))

    def _copies(self, step: int) -> bool:
        return step == self._pruned.rewind_to and self._pruned.restart != "none"

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        if self._copies(step):
            self._rewind = {name: each.detach().clone() for name, each in state_of(self._held.module).items()}
        if step > 0 and step % self._held.steps == 0:
            self._prune()
            self._begin_with(step // self._held.steps)

    def _prune(self) -> None:
        """m <- m without the p of its ones where |theta| is smallest"""
        kept = {name: weight.new_ones(weight.shape, dtype=torch.bool) for name, weight in self._weights.items()}
        kept |= {name: ~gone for name, gone in self.gone.items()}
        magnitudes = {name: weight[kept[name]].abs() for name, weight in self._weights.items()}
        share, counted = self._pruned.share, self._held.counted
        if self._pruned.scope == "layer":
            taken = {name: smallest([each], round(share * len(each)), [True])[0] for name, each in magnitudes.items()}
        else:
            names, device = list(self._pruned.sizes), next(iter(self._held.sync.parameters.values())).device
            nothing = torch.empty(0, dtype=self._pruned.dtype, device=device)
            every = [magnitudes.get(name, nothing) for name in names]
            owns = [name in self._weights and (counted is None or name in counted.names) for name in names]
            found = smallest(every, round(share * self.ones), owns, alone if counted is None else self._sum)
            taken = {name: each for name, each in zip(names, found, strict=True) if name in self._weights}
        for name, each in taken.items():
            self.gone[name] = ~kept[name].masked_scatter_(kept[name].clone(), ~each)
        self._rounds += 1

    def _sum(self, counts: Tensor) -> Tensor:
        """Sums the counts over the workers of a replica."""
        assert self._held.counted is not None
        self._held.counted.among.all_reduce(counts).wait()
        return counts

    def _begin_with(self, training: int) -> None:
        """theta <- m * theta_k, m * other random weights, or m * theta; and all else as in step 0."""
        held, restart = self._held, self._pruned.restart
        if restart == "random" and training == self._pruned.rounds:
            whole = held.redraw(training)
            load_state(held.module, {name: whole[name] for name in state_of(held.module)})
        elif restart != "none":
            load_state(held.module, self._rewind)
        held.sync.load_state_dict(copy.deepcopy(self._fresh))
        if isinstance(held.sync, Prunable):
            held.sync.prune(self.gone)
        self.after_update()

    @torch.no_grad()
    def after_update(self) -> None:
        """theta <- m * theta"""
        for name, gone in self.gone.items():
            self._weights[name].masked_fill_(gone, 0)

    # -- what is known of it

    @property
    def ones(self) -> int:
        """Returns the number of weights that are kept, of the whole model."""
        pruned = self._pruned
        if pruned.scope == "layer":
            return sum(pruned.ones(size)[self._rounds] for size in pruned.sizes.values())
        return pruned.ones(sum(pruned.sizes.values()))[self._rounds]

    def numbers(self) -> dict[str, float]:
        return {"weights_kept": self.ones}

    def tensors(self) -> list[Tensor]:
        return [*self.gone.values(), *self._rewind.values()]

    def state_dict(self) -> dict[str, Any]:
        own = {"steps": self._held.steps, "rounds": self._rounds}
        return {**own, "gone": Named(self.gone), "rewind": Named(self._rewind)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["steps"] != self._held.steps:
            raise ConfigError(
                f"steps, epochs: a training of adapt=pruned has {state['steps']:,} steps in this run, and would now "
                f"have {self._held.steps:,}, so that rounds ended elsewhere; go on with as many"
            )
        device = next(iter(self._held.sync.parameters.values())).device
        self._rounds = state["rounds"]
        self.gone = {name: each.to(device) for name, each in state["gone"].items()}
        self._rewind = {name: each.to(device) for name, each in state["rewind"].items()}
        if isinstance(self._held.sync, Prunable):
            self._held.sync.prune(self.gone)
