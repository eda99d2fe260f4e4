"""An average of weights over steps, on the workers that hold them: kept, evaluated in their place, and saved.

Each worker averages what it holds: its stage's layers, its pieces of tensors. Where replicas agree, or the mode
evaluates what replica 0 knows (an asynchronous mode's last copy, a centre), the workers of replica 0 do so, and nothing
is sent. Where what is evaluated is the mean over replicas, each averages its own weights, since the average of means is
the mean of averages; these are joined when they are evaluated, and training sends nothing more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...compat import foreach
from ...conf.errors import ConfigError
from ...cost.kernels import Kernel
from ...exchange.survivors import mean_of_living
from ...strategies import Sync
from ...strategies.averages import Average
from ...strategies.core.clip import Counted
from ...strategies.core.cost import Memory, payload
from ...strategies.core.state import Named, load_state, state_of
from ...strategies.core.terms import STRATEGY_AVERAGED, SYNC_AVERAGED, Need
from ...tasks.running_statistics import batch_norms, other_keepers, renew
from ..config.experiment import Experiment
from ..config.targets import build
from .feature import Chosen, Context, Feature, Hooks, Known, Parts, State
from .models import ModelFeature, of_model

KIND = "average"  # of memory


@dataclass(frozen=True)
class Averaged(Feature):
    """An average of weights is evaluated and saved in place of those that are trained."""

    average: Average
    key = "average"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        average = build("average", chosen.experiment.choice("average"), Average, chosen.allowed, {})
        return cls(average) if average.kept else None

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        return [Need(term, "averages the weights that are evaluated") for term in (SYNC_AVERAGED, STRATEGY_AVERAGED)]

    def check_model(self, chosen: Chosen, model: nn.Module) -> None:
        check_model(chosen.experiment, self.average, chosen.sync, model)

    def check_parts(self, parts: Parts) -> None:
        for each in of_model(parts):
            _check_one_model(parts.experiment, each)

    def check_steps(self, known: Known) -> None:
        if known.training is not None and known.steps_per_epoch is not None:
            self.average.check(known.training, known.steps_per_epoch)

    def memory(self, module: nn.Module, trained: Sequence[Tensor]) -> Memory:
        return {KIND: payload([*trained, *(_buffers(module).values() if self.average.buffers else ())])}

    def kernels(self, trained: Sequence[Tensor]) -> tuple[Kernel, ...]:
        if not self.average.each_step:
            return ()
        return tuple(Kernel("add_", (float(max(each.numel(), 1)),)) for each in trained)

    def hooks(self, context: Context) -> Hooks | None:
        sync = context.parts.sync
        if context.role.replica > 0 and sync.traits.averages != "own":
            return None
        return Averaging(self.average, sync, partial(_renewed, context))


def of(parts: Parts) -> Average | None:
    """Returns the average that is evaluated in place of what is trained."""
    return next((each.average for each in parts.features if isinstance(each, Averaged)), None)


def _renewed(context: Context, state: State, judged: nn.Module) -> State:
    """Returns `state` with running statistics of batch norms that are those of these weights."""
    if not batch_norms(judged):
        return state
    judged.to(context.device)
    load_state(judged, state)
    renew(judged, context.parts.load()[0], context.parts.experiment.batch_size, context.device)
    found = {name: tensor.detach().clone() for name, tensor in state_of(judged).items()}
    judged.to("cpu")  # its place on the device is training's
    return found


class Averaging(Hooks):
    """`count`: how many weights are in it."""

    key = "average"

    def __init__(self, average: Average, sync: Sync, renewed: Callable[[State, nn.Module], State]) -> None:
        """`renewed`: makes running statistics anew for weights, with a model to try them in."""
        self.average, self.count = average, 0
        self._sync, self._renewed = sync, renewed
        self._buffers: Callable[[], State] = dict
        self._kept: State = {}

    def begin(self, module: nn.Module, counted: Counted | None = None) -> None:
        if self.average.buffers:
            self._buffers = partial(_buffers, module)
        self._kept = {name: torch.empty_like(each) for name, each in self._now().items()}

    def tensors(self) -> Mapping[str, Sequence[Tensor]]:
        return {KIND: list(self._kept.values())}

    def _now(self) -> State:
        """Returns what is averaged, as it is."""
        own = {name: parameter.detach() for name, parameter in self._sync.parameters.items()}
        weights = own if self._sync.traits.averages == "own" else self._sync.consensus()
        return weights | self._buffers()

    def begin_step(self, step: int) -> None:
        """A worker that steps by itself has fetched only now what others made of the steps before."""
        if not self._sync.traits.synchronous and step > 0:
            self._take(step)

    def after_update(self, step: int, took: bool) -> None:
        if self._sync.traits.synchronous:
            self._take(step + 1)

    def finish(self, done: int) -> None:
        self.begin_step(done)

    @torch.no_grad()
    def _take(self, done: int) -> None:
        if not self.average.counts(done, self._sync.setting.steps_per_epoch):
            return
        now = self._now()
        self.count += 1
        # a_1 = w_1,  a_n = a_{n-1} + weight(n) (w_n - a_{n-1})
        if self.count == 1:
            for name, average in self._kept.items():
                average.copy_(now[name])
        else:
            weight = self.average.weight(self.count)
            foreach.lerp_([*self._kept.values()], [now[name] for name in self._kept], weight)

    def weights(self, trained: Callable[[], State]) -> State:
        if self.count == 0:
            return trained()
        if self._sync.traits.averages != "own" or self._sync.comm.size == 1:
            return dict(self._kept)
        names = list(self._sync.parameters)
        flat = torch.cat([self._kept[name].flatten() for name in names])
        pieces = mean_of_living(flat, 1.0, self._sync.comm).split([self._kept[name].numel() for name in names])
        return self._kept | {name: piece.view_as(self._kept[name]) for name, piece in zip(names, pieces, strict=True)}

    def whole(self, state: State, judged: nn.Module) -> State:
        return self._renewed(state, judged) if self.average.renews and self.count else state

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "tensors": Named(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for name, average in self._kept.items():
            average.copy_(state["tensors"][name])


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Returns the floating-point buffers that are saved."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {
        name: each for name, each in state_of(module).items() if name not in parameters and each.is_floating_point()
    }


def _check_one_model(experiment: Experiment, feature: ModelFeature) -> None:
    """Raises `ConfigError` where weights of one model or training would be averaged with those of another."""
    why = ""
    if feature.trainings > 1:
        why = (
            f"trains {feature.trainings} times in one run, and weights of one training are no part of another's average"
        )
    if feature.following is not None:
        why = "makes the model another one in mid-run, and weights of the two have no average"
    if why:
        raise ConfigError(
            f"average={experiment.choice('average').name}: {feature.switch(experiment)} {why}. "
            f"Choose average=none, or another {feature.key}."
        )


def check_model(experiment: Experiment, average: Average, sync: Sync, model: nn.Module) -> None:
    """Raises `ConfigError` where running statistics of the model cannot be made anew for the average."""
    chosen = f"average={experiment.choice('average').name}"
    if average.renews and (others := other_keepers(model)):
        raise ConfigError(
            f"{chosen}: {', '.join(others[:4])} keep running statistics, which are made anew for torch's own batch "
            "norms alone. Choose average=ema, which averages them, or a model with other norms."
        )
    if average.renews and not sync.traits.synchronous and batch_norms(model):
        raise ConfigError(
            f"{chosen}: makes running statistics of batch norm anew by a pass over the training data, while the "
            f"others of sync={experiment.sync.name} train on. Choose average=ema, which averages them, a mode whose "
            "replicas step together, such as sync=bsp, or a model with other norms."
        )
