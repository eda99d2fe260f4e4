"""Statistics that a layer keeps in buffers, over replicas: evaluated, saved, and gone on with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline import engine
from paceline.engine import Result
from paceline.strategies.core.state import load_state
from paceline.tasks.data.digits import Digits
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.models.resnet import ResNet

MODEL = ("model=resnet", "model.depth=8", "model.width=4", "optimizer.lr=0.1")
ASKED = (*MODEL, "tracking=none", "hardware.workers=2", "data.limit=96", "batch_size=8")


def train(root: Path, *overrides: str, **how: Any) -> Result:
    result = engine.run([*(() if "resume" in how else ASKED), *overrides], root=root, quiet=True, **how)
    assert result is not None
    return result


def test_a_run_over_two_replicas_is_judged_with_those_of_the_first(tmp_path: Path) -> None:
    whole = train(tmp_path, "hardware=virtual", "steps=12")
    state = load_file(whole.path / "model.safetensors")
    assert int(state["norm.num_batches_tracked"]) == 12
    model = ResNet(Digits().spec, depth=8, width=4)
    load_state(model, state)
    test = Digits().load()[1]
    judged = evaluate(CrossEntropy(), model, test)
    assert whole.accuracy == pytest.approx(judged.score)
    for name, buffer in model.named_buffers():  # with those of a layer that has seen nothing it is another model
        buffer.fill_(1.0 if name.endswith("var") else 0.0)
    assert evaluate(CrossEntropy(), model, test).loss != pytest.approx(judged.loss, rel=0.01)


@pytest.mark.dist
@pytest.mark.slow
def test_a_resumed_run_goes_on_with_them(tmp_path: Path, fork_server: None) -> None:
    how = ("hardware.threads=1", "checkpoint.every_steps=6")
    whole = train(tmp_path, *how, "steps=12", name="whole")
    train(tmp_path, *how, "steps=6", name="half")
    resumed = train(tmp_path, "steps=12", resume="half")
    state, again = (load_file(result.path / "model.safetensors") for result in (whole, resumed))
    assert int(again["norm.num_batches_tracked"]) == 12
    assert state.keys() == again.keys() and all(torch.equal(state[name], again[name]) for name in state)
    assert resumed.accuracy == whole.accuracy
