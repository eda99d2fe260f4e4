"""The list of a worker's hooks: the order of what acts, and what a checkpoint gives back."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.conf.groups import GROUPS
from paceline.engine.callbacks.base import EvaluationView
from paceline.engine.config.targets import base_of
from paceline.engine.features.feature import Decides, EvaluationVerdict, Feature, Hooks, State
from paceline.engine.features.hook_list import HookList
from paceline.engine.features.order import FEATURES
from paceline.strategies.core.batch import Batch
from paceline.strategies.sync.independent import Independent
from paceline.tasks.base import Split


class Told(Hooks):
    """Writes down its events."""

    def __init__(self, events: list[str], name: str, takes: bool = True) -> None:
        self._events, self._name, self._takes = events, name, takes

    def takes_step(self) -> bool:
        self._events.append(self._name)
        return self._takes

    def weights(self, trained: Callable[[], State]) -> State:
        return {**trained(), self._name: torch.zeros(1)}

    def evaluated(self, view: EvaluationView) -> Mapping[str, float]:
        return {self._name: float(len(view.values))}


class Counts(Hooks):
    key = "counts"

    def __init__(self) -> None:
        self.value: int | None = None  # before the first step there is nothing to save

    def state_dict(self) -> dict[str, Any]:
        return {} if self.value is None else {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state.get("value")


class Judge(Decides):
    counts = True

    def __init__(self, stop: str | None, keep: bool) -> None:
        self._verdict = EvaluationVerdict(stop, keep)

    def verdict(self, done: int) -> EvaluationVerdict:
        return self._verdict

    def found_best(self) -> bool:
        return self._verdict.keep


def view() -> EvaluationView:
    split = Split(torch.zeros(1, 1), torch.zeros(1))
    return EvaluationView(1, 0.1, 1.0, {"loss": 1.0}, nn.Identity(), split, torch.device("cpu"), lambda *_: {})


def test_each_is_asked_in_order_whether_a_step_is_taken() -> None:
    events: list[str] = []
    hooks = HookList([Told(events, "a", takes=False), Hooks(), Told(events, "b")])
    assert hooks.takes_step() is False and events == ["a", "b"] and HookList().takes_step()


class Seeing(Hooks):
    def gradients(self) -> None: ...


def test_a_worker_that_shows_no_gradient_is_told_of_unless_it_had_no_samples() -> None:
    hooks = HookList([Seeing()])
    hooks.watch(Independent(), "strategy=single, sync=independent")
    hooks.batch(Batch(torch.zeros(0, 1), torch.zeros(0), 1))
    hooks.after_update(0, True)
    hooks.batch(Batch(torch.zeros(1, 1), torch.zeros(1), 1))
    with pytest.raises(ConfigError, match="sync=independent: shows no gradient before a step, which Seeing"):
        hooks.after_update(1, True)


def test_later_ones_see_what_earlier_ones_made() -> None:
    hooks = HookList([Told([], "a"), Told([], "b")])
    assert hooks.evaluated(view()) == {"a": 1.0, "b": 2.0}
    assert list(hooks.weights(lambda: {"w": torch.zeros(1)})) == ["w", "a", "b"]


def test_a_state_that_begins_in_mid_run_comes_back() -> None:
    first, second, older = Counts(), Counts(), Counts()
    first.value = 4
    HookList([second]).load_state_dict(HookList([first]).state_dict())
    HookList([older]).load_state_dict({"parameters": {}})  # of a version that did not save it
    assert second.value == 4 and older.value is None


def test_one_may_end_the_run_and_another_keep_the_weights() -> None:
    hooks = HookList([Hooks(), Judge(None, True), Judge("enough", False), Judge("too late", False)])
    assert hooks.verdict(3) == EvaluationVerdict("enough", True) and hooks.count_evaluations() and hooks.found_best()
    assert HookList([Hooks()]).verdict(3) == EvaluationVerdict() and not HookList([Hooks()]).count_evaluations()


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_has_a_key_and_says_what_it_is(feature: Any) -> None:
    assert feature.key and feature.__doc__


def test_every_group_whose_base_is_a_feature_has_its_place_in_the_order() -> None:
    bases = [base_of(group.name) for group in GROUPS]
    missing = [base for base in bases if issubclass(base, Feature) and not any(issubclass(f, base) for f in FEATURES)]
    assert not missing, f"not in FEATURES of engine/features/order.py, so that they do nothing: {missing}"


def test_an_evaluation_is_not_changed_by_what_is_measured() -> None:
    seen = view()
    HookList([Told([], "a")]).evaluated(seen)
    assert seen == replace(seen, values={"loss": 1.0})
