"""An average of weights over steps, on the workers that hold them: kept, evaluated in their place, and saved.

Each worker averages what it holds: its stage's layers, its pieces of tensors. Where replicas agree, or the mode
evaluates what replica 0 knows (an asynchronous mode's last copy, a centre), the workers of replica 0 do so, and nothing
is sent. Where what is evaluated is the mean over replicas, each averages its own weights, since the average of means is
the mean of averages; these are joined when they are evaluated, and training sends nothing more.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...compat import foreach
from ...exchange.survivors import mean_of_living
from ...strategies import Strategy, Sync
from ...strategies.adapt import Adapt
from ...strategies.averages import Average
from ...strategies.core.cost import Memory, payload
from ...strategies.core.state import state_of
from ...tasks.running_statistics import batch_norms, other_keepers
from ..base.errors import ConfigError
from ..config.experiment import Experiment

KIND = "average"  # of memory


class Averaging:
    """`count`: how many weights are in it."""

    def __init__(self, average: Average, sync: Sync, module: nn.Module, steps_per_epoch: int) -> None:
        """`sync` is prepared: the weights are where they will be."""
        self.average, self.count = average, 0
        self._sync, self._module, self._steps_per_epoch = sync, module, steps_per_epoch
        self._kept = {name: torch.empty_like(each) for name, each in self._now().items()}

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._kept.values())

    def _now(self) -> dict[str, Tensor]:
        """What is averaged, as it is."""
        own = {name: parameter.detach() for name, parameter in self._sync.parameters.items()}
        weights = own if self._sync.traits.averages == "own" else self._sync.consensus()
        return weights | (_buffers(self._module) if self.average.buffers else {})

    def begins(self, step: int) -> None:
        """A step begins, after so many others. A worker that steps by itself fetches only now what these made."""
        if not self._sync.traits.synchronous and step > 0:
            self._take(step)

    def ends(self, done: int) -> None:
        """So many steps are made, the last just now."""
        if self._sync.traits.synchronous:
            self._take(done)

    def finish(self, done: int) -> None:
        """Training is over, after so many steps, and the sync mode has finished."""
        self.begins(done)

    @torch.no_grad()
    def _take(self, done: int) -> None:
        if not self.average.counts(done, self._steps_per_epoch):
            return
        now = self._now()
        self.count += 1
        # a_1 = w_1,  a_n = a_{n-1} + weight(n) (w_n - a_{n-1})
        if self.count == 1:
            for name, average in self._kept.items():
                average.copy_(now[name])
        else:
            foreach.lerp_(self.tensors, [now[name] for name in self._kept], self.average.weight(self.count))

    def evaluated(self) -> dict[str, Tensor]:
        """In place of `Sync.consensus`, and called where that is."""
        if self.count == 0:
            return self._sync.consensus()
        if self._sync.traits.averages != "own" or self._sync.comm.size == 1:
            return dict(self._kept)
        names = list(self._sync.parameters)
        flat = torch.cat([self._kept[name].flatten() for name in names])
        pieces = mean_of_living(flat, 1.0, self._sync.comm).split([self._kept[name].numel() for name in names])
        return self._kept | {name: piece.view_as(self._kept[name]) for name, piece in zip(names, pieces, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensors": dict(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for name, average in self._kept.items():
            average.copy_(state["tensors"][name])


def keeps(average: Average, sync: Sync, replica: int) -> bool:
    """Whether a worker of this replica has a part in it."""
    return average.kept and (replica == 0 or sync.traits.averages == "own")


def stated(average: Average, module: nn.Module, trained: Sequence[Tensor]) -> Memory:
    """Bytes on a worker that keeps it, by kind."""
    if not average.kept:
        return {}
    return {KIND: payload([*trained, *(_buffers(module).values() if average.buffers else ())])}


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Those of floating point that are saved."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {
        name: each for name, each in state_of(module).items() if name not in parameters and each.is_floating_point()
    }


def check_adapt(experiment: Experiment, average: Average, adapt: Adapt) -> None:
    """Raises `ConfigError` where weights of one model or training would be averaged with those of another."""
    why = ""
    if adapt.trainings > 1:
        why = f"trains {adapt.trainings} times in one run, and weights of one training are no part of another's average"
    if adapt.following is not None:
        why = "makes the model another one in mid-run, and weights of the two have no average"
    if average.kept and why:
        raise ConfigError(
            f"average={experiment.choice('average').name}: adapt={experiment.choice('adapt').name} {why}; choose "
            "average=none, or another adapt"
        )


def check(experiment: Experiment, average: Average, strategy: Strategy, sync: Sync) -> None:
    """Raises `ConfigError` where no average can be kept of what is evaluated."""
    if not average.kept:
        return
    chosen = f"average={experiment.choice('average').name}"
    owner = (
        f"strategy={experiment.strategy.name}" if strategy.own_sync() is not None else f"sync={experiment.sync.name}"
    )
    why = sync.traits.unaveraged and f"{owner} {sync.traits.unaveraged}"
    if strategy.traits.unaveraged:
        why = f"strategy={experiment.strategy.name} {strategy.traits.unaveraged}"
    if not why and sync.traits.averages is None and sync.traits.synchronous and not sync.traits.weights_agree:
        why = f"{owner} does not say whose weights an average is of (SyncTraits.averages)"
    if why:
        raise ConfigError(
            f"{chosen}: {why}; choose average=none, or another way: strategy=data_parallel with sync=bsp, local_sgd, "
            "gossip, easgd or asp keeps one, and so do pipelines and tensor parallelism"
        )


def check_model(experiment: Experiment, average: Average, sync: Sync, model: nn.Module) -> None:
    """Raises `ConfigError` where running statistics of the model cannot be made anew for the average."""
    chosen = f"average={experiment.choice('average').name}"
    if average.renews and (others := other_keepers(model)):
        raise ConfigError(
            f"{chosen}: {', '.join(others[:4])} keep running statistics, which are made anew for torch's own batch "
            "norms alone; choose average=ema, which averages them, or a model with other norms"
        )
    if average.renews and not sync.traits.synchronous and batch_norms(model):
        raise ConfigError(
            f"{chosen}: makes running statistics of batch norm anew by a pass over the training data, while the "
            f"others of sync={experiment.sync.name} train on; choose average=ema, which averages them, a mode whose "
            "replicas step together, such as sync=bsp, or a model with other norms"
        )
