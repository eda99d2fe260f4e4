"""The hooks of one worker together, as training calls them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from ...conf.errors import ConfigError
from ...strategies import Batch, Sync
from ...tasks.base import Taken
from ..callbacks.base import EvaluationView
from .feature import Decides, EvaluationVerdict, Hooks, State


class HookList:
    """The hooks of one worker, in the order in which they act. Hooks that leave out a step's event cost it nothing."""

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        self._all = tuple(hooks)
        self._before_step = self._overriding(Hooks.before_step)
        self._samples = self._overriding(Hooks.samples)
        self._begin_step = self._overriding(Hooks.begin_step)
        self._batch = self._overriding(Hooks.batch)
        self._after_backward = self._overriding(Hooks.after_backward)
        self._gradients: tuple[Hooks, ...] = ()
        self._showed, self._has_samples, self._chosen = False, True, ""
        self._takes_step = self._overriding(Hooks.takes_step)
        self._after_update = self._overriding(Hooks.after_update)
        self._after_step = self._overriding(Hooks.after_step)
        self._deciding = tuple(each for each in self._all if isinstance(each, Decides))

    def _overriding(self, event: Callable[..., Any]) -> tuple[Hooks, ...]:
        return tuple(each for each in self._all if getattr(type(each), event.__name__) is not event)

    def __iter__(self) -> Iterator[Hooks]:
        return iter(self._all)

    # -- a step

    def acting_before(self, step: int) -> list[Hooks]:
        """Returns those whose `before_step` has something to do before this step."""
        return [each for each in self._before_step if each.acts_before(step)]

    def samples(self, taken: Taken, step: int) -> Taken:
        for each in self._samples:
            taken = each.samples(taken, step)
        return taken

    def begin_step(self, step: int) -> None:
        for each in self._begin_step:
            each.begin_step(step)

    def batch(self, batch: Batch) -> Batch:
        self._has_samples = batch.size > 0
        for each in self._batch:
            batch = each.batch(batch)
        return batch

    def after_backward(self, step: int) -> None:
        for each in self._after_backward:
            each.after_backward(step)

    def watch(self, sync: Sync, chosen: str) -> None:
        """Has `sync` show the gradients that it steps with. Called once, before the first step.

        Args:
            chosen: the strategy and the sync mode, as they are typed.
        """
        self._chosen = chosen
        self._gradients = tuple(each for each in self._overriding(Hooks.gradients) if each.uses_gradients())
        if self._gradients:
            sync.configure(replace(sync.setting, before_step=self._show))

    def _show(self) -> None:
        self._showed = True
        for each in self._gradients:
            each.gradients()

    def takes_step(self) -> bool:
        return all([each.takes_step() for each in self._takes_step])  # each is asked

    def after_update(self, step: int, took: bool) -> None:
        if took and self._has_samples and self._gradients and not self._showed:
            names = " and ".join(type(each).__name__ for each in self._gradients)
            raise ConfigError(
                f"{self._chosen}: shows no gradient before a step, which {names} changes or measures. Choose "
                "strategy=data_parallel with sync=bsp."
            )
        for each in self._after_update:
            each.after_update(step, took)

    def after_step(self, done: int, loss: Tensor | None) -> None:
        if loss is not None:
            for each in self._after_step:
                each.after_step(done, loss)

    # -- evaluations and the end

    def weights(self, trained: Callable[[], State]) -> State:
        """Returns this part's weights to evaluate."""
        for each in self._overriding(Hooks.weights):
            trained = partial(each.weights, trained)
        return trained()

    def whole(self, state: State, judged: nn.Module) -> State:
        """Returns the whole model's weights to evaluate, on the chief."""
        for each in self._all:
            state = each.whole(state, judged)
        return state

    def evaluated(self, view: EvaluationView) -> dict[str, float]:
        """Returns what was measured. Each sees what those before it have found."""
        found: dict[str, float] = {}
        for each in self._overriding(Hooks.evaluated):
            found |= each.evaluated(replace(view, values={**view.values, **found}))
        return found

    def verdict(self, done: int) -> EvaluationVerdict:
        """Returns the verdict of those that decide. All workers that step together call."""
        every = [each.verdict(done) for each in self._deciding]
        return EvaluationVerdict(
            next((each.stop for each in every if each.stop), None), any(each.keep for each in every)
        )

    def count_evaluations(self) -> bool:
        return any(each.counts for each in self._deciding)

    def found_best(self) -> bool:
        return any(each.found_best() for each in self._deciding)

    # -- what is kept and told

    def state_dict(self) -> dict[str, dict[str, Any]]:
        return {each.key: each.state_dict() for each in self._all if each.key}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for each in self._all:
            if each.key in state:
                each.load_state_dict(state[each.key])

    def manifest(self) -> dict[str, Any]:
        return {name: state for each in self._all for name, state in each.manifest().items()}

    def load_manifest(self, state: Mapping[str, Any]) -> None:
        for each in self._all:
            each.load_manifest(state)

    def follow(self, before: "HookList") -> None:
        """Takes over from the hooks of the phase before, which are of the same features."""
        kinds = {type(each): each for each in before}
        for each in self._all:
            if type(each) in kinds:
                each.follow(kinds[type(each)])

    def tensors(self) -> dict[str, list[Tensor]]:
        """Returns what all hold, by kind of memory."""
        found: dict[str, list[Tensor]] = {}
        for each in self._all:
            for kind, tensors in each.tensors().items():
                found.setdefault(kind, []).extend(tensors)
        return found

    def merged(self, tell: Callable[[Hooks], Mapping[str, float]]) -> dict[str, float]:
        """Returns what all tell, by name."""
        return {name: value for each in self._all for name, value in tell(each).items()}
