"""The optimizer that a wrapped script holds."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from .gradients import Gradients


class _Steps(Protocol):
    gradients: Gradients

    @property
    def has_passes(self) -> bool: ...

    def step(self) -> None: ...


class WrappedOptimizer(Optimizer):
    """The script's optimizer, whose step is the sync mode's.

    An Optimizer for torch's schedules, which ask for one. All that it has is the script's optimizer's.
    """

    _step_supports_amp_scaling = False  # GradScaler would leave the scale to a fused optimizer, which knows of none

    def __init__(self, run: _Steps, inner: Optimizer) -> None:  # without super's: it would take over the parameters
        self._run, self._inner = run, inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:
        return self._inner.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """`closure`: makes the step's passes by `run.backward`. If it makes none and returns None, its batch is left
        out, as Lightning's is where `training_step` returns None. Returns what `closure` does.
        """
        made = None
        if closure is not None:
            with torch.enable_grad():
                made = closure()
            if made is None and not self._run.has_passes:
                return None
        self._run.step()
        return made

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._run.gradients.zero(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._inner.add_param_group(param_group)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
