"""Attributes of an optimizer that steps change, and that its `state_dict` does not have."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline import engine
from paceline.engine.training.unsaved import Unsaved
from paceline.tracking.run_directory import RunDirectory


class Forgetful(torch.optim.SGD):
    """Changes attributes of several kinds."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.count, self.rates = 0, [0.1, 0.2]
        self.momenta = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]
        self.inner = torch.optim.Adam(self.param_groups)
        self.sharing = torch.optim.Adam(self.param_groups)
        self.sharing.state = self.state
        self.known = list(self.param_groups[0]["params"])
        self.fixed, self.mean, self.tree = 3, torch.zeros(2), {"leaf": 1, "parents": list[Any]()}
        self.tree["parents"].append(self.tree)

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        self.lazy = self.count
        self.momenta[0].add_(1)
        self.inner.step()
        return self.sharing.step()


class Loading(Forgetful):
    """Loads them itself."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


@pytest.mark.parametrize(
    ("kind", "names"),
    [(Forgetful, ["count", "momenta", "inner", "lazy"]), (Loading, []), (torch.optim.Adam, [])],
)
def test_attributes_that_steps_change_are_named(kind: Any, names: list[str]) -> None:
    parameters = [nn.Parameter(torch.randn(2, 2))]
    optimizer = kind(parameters)
    unsaved = Unsaved(optimizer)
    assert unsaved.changed() == []
    parameters[0].grad = torch.ones(2, 2)
    optimizer.step()
    assert unsaved.changed() == names


@pytest.mark.slow
@pytest.mark.dist
def test_a_run_says_once_that_no_checkpoint_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    overrides = ["tracking=none", "steps=6", "checkpoint.every_steps=2", "data.limit=100", "model.hidden=[8]"]
    optimizer = f"optimizer={{_target_:{__name__}.Forgetful}}"
    run = engine.run([*overrides, optimizer], allow_modules=[__name__], root=tmp_path, quiet=True)
    notes = [each["text"] for each in RunDirectory(run.path).records() if each["kind"] == "note"]
    said = "Forgetful: steps change count, momenta, inner, lazy, which no checkpoint has: a resumed run begins"
    assert [said in text for text in notes if "no checkpoint has" in text] == [True]
